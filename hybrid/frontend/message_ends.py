"""Where the messages of a conversation end, in its text and in its tokens: there a later prompt may go on otherwise.

Knows tokenizers and templates; no images.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hybrid.scheduler.plan import TokenIds

from .tokenizer import Tokenizer

_FIRST, _LAST = 2, 62  # messages: where conversations part, each found by rendering all before it


def without_last_end(text: str, message: Mapping[str, Any]) -> str:
    """The rendered conversation up to the end of its last message's text. Raises ValueError if there is no such."""
    content = message["content"]
    if not isinstance(content, str):
        content = next((part["text"] for part in reversed(content) if part["type"] == "text"), "")
    words = content.strip()  # templates often strip it
    start = text.rfind(words)
    if not words or start < 0:
        raise ValueError("continue_final_message needs a last message whose text the chat template shows")
    end = start + len(words)
    trailing = content[len(content.rstrip()) :]
    return text[:end] + (trailing if text.startswith(trailing, end) else "")


def rendered_ends(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], text: str, variables: Mapping[str, Any]
) -> Iterator[int]:
    """Characters of `text`, the rendered conversation, at which its messages end, the last one's left out; of very many
    messages the first and the last ones."""
    counts = [*range(1, len(messages))]
    if len(counts) > _FIRST + _LAST:
        counts = counts[:_FIRST] + counts[-_LAST:]
    for count in counts:
        try:
            part = tokenizer.render_chat(messages[:count], False, variables)
        except ValueError:  # a template may refuse a conversation that ends there
            continue
        if text.startswith(part):
            yield len(part)


def token_ends(token_ids: TokenIds, eos_token_ids: TokenIds, tokenizer: Tokenizer | None) -> list[int]:
    """Positions after every end-of-text token, and after the line break that follows it."""
    ends = np.flatnonzero(np.isin(token_ids, eos_token_ids)) + 1
    return [
        end + 1
        if end < len(token_ids) and tokenizer is not None and tokenizer.decode((int(token_ids[end]),)) == "\n"
        else end
        for end in ends.tolist()
    ]
