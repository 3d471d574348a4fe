"""TorchRecurrent: the operations of recurrent layers over a mixed batch, in plain torch: one place that splits a batch
into decode rows and chunks and that can replay the rows whose states are deferred.

The operations themselves: `conv`, `ssd` (Mamba-2), `selective` (Mamba-1, RG-LRU), `delta_rule` (gated delta net). Each
is a pair of functions, one for decode rows and one for chunks, over inputs per token, constants, and the states.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..context import ForwardContext, StateCache
from .conv import conv_chunks, conv_decodes
from .deferred import PerToken, Recorder
from .delta_rule import delta_chunks, delta_decodes
from .recurrent_plan import Chunks, Decodes, RecurrentRows, plan_chunks, plan_decodes
from .selective import selective_chunks, selective_decodes
from .ssd import ssd_chunks, ssd_decodes

Constants = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """Both take (plan, *inputs per token, *constants, states) and give [tokens, ...]; they advance the states."""

    decodes: Callable[..., torch.Tensor]
    chunks: Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Operations:
    """Those of which there are several implementations."""

    conv: Operation
    ssd: Operation


TORCH = Operations(conv=Operation(conv_decodes, conv_chunks), ssd=Operation(ssd_decodes, ssd_chunks))
SELECTIVE = Operation(selective_decodes, selective_chunks)
DELTA = Operation(delta_decodes, delta_chunks)


@dataclass(frozen=True, slots=True)
class TorchRecurrent:
    """The plan of one step for all recurrent layers with the same kernel; see `dispatch.RecurrentRun`."""

    decodes: Decodes | None
    chunks: Chunks | None
    recorder: Recorder["TorchRecurrent"] | None
    operations: Operations

    @classmethod
    def plan(cls, context: ForwardContext, cache: StateCache, operations: Operations = TORCH) -> "TorchRecurrent":
        """Index arithmetic for the step; `cache` gives the convolution's kernel. operations: who computes."""
        rows = RecurrentRows.of(context)
        tail = cache.conv.shape[1]
        recorder = Recorder.of(context, rows, lambda deferred: cls.of(deferred, tail))
        return cls.of(rows, tail, recorder, operations)

    @classmethod
    def of(
        cls,
        rows: RecurrentRows,
        tail: int,
        recorder: Recorder["TorchRecurrent"] | None = None,
        operations: Operations = TORCH,
    ) -> "TorchRecurrent":
        """The plan for `rows`."""
        decodes = rows.num_decodes
        return cls(
            plan_decodes(rows) if decodes else None,
            plan_chunks(rows, tail) if decodes < len(rows.lens) else None,
            recorder,
            operations,
        )

    def conv(
        self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, cache: StateCache
    ) -> torch.Tensor:
        """[T, C] -> [T, C], weight [K, C], bias [C]; advances cache.conv [slots, K - 1, C]."""
        return self.apply(self.operations.conv, (inputs,), (weight, bias), cache.conv)

    def scan(
        self,
        inputs: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        """x [T, H, P], dt [T, H], a [H], b and c [T, G, N] -> y [T, H, P] float32; advances cache.ssm."""
        return self.apply(self.operations.ssd, (inputs.float(), dt, b.float(), c.float()), (a,), cache.ssm)

    def selective_scan(
        self,
        inputs: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        """x and dt [T, W], a [N, W], b and c [T, N] -> y [T, W] float32; advances cache.ssm [slots, N, W]."""
        return self.apply(SELECTIVE, (inputs.float() * dt, dt, b.float(), c.float()), (a,), cache.ssm)

    def gated_scan(self, inputs: torch.Tensor, log_decay: torch.Tensor, cache: StateCache) -> torch.Tensor:
        """x and log_decay [T, W] float32 -> h [T, W]; advances cache.ssm [slots, W]."""
        one = inputs.new_ones(1, 1)
        ones = one.expand(len(inputs), 1)
        return self.apply(SELECTIVE, (inputs, log_decay, ones, ones), (one,), cache.ssm[:, None])

    def delta_rule(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        """query and key [T, G, K], value [T, H, V], log_decay and beta [T, H] -> y [T, H, V]; advances cache.ssm."""
        return self.apply(DELTA, (query, key, value, log_decay, beta), (), cache.ssm)

    def apply(self, operation: Operation, inputs: PerToken, constants: Constants, states: torch.Tensor) -> torch.Tensor:
        """One operation over the whole batch: decode rows, then chunks. Mutates the states."""
        if self.recorder is not None:
            self.recorder.record(inputs, lambda run, *kept: run.apply(operation, kept, constants, states))
        if self.chunks is None:
            assert self.decodes is not None
            return operation.decodes(self.decodes, *inputs, *constants, states)
        begin = self.chunks.begin
        after = operation.chunks(self.chunks, *(values[begin:] for values in inputs), *constants, states)
        if self.decodes is None:
            return after
        before = operation.decodes(self.decodes, *(values[:begin] for values in inputs), *constants, states)
        return torch.cat((before, after))
