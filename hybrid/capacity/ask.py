"""Ask: what a user writes about requests -> a Question. Knows texts; every error is a ValueError of one sentence."""

import re
from typing import Any

from hybrid.models.blueprint.model import Model

from .question import Question, image_cost
from .tokens import parse_tokens
from .traffic import parse_traffic


def parse_image_size(text: str) -> tuple[int, int]:
    """ "1024x768" -> width and height in pixels. Raises ValueError."""
    match = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", text.strip().lower())
    if match is None:
        raise ValueError(f"image_size must be pixels such as 1024x768, got {text!r}")
    return int(match[1]), int(match[2])


def ask(
    *,
    model: Model,
    context: str,
    output: str,
    max_tokens: str | None,
    images: int,
    image_size: tuple[int, int] | None,
    shared_prefix: int,
    **others: Any,
) -> Question:
    """context, output: numbers of tokens, or distributions of them (see `traffic`). max_tokens: that requests permit;
    None: as many as their answers have. others: of Question."""
    others |= {"model": model, "images": images, "image_size": image_size, "shared_prefix": shared_prefix}
    permitted = None if max_tokens is None else parse_tokens("max_tokens", max_tokens, least=1)
    if permitted is None and ":" not in context + output:
        return Question(context=parse_tokens("context", context), output=parse_tokens("output", output), **others)
    extra = max(0, images) * image_cost(model, image_size).prompt_tokens
    if extra > model.decoder.max_positions:
        raise ValueError(f"images {images}: {extra:,} tokens exceed the model's limit of {model.decoder.max_positions}")
    traffic = parse_traffic(context, output, extra, max(0, shared_prefix), permitted)
    traffic = traffic.within(model.decoder.max_positions)
    longest = int(traffic.prompts.max()) - extra
    return Question(context=longest, output=int(traffic.outputs.max()), traffic=traffic, **others)
