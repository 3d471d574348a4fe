"""Tiles of pictures are those that transformers cuts; what an image processor's configuration may say of them."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import SizeDict
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from hybrid.models.blueprint.config_reader import ConfigReader
from hybrid.models.blueprint.split_tokens import SplitTokens, read_split_tokens
from hybrid.models.blueprint.vision import ImageCost
from tests.multimodal.cases import idefics3

from .test_scaled_tokens import sizes

PUBLISHED = {"Idefics3-8B": SplitTokens(169, 364, 1456), "SmolVLM2-256M": SplitTokens(64, 512, 2048)}


def pixels(width: int, height: int) -> Any:
    """Of a picture that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype=np.uint8), (3, height, width))


@pytest.mark.parametrize(
    "tokens", [*PUBLISHED.values(), SplitTokens(4, 16, 33), SplitTokens(4, 364, 364), SplitTokens(1, 1000, 5000)]
)
def test_tiles_are_those_of_transformers(tokens: SplitTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PilBackend, "resize", lambda self, image, size, **options: pixels(size.width, size.height))
    processor: Any = Idefics3ImageProcessorPil()
    for width, height in sizes(0):
        image = processor.resize(pixels(width, height), SizeDict(longest_edge=tokens.longest_edge))
        image = processor.resize_for_vision_encoder(image, tokens.tile)
        tiles, rows, columns = processor.split_images(image, {"longest_edge": tokens.tile})
        assert tokens.grid(width, height) == (rows, columns)
        assert tokens(width, height).entries == (tokens.most,) * len(tiles)
        assert tokens(width, height).prompt_tokens <= tokens.costliest.prompt_tokens
        assert {tile.shape for tile in tiles} == {(3, tokens.tile, tokens.tile)}


def test_marks_are_those_of_transformers() -> None:
    tokens = SplitTokens(4, 16, 64)
    processor: Any = idefics3.processor(size={"longest_edge": 64})
    for width, height in islice(sizes(2), 300):
        [counted] = processor._get_num_multimodal_tokens([(height, width)]).num_image_tokens
        assert tokens(width, height).prompt_tokens == counted


def test_published_counts() -> None:
    assert PUBLISHED["Idefics3-8B"](1920, 1080) == ImageCost((169,) * 13, 2 * 12 + 3 + 3)
    assert PUBLISHED["SmolVLM2-256M"](1, 10_000) == ImageCost((64,) * 5, 2 * 4 + 4 + 3)
    assert PUBLISHED["SmolVLM2-256M"].costliest == ImageCost((64,) * 17, 2 * 16 + 4 + 3)


def read(**keys: Any) -> SplitTokens:
    return read_split_tokens(ConfigReader(keys, "preprocessor_config.json"), 16, 4, 512)


def test_what_is_read() -> None:
    assert read_split_tokens(None, 14, 2, 364) == PUBLISHED["Idefics3-8B"]
    assert read_split_tokens(None, 16, 4, 512) == PUBLISHED["SmolVLM2-256M"]
    original = Idefics3ImageProcessorPil()
    without_keys = read_split_tokens(ConfigReader({}, "file"), 14, 2, 384)
    assert (without_keys.tile, without_keys.longest_edge) == (
        original.max_image_size["longest_edge"],
        original.size["longest_edge"],
    )
    assert read(size={"longest_edge": 512}, max_image_size={"longest_edge": 256}) == SplitTokens(16, 256, 512)
    whole = read(do_image_splitting=False, max_image_size={"longest_edge": 512})
    assert (whole.longest_edge, whole(4000, 10)) == (None, ImageCost((64,), 3))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"max_image_size": {"longest_edge": 8}}, r"max_image_size\.longest_edge must be between 16 and"),
        ({"max_image_size": {"longest_edge": 80}}, "scale_factor 4 does not divide the 5 patches of 16 pixels"),
        ({"do_resize": False}, "do_resize is False"),
        ({"size": {"height": 28}, "max_image_size": {"longest_edge": 64}}, r"size\.longest_edge is missing"),
    ],
)
def test_what_cannot_be_is_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**keys)
