"""Detokenizer: the tokens of one request become text piece by piece, without a character that is still incomplete.

Knows how to decode, not what stops a request (see `stop_strings`).
"""

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"  # what decoding makes of bytes that are not UTF-8, also of a character whose end is missing
MAX_HELD_CHARACTERS = 3  # a character has at most 4 bytes, so at most 3 bytes of it can lack their end
MAX_WINDOW_TOKENS = 64  # decoded again for every token; only bytes that never form a character make it so long


class Decodes(Protocol):
    """What is asked of a tokenizer."""

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...


class Detokenizer:
    """Text of one stream of tokens. What `push` returned, joined, is the text; a character whose bytes never came to
    their end is left out.

    The window of tokens that is decoded begins one piece before the new one: decoders that drop the space before the
    first word must see a word before it. `context` are the last prompt tokens, for the first piece.
    """

    def __init__(self, tokenizer: Decodes, skip_special_tokens: bool = True, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._window = [token_id for token_id in context if token_id not in self._skipped]
        self._given = len(_complete(self._decode()))  # characters of the decoded window that are given out
        self._read = len(self._window)  # tokens of the window that belong to pieces given out

    def push(self, token_ids: Sequence[int]) -> str:
        """Mutates: the text that became certain with these tokens, often one piece, sometimes none."""
        new = [token_id for token_id in token_ids if token_id not in self._skipped]
        if not new:
            return ""
        self._window += new
        text = self._decode()
        certain = text if len(self._window) > MAX_WINDOW_TOKENS else _complete(text)
        piece = certain[self._given :]
        self._given = max(self._given, len(certain))
        if len(certain) == len(text):
            del self._window[: self._read]
            self._read = len(self._window)
            self._given = len(self._decode())
        return piece

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False) if self._window else ""


def _complete(text: str) -> str:
    """`text` without the characters at its end that further bytes may still change."""
    held = 0
    while held < min(MAX_HELD_CHARACTERS, len(text)) and text[-1 - held] == REPLACEMENT:
        held += 1
    return text[: len(text) - held]
