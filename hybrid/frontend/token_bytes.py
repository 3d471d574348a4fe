"""Bytes of single tokens. A token need not be whole characters, so its text cannot always say what it stands for."""

import re

from .detokenizer import REPLACEMENT
from .tokenizer import Tokenizer

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how sentencepiece vocabularies name the single bytes


def _byte_alphabet() -> dict[str, int]:
    """How byte-level vocabularies spell bytes: printable Latin-1 as itself, the other bytes from U+0100 on in order
    (GPT-2's `bytes_to_unicode`)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def token_bytes(tokenizer: Tokenizer, token_id: int, text: str) -> bytes:
    """The bytes of a token; `text` is what it decodes to by itself."""
    if REPLACEMENT not in text:
        return text.encode()
    token = tokenizer.token(token_id)
    if fallback := _FALLBACK.fullmatch(token):
        return bytes([int(fallback[1], 16)])
    if all(character in _ALPHABET for character in token):
        return bytes(_ALPHABET[character] for character in token)
    return text.encode()
