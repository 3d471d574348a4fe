"""LFM2-VL's pictures, prepared with Pillow, are what transformers' image processor makes of them."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybrid.encoders.families.lfm2_vl import TileProcessor, image_processor
from hybrid.models.blueprint.config_reader import ConfigReader
from hybrid.models.blueprint.tile_tokens import read_tile_tokens
from hybrid.models.blueprint.vision import Vision

from .lfm2_vl_processor import Lfm2VlImageProcessor, Original
from .oracle import picture

SIZES = [(40, 23), (16, 16), (9, 31), (1, 1), (64, 64), (100, 31), (33, 90)]
CONFIGS: list[dict[str, Any]] = [
    {},
    {"use_thumbnail": False, "max_tiles": 6},
    {"do_image_splitting": False},
    {"do_normalize": False, "resample": 3},
    {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
]
TINY = {
    "encoder_patch_size": 4,
    "min_image_tokens": 2,
    "max_image_tokens": 6,
    "tile_size": 16,
    "max_tiles": 4,
    "max_pixels_tolerance": 1.2,
}


def ours(folder: Path, keys: dict[str, Any]) -> TileProcessor:
    (folder / "preprocessor_config.json").write_text(json.dumps(keys), encoding="utf-8")
    tokens = read_tile_tokens(ConfigReader(keys), 4, 2)
    made = image_processor({}, folder, Vision({}, image_token_id=3, tokens=tokens))
    assert made is not None
    return made


def differences(made: TileProcessor, original: Any, sizes: Sequence[tuple[int, int]]) -> list[float]:
    """Largest of every tile's pixel values; everything else is equal."""
    found = []
    for seed, size in enumerate(sizes):
        image = picture(seed, *size)
        processed, features = made(image), original([image], return_row_col_info=True, return_tensors="pt")
        assert len(processed.inputs) == len(features["pixel_values"])
        assert processed.parts.count(made.image_token_id) == len(processed.inputs)
        for index, entry in enumerate(processed.inputs):
            real = features["pixel_attention_mask"][index].bool()
            assert entry.arrays["spatial_shapes"].tolist() == [features["spatial_shapes"][index].tolist()]
            assert entry.runs == (int(real.sum()) // 4,)
            expected = features["pixel_values"][index][real].numpy()
            found.append(float(np.abs(entry.arrays["pixel_values"][0] - expected).max()))
    return found


@pytest.mark.parametrize("keys", CONFIGS, ids=str)
def test_tiles_are_those_of_transformers(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**TINY, **keys}
    assert max(differences(ours(tmp_path, keys), Lfm2VlImageProcessor(**keys), SIZES)) < 1e-5


@pytest.mark.skipif(find_spec("torchvision") is None, reason="transformers' own image processor needs torchvision")
@pytest.mark.parametrize("keys", CONFIGS, ids=str)
def test_pixels_are_those_of_torchvision(tmp_path: Path, keys: dict[str, Any]) -> None:
    """But for rounding: the two resize with weights of different precision."""
    keys = {**TINY, **keys}
    made = ours(tmp_path, keys)
    step = float(1 / made.std.min())  # from one of 256 values to the next
    assert max(differences(made, Original(**keys), SIZES)) < 1.5 * step


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image_std": 0}, "image_std and rescale_factor positive"),
        ({"image_mean": [1, 2]}, "cannot be read"),
        ({"image_mean": "grey"}, "cannot be read"),
        ({"resample": 77}, "77 is not a valid"),
        ({"rescale_factor": 0}, "must be finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_what_cannot_be_is_named(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ours(tmp_path, {**TINY, **keys})
