"""Rotary position embedding: cosines and sines of a step's positions, and the rotation of heads by them.

Source of the conventions: Su et al. 2021; rotate-half as in Llama, neighbouring pairs as in GPT-J and Cohere.
"""

from dataclasses import dataclass

import torch

from ..blueprint.rope import Rope


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosines and sines [T, 1, rotary_dim / 2] of the step's positions; broadcast over heads."""

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool

    @classmethod
    def at(cls, rope: Rope, positions: torch.Tensor, dtype: torch.dtype) -> "Rotary":
        """positions [T] int64. Angles are computed in float32."""
        frequencies = torch.tensor(rope.inverse_frequencies, dtype=torch.float32, device=positions.device)
        angles = (positions[:, None].float() * frequencies)[:, None]
        factor = rope.attention_factor
        return cls((angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype), rope.interleaved)

    def rotate(self, heads: torch.Tensor) -> None:
        """Mutates heads [T, num_heads, head_dim]: the first rotary_dim elements of each are rotated."""
        size = self.cos.shape[-1]
        turned = heads[..., : 2 * size]
        first, second = (turned[..., ::2], turned[..., 1::2]) if self.interleaved else turned.split(size, dim=-1)
        rotated = torch.addcmul(second * self.cos, first, self.sin)
        first.mul_(self.cos).addcmul_(second, self.sin, value=-1)
        second.copy_(rotated)
