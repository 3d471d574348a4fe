"""Rotary position embedding (Su et al. 2021) in the rotate-half convention of Llama, over the whole head."""

import torch


class Rotary:
    """Cosines and sines of every position, once; one gather per step serves all layers."""

    def __init__(self, head_size: int, max_positions: int, theta: float, device: torch.device) -> None:
        frequencies = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        self._table = torch.stack((angles.cos(), angles.sin()), dim=1).to(device)  # [positions, 2, head_size / 2]

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """[T] int64 -> [T, 2, 1, head_size / 2]: cosines, sines; broadcast over heads.

        Positions past the end take the last one: tokens in flight beyond a request's end, whose result is dropped.
        """
        return self._table.index_select(0, positions.clamp(max=len(self._table) - 1))[:, :, None]


def rotate(heads: torch.Tensor, rotary: torch.Tensor) -> None:
    """Rotates heads [T, num_heads, head_size] in place by `rotary` as `Rotary.at` gives it."""
    cos, sin = rotary[:, 0].to(heads.dtype), rotary[:, 1].to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    turned = torch.addcmul(second * cos, first, sin)
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.copy_(turned)
