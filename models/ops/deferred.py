"""Recorder: what the recurrent layers of a step were given for the rows whose states are deferred, and its replay.

Knows neither the operations nor who computes them.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from ..context import ForwardContext, Ints
from .recurrent_plan import RecurrentRows
from .transfer import upload

Run = TypeVar("Run")
PerToken = tuple[torch.Tensor, ...]  # each [T, ...]


class Recorder(Generic[Run]):
    """Inputs of every call, until it is known how many tokens of each row count."""

    def __init__(self, rows: RecurrentRows, deferred: Ints, plan: Callable[[RecurrentRows], Run]) -> None:
        """rows: of the whole batch; deferred: which of them; plan: what runs the calls again."""
        self._rows = rows
        self._deferred = deferred
        self._plan = plan
        self._lens = rows.lens[deferred]
        starts = (np.cumsum(rows.lens) - rows.lens)[deferred]
        self._tokens = upload(_spans(starts, self._lens), rows.device)  # flat tokens of the deferred rows
        self._calls: list[tuple[PerToken, Callable[..., Any]]] = []

    @classmethod
    def of(
        cls, context: ForwardContext, rows: RecurrentRows, plan: Callable[[RecurrentRows], Run]
    ) -> "Recorder[Run] | None":
        """For the deferred rows of a batch; None where it has none. Mutates: it will be asked to advance them."""
        if context.deferred is None:
            return None
        recorder = cls(rows, context.deferred.rows, plan)
        context.deferred.record(recorder.advance)
        return recorder

    def record(self, inputs: PerToken, call: Callable[..., Any]) -> None:
        """Mutates: keeps a copy of the deferred rows' inputs; call(run, *inputs) will advance the states."""
        self._calls.append((tuple(values.index_select(0, self._tokens) for values in inputs), call))

    def advance(self, lengths: Ints) -> None:
        """Mutates the caches: every layer's states of the deferred rows after their first `lengths` tokens."""
        assert ((lengths >= 1) & (lengths <= self._lens)).all()
        order = np.argsort(lengths > 1, kind="stable")  # rows with one token first
        chosen, nothing = self._deferred[order], np.zeros(0, dtype=np.int64)
        rows = RecurrentRows(
            lens=lengths[order],
            num_computed=self._rows.num_computed[chosen],
            slots=self._rows.slots[chosen],
            writes=np.ones(len(chosen), dtype=np.bool_),
            snapshot_rows=nothing,
            snapshot_lengths=nothing,
            snapshot_slots=nothing,
            device=self._rows.device,
        )
        starts = (np.cumsum(self._lens) - self._lens)[order]
        tokens = upload(_spans(starts, lengths[order]), rows.device)
        run = self._plan(rows)
        for inputs, call in self._calls:
            call(run, *(values.index_select(0, tokens) for values in inputs))


def _spans(starts: Ints, lens: Ints) -> Ints:
    """starts[0] .. starts[0] + lens[0] - 1, then the next row's."""
    return np.repeat(starts - (np.cumsum(lens) - lens), lens) + np.arange(lens.sum())
