"""The vision tower for inference equals the reference's, one picture or several at a time."""

import pytest
import torch

from hybrid.encoders.vit import VisionTower
from hybrid.models.native_config import NativeVisionConfig
from hybrid.models.reference import VisionTower as ReferenceTower


def config_of(image_size: int, patch_size: int, merge_size: int) -> NativeVisionConfig:
    return NativeVisionConfig(
        image_size=image_size,
        patch_size=patch_size,
        merge_size=merge_size,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        layer_norm_eps=1e-6,
    )


def towers(config: NativeVisionConfig, dtype: torch.dtype = torch.float32) -> tuple[ReferenceTower, VisionTower]:
    reference = ReferenceTower(config, 10).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return reference, VisionTower(config, lambda name: reference.state_dict()[name].to(dtype))


@pytest.mark.parametrize(("image_size", "patch_size", "merge_size"), [(16, 4, 2), (12, 2, 3), (8, 4, 1), (8, 8, 1)])
@torch.inference_mode()
def test_embeddings_equal_the_reference(image_size: int, patch_size: int, merge_size: int) -> None:
    config = config_of(image_size, patch_size, merge_size)
    reference, tower = towers(config)
    pixels = torch.rand(5, 3, image_size, image_size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    expected = reference(pixels)
    assert expected.shape == (5, config.num_image_tokens, 10)
    torch.testing.assert_close(tower(pixels), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(tower(pixels[2:3]), expected[2:3], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_bfloat16_stays_close() -> None:
    reference, tower = towers(config_of(16, 4, 2), torch.bfloat16)
    pixels = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    assert torch.cosine_similarity(tower(pixels).float(), reference(pixels), dim=-1).min() > 0.98


def test_pictures_of_another_size_are_refused() -> None:
    _, tower = towers(config_of(16, 4, 2))
    with pytest.raises(ValueError, match=r"\[1, 3, 8, 8\], expected \[n, 3, 16, 16\]"):
        tower(torch.zeros(1, 3, 8, 8))
