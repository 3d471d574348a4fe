"""Who computes attention and scans on a device, as `choice` says; what lies between them asks `choice` itself.

Contract of an implementation, after FlashInfer: `plan_*` once per step does everything that all layers share (index
arithmetic, masks, uploads; any one layer's cache tells sizes and dtype) and returns a run object; calling it once per
layer does the layer's work. Runs read caches and write them; they must treat cache content that no token of the row
wrote (stale blocks, slots of former owners) as absent, also when it is NaN.
"""

from typing import Protocol

import torch

from ..context import AttentionCache, BlockTables, DecodeContext, ForwardContext, StateCache
from . import cpu
from .choice import choose, packages_take_part
from .packages.shapes import RecurrentShapes
from .torch_ops import TorchOps


class AttentionRun(Protocol):
    """One attention layer over the batch of the plan."""

    def __call__(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor | None,
        cache: AttentionCache,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query [T, num_heads, head_size], key_value [T, 2, num_kv_heads, head_size] -> [T, num_heads, head_size].

        Rotary is already applied. Writes key_value into the cache first (None: another layer wrote it), then attends.
        Scores are query . key * scale, then softcap * tanh(scores / softcap) where there is one; sinks [num_heads]
        take part in the softmax as one more score each, without a value.
        """
        ...


class RecurrentRun(Protocol):
    """One recurrent layer's operations over the batch of the plan; call `conv`, then at most one other."""

    def conv(
        self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, cache: StateCache
    ) -> torch.Tensor:
        """Causal depthwise convolution: [T, channels] -> [T, channels]; advances cache.conv.

        weight [kernel, channels], bias [channels].
        """
        ...

    def scan(
        self,
        inputs: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        """h = exp(dt a) h + dt x (outer) b;  y = h . c, in float32; advances cache.ssm.

        inputs x [T, num_heads, head_dim], dt [T, num_heads] (after softplus), a [num_heads] (negative),
        b and c [T, num_groups, state_size] -> y [T, num_heads, head_dim] float32, without the D x term.
        """
        ...

    def selective_scan(
        self,
        inputs: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        """h = exp(dt a) h + b (outer) dt x;  y = c . h, in float32; advances cache.ssm.

        inputs x and dt (after softplus, float32) [T, channels], a [state_size, channels] (negative), b and c
        [T, state_size] -> y [T, channels] float32, without the D x term. h is [state_size, channels].
        """
        ...

    def gated_scan(self, inputs: torch.Tensor, log_decay: torch.Tensor, cache: StateCache) -> torch.Tensor:
        """h = exp(log_decay) h + x, elementwise in float32; advances cache.ssm.

        inputs x and log_decay (at most 0) [T, channels] float32 -> every h [T, channels].
        """
        ...

    def delta_rule(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        """s = exp(log_decay) s;  s = s + key (outer) beta (value - key s);  y = query s; advances cache.ssm.

        All float32: query (scaled) and key [T, num_k_heads, k_head_dim], value [T, num_v_heads, v_head_dim], log_decay
        (at most 0) and beta [T, num_v_heads] -> y [T, num_v_heads, v_head_dim]. Value heads lie grouped by key head.
        """
        ...


class Ops(Protocol):
    """An implementation. captures: a graph may hold `plan_decode_*` and what it gives: no waiting for the device."""

    name: str
    captures: bool

    def plan_attention(
        self,
        context: ForwardContext,
        tables: BlockTables,
        sliding_window: int | None,
        cache: AttentionCache,
        num_heads: int,
    ) -> AttentionRun: ...

    def plan_recurrent(self, context: ForwardContext, cache: StateCache) -> RecurrentRun: ...

    def plan_decode_attention(
        self,
        context: DecodeContext,
        table: torch.Tensor,
        sliding_window: int | None,
        cache: AttentionCache,
        num_heads: int,
    ) -> AttentionRun:
        """table: the one of the context that the layers use."""
        ...

    def plan_decode_recurrent(self, context: DecodeContext) -> RecurrentRun: ...


def select_ops(device: torch.device, shapes: RecurrentShapes | None = None) -> Ops:
    """The implementation for `device`, see `choice`. shapes: of the model; where other packages may compute some of it,
    their functions are tried at these sizes, now."""
    match choose(device):
        case "triton":
            from .triton.ops import TritonOps  # triton is not installed everywhere

            when = packages_take_part(device)
            if shapes is None or when == "never":
                return TritonOps()
            from .packages.choose import choose_kernels, gpu_seconds

            return TritonOps(choose_kernels(device, shapes, gpu_seconds, always=when == "always"))
        case "cpu":
            return cpu.CpuOps()
        case "torch":
            return TorchOps()
