"""MLP: down(act(gate(x)) * up(x)) with gate and up in one product (Shazeer 2020), or down(act(up(x)))."""

import torch

from ..blueprint import parts
from ..ops.elementwise import activate, activate_and_multiply
from ..weights import Weights
from .linear import Linear
from .step import Step


class MLP:
    """See `blueprint.parts.MLP`."""

    def __init__(self, part: parts.MLP, weights: Weights) -> None:
        self._part = part
        gate, up, down = (f"{part.name}.{projection}" for projection in part.projections)
        if part.fused is not None:
            self._in = Linear.load(weights, (f"{part.name}.{part.fused}",), part.bias)
        elif part.gated:
            self._in = Linear.load(weights, (gate, up), part.bias, (part.gate_multiplier, 1.0))
        else:
            self._in = Linear.load(weights, (up,), part.bias)
        self._down = Linear.load(weights, (down,), part.bias, (part.down_multiplier,))

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        inner = self._in(x, step.lora)
        if not self._part.gated:
            return self._down(activate(self._part.activation, inner), step.lora)
        return self._down(activate_and_multiply(self._part.activation, inner), step.lora)
