"""Tokenizer files: a checkpoint folder -> what a Tokenizer is made of.

Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and the chat templates as transformers writes
them, without importing transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from hybrid.models.blueprint.config_reader import one_line, shown
from hybrid.models.blueprint.json_object import read_json

# What holds a vocabulary in ways that are not read, and what they are called.
_OTHERS = {
    "tokenizer.model": "a sentencepiece or tiktoken model",
    "spiece.model": "a sentencepiece model",
    "tekken.json": "a tekken vocabulary",
    "vocab.json": "a bare vocabulary",
}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """special_tokens: texts by name (`bos_token`, ...). chat_template: its source, None where there is none."""

    tokenizer: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    chat_template: str | None


def read_folder(folder: Path) -> TokenizerParts:
    """Raises ValueError when the folder has no readable `tokenizer.json`, or a file beside it is wrong."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no tokenizer.json{_instead(folder)}")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from None
    tokenizer.no_truncation()  # as it was used in training
    tokenizer.no_padding()
    config = read_json(folder / "tokenizer_config.json") or {}
    named = {**(read_json(folder / "special_tokens_map.json") or {}), **config}
    texts = {key: text for key, value in named.items() if key.endswith("_token") and (text := _token_text(value))}
    _add_tokens(tokenizer, folder / "tokenizer_config.json", config)
    return TokenizerParts(tokenizer, texts, _chat_template(folder, config))


def _instead(folder: Path) -> str:
    """What the folder has instead of `tokenizer.json`, and how one is made of it."""
    for name, what in _OTHERS.items():
        if (folder / name).is_file():
            return (
                f" but {name}, {what}, which is not read: "
                "let transformers convert it (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
            )
    return ""


def _token_text(value: object) -> str | None:
    """A special token is written as its text or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_tokens(tokenizer: tokenizers.Tokenizer, path: Path, config: Mapping[str, Any]) -> None:
    """Mutates: tokens that only `added_tokens_decoder` knows. Raises ValueError for one that would get another id."""
    listed = config.get("added_tokens_decoder")
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    if not isinstance(listed, Mapping) or not all(isinstance(key, str) and key.isdecimal() for key in listed):
        return
    for key, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        text = _token_text(entry)
        if text is None or text in known:
            continue
        flags = {name: bool(entry[name]) for name in _FLAGS if name in entry}
        tokenizer.add_tokens([tokenizers.AddedToken(text, **flags)])
        if tokenizer.token_to_id(text) != int(key):
            raise ValueError(f"{path}: the added token {shown(text)} cannot have the id {one_line(key)}")


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The source of the default template, from a file of its own or from the configuration. Raises ValueError."""
    file = folder / "chat_template.jinja"
    source: object = config.get("chat_template")
    if file.is_file():
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from None
    elif source is None:  # how processors of images used to keep it
        source = (read_json(folder / "chat_template.json") or {}).get("chat_template")
    if isinstance(source, list):  # several, by name
        named = [entry for entry in source if isinstance(entry, Mapping) and entry.get("name") == "default"]
        source = named[0].get("template") if named else None
    return source if isinstance(source, str) else None
