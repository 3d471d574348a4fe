"""Positions of texts with images are those of transformers' `get_rope_index`, of every part of a text."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageTextToText, PreTrainedConfig

from hybrid.models.image_positions import ImagePositions
from tests.models.families.cases import qwen2_5_vl, qwen3_5, qwen3_vl

MERGE = 2  # patches per side of a token
KINDS: dict[str, PreTrainedConfig] = {
    "qwen2_5_vl": qwen2_5_vl.CASES["untied"],
    "qwen3_vl": qwen3_vl.CASES["tied"],
    "qwen3_5": qwen3_5.CASES["untied"],
}
# Tokens between and around images, and (rows, columns) of the images.
Layout = list[int | tuple[int, int]]
LAYOUTS: dict[str, Layout] = {
    "in the middle": [5, (3, 4), 7],
    "first": [(2, 6), 3],
    "last": [4, (5, 2)],
    "alone": [(3, 3)],
    "side by side": [2, (2, 3), (4, 1), (1, 4), 6],
    "one token": [3, (1, 1), 2],
    "one row, one column": [1, (1, 7), 1, (7, 1), 1],
}


@cache
def model(kind: str) -> Any:
    auto: Any = AutoModelForImageTextToText
    return auto.from_config(KINDS[kind]).model


def random_layout(seed: int) -> Layout:
    rng = np.random.default_rng(seed)
    layout: Layout = []
    for _ in range(int(rng.integers(1, 7))):
        if rng.random() < 0.7:
            layout.append(int(rng.integers(1, 9)))
        rows, columns = rng.integers(1, 9, 2).tolist()
        layout.append((rows, columns))
    return [*layout, int(rng.integers(1, 5))] if rng.random() < 0.5 else layout


def ours(layout: Layout) -> tuple[ImagePositions, int]:
    """Positions, and the number of tokens."""
    offsets, grids, length = [], [], 0
    for item in layout:
        if isinstance(item, tuple):
            offsets.append(length)
            grids.append(item)
        length += item[0] * item[1] if isinstance(item, tuple) else item
    return ImagePositions.of(offsets, grids), length


def of_transformers(kind: str, layout: Layout) -> tuple[NDArray[np.int64], int]:
    """[3, tokens], and what is added to the index of every token behind.

    Images without a token between them would be one to transformers: every second is a video of one picture.
    """
    types: list[int] = []
    grids: dict[int, list[tuple[int, int, int]]] = {1: [], 2: []}
    for index, item in enumerate(layout):
        if isinstance(item, tuple):
            grids[1 + index % 2].append((1, item[0] * MERGE, item[1] * MERGE))
            types += [1 + index % 2] * (item[0] * item[1])
        else:
            types += [0] * item
    images, videos = (torch.tensor(grids[which]) if grids[which] else None for which in (1, 2))
    positions, delta = model(kind).get_rope_index(
        torch.zeros((1, len(types)), dtype=torch.int64),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=images,
        video_grid_thw=videos,
    )
    return positions[:, 0].numpy(), int(delta)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [*LAYOUTS.values(), *map(random_layout, range(40))], ids=str)
def test_positions_are_those_of_transformers(kind: str, layout: Layout) -> None:
    positions, length = ours(layout)
    expected, delta = of_transformers(kind, layout)
    np.testing.assert_array_equal(positions.at(0, length), expected)
    assert positions.shift == delta
    assert positions.end == length - (layout[-1] if isinstance(layout[-1], int) else 0)
    np.testing.assert_array_equal(positions.at(length, 3), np.tile(np.arange(length, length + 3) + delta, (3, 1)))


@pytest.mark.parametrize("layout", [LAYOUTS["side by side"], random_layout(3)], ids=str)
def test_any_part_has_the_positions_that_it_has_in_the_whole(layout: Layout) -> None:
    positions, length = ours(layout)
    whole = positions.at(0, length + 2)
    for first in range(length + 2):
        for last in range(first, length + 2):
            np.testing.assert_array_equal(positions.at(first, last - first), whole[:, first:last])
