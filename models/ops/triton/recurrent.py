"""TritonRecurrent: the operations of recurrent layers over a mixed batch, by Triton's kernels."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from ...context import DecodeContext, ForwardContext, StateCache
from ..deferred import Recorder
from ..recurrent_plan import RecurrentRows
from . import delta_rule, selective
from .recurrent_kernels import OURS, Kernel, RecurrentKernels
from .recurrent_tables import RecurrentTables


@dataclass(frozen=True, slots=True)
class TritonRecurrent:
    """The plan of one step for all recurrent layers; see `dispatch.RecurrentRun`."""

    tables: RecurrentTables
    recorder: Recorder["TritonRecurrent"] | None
    kernels: RecurrentKernels = OURS

    @classmethod
    def plan(cls, context: ForwardContext, kernels: RecurrentKernels = OURS) -> "TritonRecurrent":
        """The tables of the step. kernels: who computes."""
        rows = RecurrentRows.of(context)
        recorder = Recorder.of(context, rows, lambda deferred: cls.of(deferred, kernels))
        return replace(cls.of(rows, kernels), recorder=recorder)

    @classmethod
    def of(cls, rows: RecurrentRows, kernels: RecurrentKernels = OURS) -> "TritonRecurrent":
        """The plan for `rows`, of which none is deferred."""
        return cls(RecurrentTables.of(rows, plain=kernels != OURS), None, kernels)

    @classmethod
    def of_decodes(cls, context: DecodeContext) -> "TritonRecurrent":
        """The plan for a step that a graph replays."""
        return cls(RecurrentTables.of_decodes(context.state_slots[context.rows], context.positions), None)

    def conv(
        self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, cache: StateCache
    ) -> torch.Tensor:
        if self.recorder is not None:
            self.recorder.record((inputs,), lambda run, x: run.conv(x, weight, bias, cache))
        out = inputs.new_empty(inputs.shape)
        kernels = self.kernels.conv_decodes, self.kernels.conv_chunks
        return self._run(*kernels, out, inputs, weight, bias, cache.conv)

    def scan(
        self,
        inputs: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        if self.recorder is not None:
            self.recorder.record((inputs, dt, b, c), lambda run, x, dt, b, c: run.scan(x, dt, a, b, c, cache))
        out = inputs.new_empty(inputs.shape, dtype=torch.float32)
        kernels = self.kernels.ssd_decodes, self.kernels.ssd_chunks
        return self._run(*kernels, out, inputs, dt, a, b, c, cache.ssm)

    def selective_scan(
        self,
        inputs: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        if self.recorder is not None:
            self.recorder.record((inputs, dt, b, c), lambda run, x, dt, b, c: run.selective_scan(x, dt, a, b, c, cache))
        return selective.scan(self.tables, inputs, dt, selective.Maps(a, b, c), cache.ssm)

    def gated_scan(self, inputs: torch.Tensor, log_decay: torch.Tensor, cache: StateCache) -> torch.Tensor:
        if self.recorder is not None:
            self.recorder.record((inputs, log_decay), lambda run, x, g: run.gated_scan(x, g, cache))
        return selective.scan(self.tables, inputs, log_decay, None, cache.ssm[:, None])

    def delta_rule(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        inputs = (query, key, value, log_decay, beta)
        if self.recorder is not None:
            self.recorder.record(inputs, lambda run, q, k, v, g, beta: run.delta_rule(q, k, v, g, beta, cache))
        # layers of which other tensors are shorter than float32 do not need its products
        return delta_rule.delta_rule(self.tables, *inputs, cache.ssm, exact=cache.conv.dtype == torch.float32)

    def _run(self, decodes: Kernel, chunks: Kernel, out: torch.Tensor, *inputs: Any) -> torch.Tensor:
        """The rows with one token, then the others. Mutates `out`, and the states, the last of the inputs."""
        if self.tables.decodes is not None:
            out = decodes(self.tables, *inputs, out)
        if self.tables.chunks is not None:
            out = chunks(self.tables, *inputs, out)
        return out
