"""SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x)), gate and up in one product."""

import torch
import torch.nn.functional as F

from .linear import Linear


class SwiGLU:
    """[T, hidden_size] -> [T, hidden_size]; weights [intermediate, hidden], [intermediate, hidden], [hidden, inter]."""

    def __init__(self, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> None:
        self.gate_up = Linear((gate, up))
        self.down = Linear((down,))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))
