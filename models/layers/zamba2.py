"""Zamba2's hybrid layers: blocks of attention and MLP that several layers share, each with its low-rank adapters."""

from collections.abc import Sequence

import torch

from ..blueprint import zamba2
from ..ops.elementwise import activate_and_multiply
from ..weights import Weights
from . import rotary
from .linear import Linear
from .mamba2 import Mamba2
from .norm import Norm
from .step import Step


class Adapter:
    """Low-rank additions to several projections of the same input, side by side: [T, in] -> [T, sum of outs]."""

    def __init__(self, names: Sequence[str], weights: Weights) -> None:
        self._down = Linear.load(weights, [f"{name}.0" for name in names])
        self._up = [Linear.load(weights, (f"{name}.1",)) for name in names]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        inner = self._down(x).chunk(len(self._up), dim=-1)
        return torch.cat([up(part) for up, part in zip(self._up, inner)], dim=-1)


class SharedBlock:
    """See `blueprint.zamba2.SharedBlock`. Built once; knows neither caches nor adapters, its callers bring them."""

    def __init__(self, block: zamba2.SharedBlock, weights: Weights) -> None:
        attention, mlp = f"{block.name}.self_attn", f"{block.name}.feed_forward"
        self._block = block
        if block.rope is not None:
            rotary.constants(block.rope, weights.device)
        self._attention_norm = Norm(block.attention_norm, weights)
        self._qkv = Linear.load(weights, [f"{attention}.{projection}_proj" for projection in "qkv"])
        self._out = Linear.load(weights, (f"{attention}.o_proj",))
        self._mlp_norm = Norm(block.mlp_norm, weights)
        self._gate_up = Linear.load(weights, (f"{mlp}.gate_up_proj",), block.mlp_bias)
        self._down = Linear.load(weights, (f"{mlp}.down_proj",), block.mlp_bias)

    def __call__(
        self, x: torch.Tensor, step: Step, cache_index: int, attention_adapter: Adapter | None, mlp_adapter: Adapter
    ) -> torch.Tensor:
        """x [T, hidden_size] -> the same shape. Mutates the cache of that index."""
        block, tokens = self._block, x.shape[0]
        # 1. attention over the input beside the embeddings
        x = self._attention_norm(torch.cat((x, step.embeddings), dim=-1))
        projected = self._qkv(x)
        if attention_adapter is not None:
            projected = projected + attention_adapter(x)
        heads = projected.view(tokens, -1, block.head_dim)
        if block.rope is not None:
            step.rotary(block.rope).rotate(heads, block.num_heads + block.num_kv_heads)
        key_value = heads[:, block.num_heads :].view(tokens, 2, block.num_kv_heads, block.head_dim)
        run, cache = step.attention(cache_index, None, block.num_heads)
        attended = run(heads[:, : block.num_heads], key_value, cache, block.scale)
        # 2. MLP
        x = self._mlp_norm(self._out(attended.reshape(tokens, -1)))
        return self._down(activate_and_multiply(block.activation, self._gate_up(x) + mlp_adapter(x)))


class SharedHybrid:
    """See `blueprint.zamba2.SharedHybrid`."""

    def __init__(self, part: zamba2.SharedHybrid, block: SharedBlock, weights: Weights, cache_index: int) -> None:
        """block: that of the part, built. Caches: keys and values, then the mixer's state."""
        adapters = part.adapters
        self._block = block
        self._cache_index = cache_index
        self._attention_adapter = None if adapters.attention is None else Adapter(adapters.attention, weights)
        self._mlp_adapter = Adapter((adapters.mlp,), weights)
        self._linear = Linear.load(weights, (part.linear,))
        self._norm = Norm(part.norm, weights)
        self._mixer = Mamba2(part.mixer, weights, cache_index + 1)

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        shared = self._block(x, step, self._cache_index, self._attention_adapter, self._mlp_adapter)
        return self._mixer(self._norm(x + self._linear(shared, step.lora)), step)
