"""GGUF tokenizer: the byte-level BPE that a GGUF file's metadata describes -> what a Tokenizer is made of.

Source: llama.cpp (`llama-vocab.cpp`), which knows pre-tokenizers by name: regular expressions that split a text one
after the other. Transformers' conversion of GGUF files does not tell them apart.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors

from hybrid.models.blueprint.config_reader import one_line, shown
from hybrid.models.gguf_file import GGUFFile

from .tokenizer_files import TokenizerParts

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Llama 3 takes up to three digits at a time, Qwen 2 one.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = (_WORDS.format(digits="{1,3}"),)
PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "gpt2": (_GPT2,),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": (_WORDS.format(digits=""),),
    "smollm": (r"\p{N}", _GPT2),
}
# Of these a piece that is a token is that token, whatever the merges say, and texts begin with the first token.
_LLAMA3_NAMES = ("llama-bpe", "llama-v3", "llama3")
_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens: never split; the first are special
_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def read_gguf(path: Path) -> TokenizerParts:
    """Raises ValueError for a file without a tokenizer, or with one of a kind that is not supported."""
    metadata = GGUFFile(path).metadata
    try:
        tokenizer = _bpe(metadata)
        tokens = metadata["tokenizer.ggml.tokens"]
        named = {name: _token(metadata, f"tokenizer.ggml.{key}_token_id", tokens) for key, name in _NAMES.items()}
        special = {name: token for name, token in named.items() if token is not None}
        first, last = (special.get(name) if _adds(metadata, name) else None for name in ("bos_token", "eos_token"))
        if first is not None or last is not None:
            ids = [(token, tokens.index(token)) for token in (first, last) if token is not None]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[token for token in (first, "$A", last) if token is not None], special_tokens=ids
            )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    template = metadata.get("tokenizer.chat_template")
    return TokenizerParts(tokenizer, special, template if isinstance(template, str) else None)


def _bpe(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise ValueError("the file holds no tokenizer (no tokenizer.ggml.model)")
    if model != "gpt2":
        raise ValueError(
            f"tokenizer.ggml.model {shown(model)} is not supported, only 'gpt2'; a folder with a tokenizer.json can be "
            "given as tokenizer instead"
        )
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise ValueError(
            f"tokenizer.ggml.pre {shown(pre)} is not supported; supported are {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise ValueError(f"tokenizer.ggml.tokens lists {shown(twice)} twice")
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list):
        raise ValueError(f"tokenizer.ggml.token_type must be a list, got {shown(kinds)}")
    if kinds and len(kinds) != len(tokens):
        raise ValueError(f"tokenizer.ggml.token_type lists {len(kinds)} kinds for {len(tokens)} tokens")
    merges = [_pair(merge) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    try:
        bpe = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _LLAMA3_NAMES)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"tokenizer.ggml.merges do not fit the tokens: {one_line(error)}") from None
    tokenizer = tokenizers.Tokenizer(bpe)
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in PRE_TOKENIZERS[pre]]
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            tokenizers.AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return tokenizer


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ValueError(f"the file holds no list {key}")
    return value


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ValueError(f"tokenizer.ggml.merges holds {shown(merge)}, which is no pair of tokens")
    return left, right


def _token(metadata: Mapping[str, Any], key: str, tokens: list[str]) -> str | None:
    """The token whose id is under a key."""
    token_id = metadata.get(key)
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        raise ValueError(f"{key} is {shown(token_id)}, which is no token")
    return tokens[token_id]


def _adds(metadata: Mapping[str, Any], name: str) -> bool:
    """Whether every text begins with the first token, or ends with the last."""
    usual = name == "bos_token" and metadata["tokenizer.ggml.pre"] in _LLAMA3_NAMES
    return bool(metadata.get(f"tokenizer.ggml.add_{name}", usual))
