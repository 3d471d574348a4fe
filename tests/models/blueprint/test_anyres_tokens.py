"""Tokens of pictures on grids of tiles are those of transformers' processor; what configurations may say of grids."""

from typing import Any

import pytest
from transformers import LlavaNextProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

from hybrid.models.blueprint.anyres_tokens import PINPOINTS, AnyresTokens, read_anyres_tokens
from hybrid.models.blueprint.config_reader import ConfigReader
from hybrid.models.blueprint.vision import ImageCost
from tests.multimodal.tiny_tokenizer import tiny_tokenizer

from .test_scaled_tokens import sizes

PUBLISHED = AnyresTokens(PINPOINTS, 336, 24)
CASES = [
    PUBLISHED,
    AnyresTokens(((12, 24), (24, 12), (24, 24), (36, 12)), 12, 3),
    AnyresTokens(((10, 10), (30, 10), (10, 20)), 10, 1),
]


@pytest.mark.parametrize("tokens", CASES)
def test_tokens_are_those_of_transformers(tokens: AnyresTokens) -> None:
    pinpoints = [list(pair) for pair in tokens.pinpoints]
    llava: Any = LlavaNextProcessor
    processor = llava(
        LlavaNextImageProcessorPil(image_grid_pinpoints=pinpoints),
        tiny_tokenizer("<image>"),
        patch_size=tokens.tile // tokens.per_side,
    )
    counts = []
    for width, height in sizes(0):
        counts.append(sum(tokens(width, height).entries))
        assert counts[-1] == processor._get_number_of_features(height, width, tokens.tile, tokens.tile)
    assert (max(counts),) == (tokens.most,) == tokens.costliest.entries
    assert min(counts) >= tokens.least


def test_published_counts() -> None:
    assert (PUBLISHED.least, PUBLISHED.most) == (576, 2928)
    assert PUBLISHED(672, 672) == PUBLISHED(8000, 8000) == PUBLISHED.costliest == ImageCost((2928,))
    assert (PUBLISHED(1000, 10), PUBLISHED(1, 10_000)) == (ImageCost((576,)), ImageCost((600,)))


def read(*pinpoints: Any, **keys: Any) -> AnyresTokens:
    config = ConfigReader({"image_grid_pinpoints": list(pinpoints)} if pinpoints else {})
    return read_anyres_tokens(config, ConfigReader(keys, "preprocessor_config.json") if keys else None, 336, 24)


def test_what_is_read() -> None:
    assert read() == PUBLISHED
    assert read([672, 336], image_grid_pinpoints=[[672, 336]]) == AnyresTokens(((672, 336),), 336, 24)


@pytest.mark.parametrize(
    ("pinpoints", "keys", "message"),
    [
        ([[672, 336]], {"size": 3}, "image_grid_pinpoints must be those of config.json, got None"),
        ([[672, 300]], {}, "image_grid_pinpoints must be pairs of multiples of 336"),
        ([[672]], {}, "image_grid_pinpoints must be pairs"),
        ([[0, 336]], {}, "image_grid_pinpoints must be pairs"),
        ([672], {}, "image_grid_pinpoints must be pairs"),
    ],
)
def test_what_cannot_be_is_named(pinpoints: list[Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(*pinpoints, **keys)
