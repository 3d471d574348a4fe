"""How LFM2-VL's pictures are cut, and their tokens, are those of transformers; what its configuration may say."""

from dataclasses import replace
from typing import Any

import pytest

from hybrid.models.blueprint.config_reader import ConfigReader
from hybrid.models.blueprint.tile_tokens import TileTokens, read_tile_tokens
from hybrid.models.blueprint.vision import ImageCost
from tests.multimodal.lfm2_vl_processor import Original

from .test_scaled_tokens import sizes

PUBLISHED = TileTokens(16, 32, 64, 256, 16, (2, 10), 2.0, True)
CASES = [
    PUBLISHED,
    replace(PUBLISHED, thumbnail=False, tiles=(3, 12)),
    replace(PUBLISHED, tiles=None),
    TileTokens(4, 8, 2, 6, 2, (2, 4), 1.2, True),
    TileTokens(4, 12, 30, 30, 2, (1, 5), 0.4, True),
]


@pytest.mark.parametrize("tokens", CASES)
def test_tokens_are_those_of_transformers(tokens: TileTokens) -> None:
    original = Original()
    factor, too_thin = tokens.side // tokens.patch, 0
    entries: list[int] = []
    for width, height in sizes(0):
        more = {"height": height, "width": width, "encoder_patch_size": tokens.patch, "downsample_factor": factor}
        wide, high = original.smart_resize(**more, min_image_tokens=tokens.fewest, max_image_tokens=tokens.largest)
        rows, columns = high // tokens.side, wide // tokens.side
        if rows * columns > tokens.largest:
            too_thin += 1
            with pytest.raises(ValueError, match=f"an image of {width} x {height} pixels is too thin"):
                tokens.whole(width, height)
            continue
        assert tokens.whole(width, height) == (rows, columns)
        large = original._is_image_too_large(
            **more, max_image_tokens=tokens.largest, max_pixels_tolerance=tokens.tolerance
        )
        grid = (1, 1)
        if large and tokens.tiles is not None:
            grid = original._get_grid_layout(height, width, *tokens.tiles, tokens.tile * tokens.side)[:2]
        assert tokens.cut(width, height) == grid[::-1]
        number = grid[0] * grid[1]
        tiles = [tokens.tile**2] * number if number > 1 else []
        pieces = [*tiles, rows * columns] if not tiles or tokens.thumbnail else tiles
        cost = tokens(width, height)
        assert list(cost.entries) == pieces
        assert cost.marks == 2 + (len(pieces) if tiles else 0)
        assert cost.prompt_tokens <= tokens.costliest.prompt_tokens
        entries += pieces
    assert too_thin == 0 or tokens.largest < 256  # of those whose sides differ by up to 200 times
    assert tokens.least <= min(entries)
    assert max(entries) <= tokens.most


def test_a_thin_picture_that_is_cut_needs_no_whole() -> None:
    tokens = TileTokens(4, 8, 2, 6, 2, (2, 4), 1.2, thumbnail=False)
    assert tokens(1000, 8) == ImageCost((4,) * 4, 2 + 4)
    with pytest.raises(ValueError, match="1000 x 8 pixels is too thin"):
        tokens.whole(1000, 8)


def test_published_counts() -> None:
    assert read_tile_tokens(None, 16, 2) == PUBLISHED
    assert [PUBLISHED(side, side) for side in (1, 512)] == [ImageCost((64,), 2), ImageCost((256,), 2)]
    assert PUBLISHED(8000, 8000) == ImageCost((256,) * 10, 2 + 10)


def read(**keys: Any) -> TileTokens:
    return read_tile_tokens(ConfigReader(keys, "preprocessor_config.json"), 16, 2)


def test_what_is_read() -> None:
    assert read() == PUBLISHED
    assert read(do_image_splitting=False, tile_size=64) == replace(PUBLISHED, tiles=None, tile=2)
    assert read(use_thumbnail=False, max_pixels_tolerance=1).thumbnail is False


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"encoder_patch_size": 14}, r"encoder_patch_size is 14.*the vision tower has 16"),
        ({"downsample_factor": 3}, r"downsample_factor is 3.*the model has 2"),
        ({"max_image_tokens": 63}, r"max_image_tokens must be at least min_image_tokens \(64\), got 63"),
        ({"tile_size": 48}, r"tile_size must be a multiple of the pixels per side of a token \(32\), got 48"),
        ({"min_tiles": 11}, r"max_tiles must be at least min_tiles \(11\), got 10"),
        ({"max_tiles": 10**6}, "max_tiles must be between 1 and 100"),
    ],
)
def test_what_cannot_be_is_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**keys)
