"""Attention: the projections, norms and rotation around an attention operation."""

import torch

from ..blueprint import parts
from ..weights import Weights
from . import rotary
from .linear import Linear
from .norm import Norm
from .step import Step


class Attention:
    """See `blueprint.parts.Attention`. Full or sliding is the operation's plan, not known here.

    cache_index: of the cache that it reads, whoever writes it.
    """

    def __init__(self, part: parts.Attention, weights: Weights, cache_index: int) -> None:
        self._part = part
        self._cache_index = cache_index
        self._scale = part.head_dim**-0.5 if part.scale is None else part.scale
        q, k, v, o = (f"{part.name}.{projection}" for projection in part.projections)
        count = 1 if part.kv_from is not None else 2 if part.values_are_keys else 3
        factors = [1.0, part.key_multiplier, 1.0]
        self._qkv = Linear.load(weights, [q, k, v][:count], part.qkv_bias, factors[:count], part.in_multiplier)
        self._out = Linear.load(weights, (o,), part.out_bias, (part.out_multiplier,))
        self._q_norm = None if part.q_norm is None else Norm(part.q_norm, weights)
        self._k_norm = None if part.k_norm is None else Norm(part.k_norm, weights)
        self._v_norm = None if part.v_norm is None else Norm(part.v_norm, weights)
        if part.rope is not None:
            rotary.constants(part.rope, weights.device)
        self._sinks = weights.float(f"{part.name}.sinks") if part.sinks else None

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        part, tokens = self._part, x.shape[0]
        # 1. queries (with their gates), keys, values
        projected = self._qkv(x, step.lora)
        gate = None
        if part.output_gate:
            width = 2 * part.num_heads * part.head_dim
            query, gate = projected[:, :width].view(tokens, part.num_heads, -1).chunk(2, dim=-1)
            projected = torch.cat((query.flatten(1), projected[:, width:]), dim=1)
        if part.values_are_keys and part.kv_from is None:
            projected = torch.cat((projected, projected[:, part.num_heads * part.head_dim :]), dim=1)
        heads = projected.view(tokens, -1, part.head_dim)
        query, key = heads[:, : part.num_heads], heads[:, part.num_heads : part.num_heads + part.num_kv_heads]
        value = heads[:, part.num_heads + part.num_kv_heads :]
        # 2. norms and rotation, in place
        for norm, which in ((self._q_norm, query), (self._k_norm, key), (self._v_norm, value)):
            if norm is not None:
                norm.in_place(which if norm.shape[0] == part.head_dim else which.view(tokens, -1))
        if part.rope is not None:
            rotated = part.num_heads + (part.num_kv_heads if part.kv_from is None else 0)
            step.rotary(part.rope).rotate(heads, rotated)
        # 3. attend
        run, cache = step.attention(self._cache_index, part.sliding_window, part.num_heads)
        key_value = None
        if part.kv_from is None:
            key_value = heads[:, part.num_heads :].view(tokens, 2, part.num_kv_heads, part.head_dim)
        attended = run(query, key_value, cache, self._scale, part.softcap, self._sinks)
        if gate is not None:
            attended = attended * torch.sigmoid(gate)
        return self._out(attended.reshape(tokens, -1), step.lora)
