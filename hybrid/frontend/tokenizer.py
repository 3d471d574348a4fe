"""Tokenizer: text <-> token ids and messages -> text, from the files of a checkpoint folder.

Reads `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` as transformers writes them, without importing
transformers. Knows neither models nor images: a placeholder is a token like any other.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox
import numpy as np
import tokenizers

from hybrid.scheduler.plan import Ints, TokenIds


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a text; token i covers the characters starts[i] .. ends[i] - 1 (both 0 for tokens added to it)."""

    token_ids: TokenIds  # [n]
    starts: Ints  # [n]
    ends: Ints  # [n]

    def position_of(self, character: int) -> int | None:
        """How many tokens cover exactly the first `character` characters; None when a token lies across."""
        position = int(np.searchsorted(self.ends, character, side="right"))
        if position < len(self.starts) and self.starts[position] < character:
            return None
        return position


class Tokenizer:
    """The tokenizer of one folder. Nothing changes after construction."""

    def __init__(self, directory: str | Path) -> None:
        """Raises ValueError when the folder has no readable `tokenizer.json`."""
        folder = Path(directory)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{folder} holds no tokenizer.json")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} cannot be read: {error}") from None
        config = read_json(folder / "tokenizer_config.json")
        self._special_tokens = {
            key: text for key, value in config.items() if key.endswith("_token") and (text := _token_text(value))
        }
        self._template = _chat_template(folder, config)
        self.special_token_ids = frozenset(
            token_id for token_id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self.max_chars_per_token = max(map(len, self._tokenizer.get_vocab()), default=1)

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoded:
        """Token ids of `text`; `add_special_tokens`: with what the tokenizer adds itself, such as a first token."""
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return Encoded(np.array(encoding.ids, dtype=np.int32), offsets[:, 0], offsets[:, 1])

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of the tokens; bytes that are no UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The conversation as one text. Raises ValueError when there is no template, or it refuses the messages."""
        if self._template is None:
            raise ValueError("the tokenizer has no chat template; pass a prompt instead of messages")
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._special_tokens
            )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, {} when there is no file. Raises ValueError for anything else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a JSON {type(data).__name__}, not an object")
    return data


def _token_text(value: object) -> str | None:
    """A special token is written as its text or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(folder: Path, config: Mapping[str, Any]) -> jinja2.Template | None:
    """The folder's default template, compiled in a sandbox as transformers does it. Raises ValueError."""
    file = folder / "chat_template.jinja"
    source = config.get("chat_template")
    if file.is_file():
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from None
    if isinstance(source, list):  # several, by name
        named = [entry for entry in source if isinstance(entry, Mapping) and entry.get("name") == "default"]
        source = named[0].get("template") if named else None
    if not isinstance(source, str):
        return None
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template of {folder} cannot be compiled: {error}") from None


def _tojson(value: object, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
