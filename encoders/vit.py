"""VisionTower: the native vision tower for inference, pictures -> image tokens, several pictures per call.

A pre-LN ViT (Dosovitskiy et al. 2021), then patches merged by neighbourhood and a two-layer projector. Built from
named tensors; knows neither files nor models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn


class VisionSizes(Protocol):
    """What the tower reads of a vision configuration (`vision_config` of config.json)."""

    @property
    def image_size(self) -> int: ...
    @property
    def patch_size(self) -> int: ...
    @property
    def merge_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def layer_norm_eps(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Affine:
    """A weight and its bias: a LayerNorm [size], or patches to features [out, in]."""

    weight: torch.Tensor
    bias: torch.Tensor

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def norm(self, x: torch.Tensor, eps: float) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, eps)


@dataclass(frozen=True, slots=True)
class _Block:
    norm1: _Affine
    qkv: nn.Linear
    proj: nn.Linear
    norm2: _Affine
    fc1: nn.Linear
    fc2: nn.Linear


class VisionTower:
    """Call it: pixel values [n, 3, S, S] in [-1, 1], on `device` -> [n, num_image_tokens, decoder hidden size].

    get: a tensor by its name in the checkpoint without the prefix `vision.`, in the dtype and on the device to run
    with. Each is asked for once and kept.
    """

    def __init__(self, sizes: VisionSizes, get: Callable[[str], torch.Tensor]) -> None:
        def affine(name: str) -> _Affine:
            return _Affine(get(f"{name}.weight"), get(f"{name}.bias"))

        def linear(name: str) -> nn.Linear:
            weight, bias = get(f"{name}.weight"), get(f"{name}.bias")
            outputs, inputs = weight.shape
            module = self.projections[name] = nn.Linear(inputs, outputs, device="meta")
            module.weight, module.bias = (nn.Parameter(tensor, requires_grad=False) for tensor in (weight, bias))
            return module

        self.sizes = sizes
        self.projections: dict[str, nn.Linear] = {}  # that adapters may change, by name
        patch = affine("patch_embed")
        self.device, self.dtype = patch.weight.device, patch.weight.dtype
        self._patch = _Affine(patch.weight.flatten(1), patch.bias)  # [hidden, 3 * patch_size ** 2]
        self._positions = get("pos_embed")
        self._blocks = tuple(
            _Block(
                norm1=affine(f"blocks.{index}.norm1"),
                qkv=linear(f"blocks.{index}.attn.qkv"),
                proj=linear(f"blocks.{index}.attn.proj"),
                norm2=affine(f"blocks.{index}.norm2"),
                fc1=linear(f"blocks.{index}.mlp.fc1"),
                fc2=linear(f"blocks.{index}.mlp.fc2"),
            )
            for index in range(sizes.num_hidden_layers)
        )
        self._norm = affine("norm")
        self._fc1, self._fc2 = linear("projector.fc1"), linear("projector.fc2")

    def __call__(self, pixel_values: torch.Tensor) -> torch.Tensor:
        sizes = self.sizes
        side = sizes.image_size
        if pixel_values.shape[1:] != (3, side, side):
            raise ValueError(f"pixel values have shape {list(pixel_values.shape)}, expected [n, 3, {side}, {side}]")
        count, grid, patch = pixel_values.shape[0], side // sizes.patch_size, sizes.patch_size
        # 1. patches, row-major, each flattened as the convolution's kernel is
        pixels = pixel_values.to(self.dtype).view(count, 3, grid, patch, grid, patch)
        patches = pixels.permute(0, 2, 4, 1, 3, 5).reshape(count, grid * grid, -1)
        x = self._patch.linear(patches) + self._positions
        # 2. transformer
        for block in self._blocks:
            x = x + self._attention(block, block.norm1.norm(x, sizes.layer_norm_eps))
            hidden = F.gelu(block.fc1(block.norm2.norm(x, sizes.layer_norm_eps)))
            x = x + block.fc2(hidden)
        x = self._norm.norm(x, sizes.layer_norm_eps)
        # 3. merge neighbourhoods, row-major inside and outside, and project
        merge = sizes.merge_size
        cells = grid // merge
        x = x.view(count, cells, merge, cells, merge, -1).transpose(2, 3).reshape(count, cells * cells, -1)
        embeddings: torch.Tensor = self._fc2(F.gelu(self._fc1(x)))
        return embeddings

    def _attention(self, block: _Block, x: torch.Tensor) -> torch.Tensor:
        """Every patch sees every patch. [n, patches, hidden]."""
        count, patches, hidden = x.shape
        heads = self.sizes.num_attention_heads
        query, key, value = block.qkv(x).view(count, patches, 3, heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value)
        out: torch.Tensor = block.proj(attended.transpose(1, 2).reshape(count, patches, hidden))
        return out
