"""Tokens of pictures that are scaled within limits are those of transformers' arithmetic; what an image processor's
configuration may say of the limits."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from hybrid.models.blueprint.config_reader import ConfigReader
from hybrid.models.blueprint.preprocessor import read_preprocessor
from hybrid.models.blueprint.scaled_tokens import ScaledTokens, read_scaled_tokens
from hybrid.models.blueprint.vision import ImageCost

PUBLISHED = {"Qwen2.5-VL": ScaledTokens(28, 56 * 56, 12_845_056), "Qwen3-VL": ScaledTokens(32, 65_536, 16_777_216)}
CASES = [
    *PUBLISHED.values(),
    ScaledTokens(8, 6 * 64, 12 * 64),
    ScaledTokens(8, 1, 64),
    ScaledTokens(8, 64, 64),
    ScaledTokens(28, 100_000, 200_000),
    ScaledTokens(32, 3_000_000, 3_000_001),
]


def sizes(seed: int) -> Iterator[tuple[int, int]]:
    """Of all orders of magnitude, none too thin; those around whole tokens among them."""
    rng = np.random.default_rng(seed)
    for _ in range(3000):
        short = int(np.exp(rng.uniform(0, np.log(8000))))
        ratio = 1.0 if rng.random() < 0.1 else np.exp(rng.uniform(0, np.log(200)))
        long = min(int(short * ratio), 200 * short)
        yield (short, long) if rng.random() < 0.5 else (long, short)
    for width in range(1, 200):
        yield width, 200 * width
        yield width, 28


@pytest.mark.parametrize("tokens", CASES)
def test_tokens_are_those_of_transformers(tokens: ScaledTokens) -> None:
    counts = []
    for width, height in sizes(0):
        rows, columns = tokens.grid(width, height)
        resized = smart_resize(height, width, tokens.side, tokens.min_pixels, tokens.max_pixels)
        assert (rows * tokens.side, columns * tokens.side) == resized
        assert tokens(width, height) == ImageCost((rows * columns,), 2)
        counts.append(rows * columns)
    assert min(counts) >= tokens.least
    assert max(counts) <= tokens.most == tokens.costliest.entries[0]


@pytest.mark.parametrize("tokens", PUBLISHED.values(), ids=list(PUBLISHED))
def test_the_smallest_and_the_largest_picture_of_published_models(tokens: ScaledTokens) -> None:
    assert tokens(1, 1).entries == (tokens.least,)
    assert tokens(8000, 8000) == tokens.costliest == ImageCost((16384,), 2)
    assert min(tokens(*size).entries[0] for size in sizes(1)) == tokens.least


def test_thin_pictures_may_be_the_largest() -> None:
    tokens = ScaledTokens(8, 64, 12 * 64)
    assert tokens(8, 1600).entries == (tokens.most,) == (48,)


@pytest.mark.parametrize("size", [(1, 201), (10_000, 1)])
def test_a_picture_too_thin_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="absolute aspect ratio"):
        smart_resize(*size)
    with pytest.raises(ValueError, match=rf"an image of {size[0]} x {size[1]} pixels is too thin.*200 times"):
        PUBLISHED["Qwen3-VL"](*size)


TOWER = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}


def read(**keys: Any) -> tuple[int, int]:
    tokens = read_scaled_tokens(ConfigReader(keys, "preprocessor_config.json"), TOWER, (4, 16384))
    assert tokens.side == 28
    return tokens.min_pixels, tokens.max_pixels


def test_limits_under_all_spellings() -> None:
    assert read_scaled_tokens(None, TOWER, (4, 16384)) == PUBLISHED["Qwen2.5-VL"]
    assert read() == (3136, 1_003_520)
    assert read(min_pixels=3136, max_pixels=12_845_056) == (3136, 12_845_056)
    assert read(size={"shortest_edge": 65_536, "longest_edge": 16_777_216}) == (65_536, 16_777_216)
    assert read(size={"shortest_edge": 65_536, "longest_edge": 16_777_216}, min_pixels=4000) == (4000, 16_777_216)
    assert read(min_pixels=5000, size={"min_pixels": 5000, "max_pixels": 10_000}, max_pixels=10_000) == (5000, 10_000)


def test_patches_where_the_image_processor_does_not_say_them() -> None:
    with pytest.raises(ValueError, match="patch_size must be the vision tower's 16, got 14"):
        read_scaled_tokens(ConfigReader({}, "file"), TOWER | {"patch_size": 16}, (4, 16384))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"patch_size": 16}, r"preprocessor_config\.json\.patch_size must be the vision tower's 14, got 16"),
        ({"merge_size": 3}, "merge_size must be the vision tower's 2, got 3"),
        ({"temporal_patch_size": 1}, "temporal_patch_size must be the vision tower's 2, got 1"),
        ({"do_resize": False}, "do_resize is False"),
        ({"size": {"height": 28, "width": 28}}, r"preprocessor_config\.json\.size\.shortest_edge is missing"),
        ({"size": 28}, "size must be an object, got 28"),
        ({"min_pixels": 0}, "min_pixels must be between 1 and"),
        ({"min_pixels": 3136, "max_pixels": 3135}, r"max_pixels must be at least min_pixels \(3136\)"),
        ({"min_pixels": 1, "max_pixels": 783}, r"max_pixels must be at least .* one token's 784, got 783"),
    ],
)
def test_what_cannot_be_is_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**keys)


def test_the_file_that_transformers_would_take(tmp_path: Path) -> None:
    def write(name: str, **keys: Any) -> None:
        (tmp_path / name).write_text(json.dumps(keys), encoding="utf-8")

    def found() -> Any:
        reader = read_preprocessor(tmp_path)
        return None if reader is None else reader.get("max_pixels")

    assert found() is None
    write("preprocessor_config.json", max_pixels=1)
    assert found() == 1
    write("processor_config.json", processor_class="Other")
    assert found() == 1
    write("processor_config.json", image_processor={"max_pixels": 2})
    assert found() == 2
