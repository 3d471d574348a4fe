"""Per-layer inputs: one look-up and one projection per step give every layer's vectors. T tokens, L layers."""

import torch

from ..blueprint import per_layer
from ..ops.decode_lora import Lora
from ..ops.elementwise import activate
from ..weights import Weights
from .linear import Linear
from .norm import Norm
from .step import Step


class PerLayerEmbedding:
    """See `blueprint.per_layer.PerLayerEmbedding`."""

    def __init__(self, part: per_layer.PerLayerEmbedding, weights: Weights) -> None:
        self._part = part
        self._table = weights(part.table)
        self._site = weights.site(part.table.removesuffix(".weight"), *self._table.shape, table=True)
        self._projection = Linear.load(weights, (part.projection,), multipliers=(part.hidden_size**-0.5,))
        self._norm = Norm(part.norm, weights)

    def __call__(self, token_ids: torch.Tensor, embeddings: torch.Tensor, lora: Lora | None) -> torch.Tensor:
        """[T], [T, hidden_size] -> [T, L, size]."""
        shape = (self._part.num_layers, self._part.size)
        projected = self._norm(self._projection(embeddings, lora).unflatten(1, shape))
        rows = self._table.index_select(0, token_ids)
        if lora is not None:
            lora.add_rows(self._site, token_ids, rows)
        looked_up = rows.unflatten(1, shape) * self._part.size**0.5
        inputs: torch.Tensor = (projected + looked_up) * 2**-0.5
        return inputs


class PerLayerInput:
    """See `blueprint.per_layer.PerLayerInput`."""

    def __init__(self, part: per_layer.PerLayerInput, weights: Weights) -> None:
        self._part = part
        self._gate = Linear.load(weights, (part.gate,))
        self._down = Linear.load(weights, (part.down,))

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        assert step.per_layer is not None
        return self._down(
            activate(self._part.activation, self._gate(x, step.lora)) * step.per_layer[:, self._part.layer], step.lora
        )
