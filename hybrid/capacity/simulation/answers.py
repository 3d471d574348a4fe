"""Answers: the tokens that running requests will generate, and when each was handed out. Whole columns at once.

A request (an index of the workload) has a slot from its first plan to its end, also while it waits after a retraction.
Knows no pools.
"""

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.plan import Ints, StepPlan, TokenIds

FIRST_SLOTS = 64
FIRST_WIDTH = 64


class Answers:
    """Slots and their columns grow as needed: as many as requests are under way, as wide as their longest answer.

    gaps[slot, k]: seconds between token k - 1 (for k = 0: the request's arrival) and token k.
    """

    def __init__(self, num_rows: int) -> None:
        self._slot_of_row = np.zeros(num_rows, dtype=np.int64)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._requests = np.zeros(0, dtype=np.int64)
        self._prompt_lengths = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._last = np.zeros(0)
        self._tokens: TokenIds = np.zeros((0, FIRST_WIDTH), dtype=np.int32)
        self._gaps = np.zeros((0, FIRST_WIDTH), dtype=np.float32)

    def __contains__(self, request: int) -> bool:
        return request in self._slots

    def begin(self, request: int, num_prompt_tokens: int, arrival: float, tokens: TokenIds) -> None:
        """Mutates: the request, which arrived then, will generate these tokens."""
        if not self._free:
            self._add_slots()
        if len(tokens) > self._tokens.shape[1]:
            self._widen(len(tokens))
        slot = self._slots[request] = self._free.pop()
        self._requests[slot] = request
        self._prompt_lengths[slot] = num_prompt_tokens
        self._counts[slot] = 0
        self._last[slot] = arrival
        self._tokens[slot, : len(tokens)] = tokens

    def place(self, row: int, request: int) -> None:
        """Mutates: the request runs in this row."""
        self._slot_of_row[row] = self._slots[request]

    def sample(self, plan: StepPlan) -> tuple[Ints, TokenIds]:
        """Slot and next token of every row that samples, in plan order. [n], [n]"""
        rows, ends = plan.rows, plan.num_computed_tokens + plan.num_scheduled_tokens
        if not plan.samples.all():
            rows, ends = rows[plan.samples], ends[plan.samples]
        slots = self._slot_of_row[rows]
        return slots, self._tokens[slots, ends - self._prompt_lengths[slots]]

    def hand_out(self, slots: Ints, now: float) -> Ints:
        """Mutates: each of these requests got one token. Returns the requests for which it was the first."""
        counts = self._counts[slots]
        self._gaps[slots, counts] = now - self._last[slots]
        self._last[slots] = now
        self._counts[slots] = counts + 1
        began: Ints = self._requests[slots[counts == 0]]
        return began

    def end(self, request: int) -> tuple[float, NDArray[np.float32]]:
        """Mutates: the slot is free. When the latest token came, and the gaps, the first of which is from arrival."""
        slot = self._slots.pop(request)
        self._free.append(slot)
        return float(self._last[slot]), self._gaps[slot, : self._counts[slot]].copy()

    def _add_slots(self) -> None:
        count = len(self._counts)
        more = max(FIRST_SLOTS, count)
        self._free += range(count + more - 1, count - 1, -1)
        for name in ("_requests", "_prompt_lengths", "_counts", "_last"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, dtype=column.dtype)]))
        self._resize(count + more, self._tokens.shape[1])

    def _widen(self, width: int) -> None:
        self._resize(len(self._tokens), max(width, 2 * self._tokens.shape[1]))

    def _resize(self, slots: int, width: int) -> None:
        for name in ("_tokens", "_gaps"):
            old = getattr(self, name)
            new = np.zeros((slots, width), dtype=old.dtype)
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)
