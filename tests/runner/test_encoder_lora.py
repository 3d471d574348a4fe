"""EncoderLora: an encoder that an adapter changes is one with other weights, and afterwards the old one again."""

import numpy as np
import pytest
import torch

from hybrid.adapters.weights import AdapterWeights, LoraMatrices
from hybrid.checkpoints import find_checkpoint
from hybrid.encoders.vit import VisionTower
from hybrid.models.native_config import NativeVisionConfig
from hybrid.models.reference import VisionTower as ReferenceTower
from hybrid.runner.encoder_lora import EncoderLora
from hybrid.runner.loading import load
from hybrid.runner.lora_cache import LoraCache
from hybrid.scheduler.plan import LoadAdapter

CONFIG = NativeVisionConfig(
    image_size=16,
    patch_size=4,
    merge_size=2,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    layer_norm_eps=1e-6,
)
CPU = torch.device("cpu")


def matrices(rank: int, tower: VisionTower, seed: int, end: str) -> AdapterWeights:
    """Of the projections whose names end so."""
    generator = torch.Generator().manual_seed(seed)
    return AdapterWeights(
        rank,
        {
            name: LoraMatrices(
                torch.randn(rank, module.in_features, generator=generator),
                torch.randn(module.out_features, rank, generator=generator) / rank,
            )
            for name, module in tower.projections.items()
            if name.endswith(end)
        },
    )


@torch.inference_mode()
def test_one_adapter_at_a_time() -> None:
    reference = ReferenceTower(CONFIG, 10).eval()
    tensors = {name: tensor + 0.2 * torch.randn(tensor.shape) for name, tensor in reference.state_dict().items()}
    tower = VisionTower(CONFIG, tensors.__getitem__)
    adapters = {
        1: matrices(3, tower, 1, "qkv"),
        2: matrices(11, tower, 2, ""),
        3: AdapterWeights(1, {}),
    }
    lora = EncoderLora(tower.projections, tower.projections)
    cache = LoraCache(lora.sites, tower.projections, 8, torch.float32, CPU)
    for lora_id, units in ((1, [5]), (2, [1, 7]), (3, [0])):
        cache.load(LoadAdapter(lora_id, np.array(units)), adapters[lora_id])
    pixels = torch.rand(3, 3, 16, 16) * 2 - 1
    plain = tower(pixels)
    seen = {}
    for lora_id in (1, 2, 3, 1):
        changed = dict(tensors)
        for name, entry in adapters[lora_id].modules.items():
            changed[f"{name}.weight"] = tensors[f"{name}.weight"] + entry.b @ entry.a
        expected = VisionTower(CONFIG, changed.__getitem__)(pixels)
        with lora.applied(cache.units(lora_id)):
            seen[lora_id] = tower(pixels)
        torch.testing.assert_close(seen[lora_id], expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(tower(pixels), plain)
    assert torch.equal(seen[3], plain)
    assert (seen[1] - plain).abs().max() > 0.1 and (seen[2] - seen[1]).abs().max() > 0.1
    with lora.applied(cache.units(0)):
        assert torch.equal(tower(pixels), plain)


def test_what_fails_leaves_nothing_applied() -> None:
    layer = torch.nn.Linear(2, 3)
    lora = EncoderLora({"layer": layer}, ["layer"])
    cache = LoraCache(lora.sites, ["layer"], 1, torch.float32, CPU)
    ones = LoraMatrices(torch.ones(1, 2), torch.ones(3, 1))
    cache.load(LoadAdapter(1, np.array([0])), AdapterWeights(1, {"layer": ones}))
    x = torch.ones(1, 2)
    plain = layer(x)
    with lora.applied(cache.units(1)):
        torch.testing.assert_close(layer(x), plain + 2)
    with pytest.raises(RuntimeError), lora.applied(cache.units(1)):
        layer(torch.ones(1, 3))
    assert torch.equal(layer(x), plain)


def test_projections_that_are_no_targets_stay_as_they_are() -> None:
    layer = torch.nn.Linear(2, 3)
    lora = EncoderLora({"layer": layer}, ["model.layers.0.mlp"])
    assert lora.sites == []
    with lora.applied(np.array([0])):
        assert layer(torch.ones(1, 2)).shape == (1, 3)


def test_the_bundled_model_has_places_for_all_its_targets() -> None:
    loaded = load(find_checkpoint("tiny"), torch.float32)
    assert loaded.encoder is not None and loaded.model.vision is not None
    shapes = {name: tuple(module.weight.shape) for name, module in loaded.encoder.projections.items()}
    assert shapes == loaded.model.vision.lora_targets()
