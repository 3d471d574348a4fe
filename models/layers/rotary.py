"""Rotary position embedding: cosines and sines of a step's positions, and the rotation of heads by them.

Source of the conventions: Su et al. 2021; rotate-half as in Llama, neighbouring pairs as in GPT-J and Cohere.
"""

from dataclasses import dataclass
from functools import cache

import torch

from ..blueprint.rope import Rope
from ..ops.elementwise import rotate


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosines and sines [T, rotary_dim / 2] of the step's positions."""

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool

    @classmethod
    def at(cls, rope: Rope, positions: torch.Tensor, dtype: torch.dtype) -> "Rotary":
        """positions [T] int64, or [3, T] for a rope with `axes`. Angles are computed in float32."""
        frequencies, axes = constants(rope, positions.device)
        if positions.ndim == 1:
            turns = positions[:, None]
        else:
            assert axes is not None, "three positions for a rope of one"
            turns = positions.t().index_select(1, axes)
        angles = turns.float() * frequencies
        factor = rope.attention_factor
        return cls((angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype), rope.interleaved)

    def rotate(self, heads: torch.Tensor, count: int) -> None:
        """Mutates heads [T, all heads, head_dim]: the first rotary_dim elements of the first `count` are rotated."""
        rotate(heads, count, self.cos, self.sin, self.interleaved)


@cache
def constants(rope: Rope, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Inverse frequencies and axes on the device. Kept, and first asked for when a layer is built: a step would wait
    for the copy from the host."""
    axes = None if rope.axes is None else torch.tensor(rope.axes, device=device)
    return torch.tensor(rope.inverse_frequencies, dtype=torch.float32, device=device), axes
