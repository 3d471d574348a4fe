"""Tokenizer: text <-> token ids and messages -> text, as a checkpoint folder or a GGUF file describes it.

Knows neither models nor images: a placeholder is a token like any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hybrid.scheduler.plan import Ints, TokenIds

from .chat_template import ChatTemplate
from .tokenizer_files import read_folder


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
    """The tokenizer of one checkpoint. Nothing changes after construction."""

    def __init__(self, checkpoint: str | Path) -> None:
        """checkpoint: a folder or a GGUF file. Raises ValueError when it holds no tokenizer that can be read."""
        path = Path(checkpoint)
        if path.suffix == ".gguf":
            from .gguf_tokenizer import read_gguf

            parts = read_gguf(path)
        else:
            parts = read_folder(path)
        self._tokenizer = parts.tokenizer
        try:
            self._template = (
                None if parts.chat_template is None else ChatTemplate(parts.chat_template, parts.special_tokens)
            )
        except ValueError as error:
            raise ValueError(f"the chat template of {path} {error}") from None
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

    def to_json(self) -> str:
        """All of it but the chat template, as the `tokenizers` library writes it to `tokenizer.json`."""
        return self._tokenizer.to_str()

    def token(self, token_id: int) -> str:
        """How the vocabulary spells a token; "" for an id that it does not have."""
        return self._tokenizer.id_to_token(token_id) or ""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The conversation as one text. `variables`: further ones for the template. Raises ValueError when there is no
        template, or it refuses the messages."""
        if self._template is None:
            raise ValueError("the tokenizer has no chat template; pass a prompt instead of messages")
        return self._template.render(messages, add_generation_prompt, variables)
