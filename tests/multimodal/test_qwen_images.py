"""Pictures of Qwen's families are kept as bytes; the tower reads what transformers' image processor makes of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from hybrid.encoders.families.qwen2_5_vl import PatchEncoder, PatchProcessor, image_processor
from hybrid.models.blueprint.config_reader import ConfigReader
from hybrid.models.blueprint.scaled_tokens import read_scaled_tokens
from hybrid.models.blueprint.vision import Vision
from hybrid.runner.loading import load

from .oracle import Oracle, all_cases, picture

PATCHES = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
SIZES = [(40, 23), (16, 16), (9, 31), (1, 1), (64, 64), (100, 31), (3, 500)]
CONFIGS: list[dict[str, Any]] = [
    {},
    {"size": {"shortest_edge": 64, "longest_edge": 1000}},
    {"do_normalize": False, "resample": 2},
    {"do_rescale": False, "image_mean": [100, 120, 90], "image_std": [50, 60.5, 70]},
    {"do_rescale": False, "do_normalize": False},
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PatchEncoder:
    oracle = Oracle(all_cases()["qwen2_5_vl: windows"], tmp_path_factory.mktemp("checkpoint"))
    loaded = load(oracle.folder, torch.float32).encoder
    assert isinstance(loaded, PatchEncoder)
    return loaded


def made(folder: Path, original: Any) -> PatchProcessor:
    original.save_pretrained(folder)
    tokens = read_scaled_tokens(ConfigReader(original.to_dict()), PATCHES, (1, 2))
    processor = image_processor({"vision_config": {}}, folder, Vision({}, 3, tokens))
    assert processor is not None
    return processor


@pytest.mark.parametrize("keys", CONFIGS, ids=str)
def test_patches_are_those_of_transformers(tmp_path: Path, encoder: PatchEncoder, keys: dict[str, Any]) -> None:
    """To the last bit, each alone and all together."""
    original: Any = Qwen2VLImageProcessorPil(patch_size=4, **keys)
    processor = made(tmp_path, original)
    pictures = [picture(seed, *size) for seed, size in enumerate(SIZES)]
    inputs = [entry for image in pictures for entry in processor(image).inputs]
    for images, entries in [(pictures, inputs), *(([image], [entry]) for image, entry in zip(pictures, inputs))]:
        expected, batch = original(images, return_tensors="pt"), encoder._batch(entries)
        assert batch.keys() == expected.keys()
        assert torch.equal(batch["pixel_values"], expected["pixel_values"].float())
        assert torch.equal(batch["image_grid_thw"], expected["image_grid_thw"])
    for entry in inputs:
        assert entry.grid is not None
        assert entry.arrays["image_grid_thw"].tolist() == [[1, 2 * entry.grid[0], 2 * entry.grid[1]]]


def test_a_picture_takes_three_bytes_a_pixel(tmp_path: Path) -> None:
    processor = made(tmp_path, Qwen2VLImageProcessorPil(patch_size=4, size={"shortest_edge": 1, "longest_edge": 10**7}))
    [entry] = processor(picture(1, 800, 600)).inputs
    assert sum(array.nbytes for array in entry.arrays.values()) < 3.01 * 800 * 600
    assert entry.runs == (100 * 75,)
