"""Mix: requests of many lengths and of mixed ages, and how many of them run at once in given pools.

What a running request is charged is what admission counts: full attention up to the length that it is expected to
reach, a window and a state for its life. Who runs at some moment is drawn: the longer a request runs, the likelier it
is among those. Knows lengths and pools; no bytes, no model.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hybrid.pools.ledger import Ints
from hybrid.pools.sizing import Kinds, Need, PoolSizes, blocks_for, life_units
from hybrid.scheduler.reservation import MAX_RATIO, MIN_RATIO

from .traffic import Traffic

CELLS = 2**17  # draws times requests of each
MIN_DRAWS, MOST_DRAWS = 16, 2**11
TOKEN_BUDGET = "token budget"


@dataclass(frozen=True, slots=True)
class Expected:
    """Means over time while more wait. concurrency: requests at once. binding_pool: what most often keeps out one more;
    "token budget": requests end as fast as steps can start others. full_blocks: in use, of those that are promised."""

    concurrency: float
    binding_pool: str
    full_blocks: float


class Mix:
    """Draws of requests that run at once, in the order in which they were admitted."""

    def __init__(
        self,
        traffic: Traffic,
        need: Need,
        shape: PoolSizes,
        kinds: Kinds,
        batched: int,
        most: int,
        shared_tokens: int = 0,
    ) -> None:
        """need: of the longest; what is in it beside the length counts for all. shape: its facts; no capacities are
        read. batched: tokens per step. most: requests at once. shared_tokens: with which all begin; no prompt may be
        shorter."""
        block, self._kinds = shape.block_size, kinds
        own = traffic.prompts - shared_tokens
        life = traffic.outputs + own / batched  # steps
        self._budget = batched * float(life.mean()) / float((own + traffic.outputs - 1).mean())
        beginning = blocks_for(shared_tokens, block)
        shared = shared_tokens // block if kinds.full else 0
        self._kept = beginning if kinds.full else 0
        self._points = int(shared_tokens > 0)
        ratio = float(np.clip((traffic.outputs / traffic.permitted).mean(), MIN_RATIO, MAX_RATIO))
        rng = np.random.default_rng(0)
        drawn = (min(MOST_DRAWS, max(MIN_DRAWS, CELLS // most)), most)
        who = rng.choice(len(life), drawn, p=life / life.sum())
        known = traffic.prompts[who] + (rng.random(drawn) * traffic.outputs[who]).astype(np.int64)
        total = (traffic.prompts + traffic.permitted)[who]
        reached = known + np.ceil(ratio * (total - known)).astype(np.int64)
        self._full = ((-(-reached // block) - shared) * kinds.full).cumsum(axis=1)
        self._used = ((-(-known // block) - shared) * kinds.full).cumsum(axis=1)
        totals, numbers = np.unique(traffic.prompts + traffic.permitted, return_inverse=True)
        quotas = [life_units(replace(need, max_total_tokens=int(t)), shape, kinds).window for t in totals]
        self._window = np.array(quotas, dtype=np.int64)[numbers][who].cumsum(axis=1)
        self._kept_windows = min(quotas[-1], beginning)

    def window_blocks(self, num_seqs: int, deviations: float) -> int:
        """Of the windows of so many requests: on average, and so many standard deviations more."""
        taken = self._window[:, num_seqs - 1]
        return int(np.ceil(taken.mean() + deviations * taken.std())) + self._kept_windows

    def numbers(self, full: Ints, window: Ints) -> Ints:
        """How many of each draw fit into so many blocks. [2, draws, number of values]"""
        pools = ((self._full, full - self._kept), (self._window, window - self._kept_windows))
        return np.array([[np.searchsorted(draw, blocks, "right") for draw in taken] for taken, blocks in pools])

    def concurrency(self, full: Ints, window: Ints, num_seqs: Ints) -> NDArray[np.float64]:
        """Mean requests that memory holds at once, for values of the pools: blocks of full attention, of windows but
        for chunks, and requests for which there are rows and states. [number of values]"""
        held: NDArray[np.float64] = np.minimum(self.numbers(full, window).min(axis=0), num_seqs).mean(axis=0)
        return held

    def expected(self, sizes: PoolSizes, chunk_tokens: int) -> Expected:
        """In pools of these sizes, so many tokens of prefill in flight beside the windows."""
        window = sizes.num_window_blocks - blocks_for(chunk_tokens, sizes.block_size) * self._kinds.window
        full, windows = self.numbers(np.array([sizes.num_full_blocks]), np.array([window]))[:, :, 0]
        limits = {TOKEN_BUDGET: np.full(len(full), self._budget)}
        if self._kinds.state:
            limits["recurrent state"] = np.full(len(full), sizes.num_state_slots - self._points)
        if self._kinds.window:
            limits["sliding window"] = windows
        if self._kinds.full:
            limits["full attention"] = full
        limits["request row"] = np.full(len(full), sizes.num_rows)
        at_once = np.array(list(limits.values()))
        lowest = at_once.min(axis=0)
        binding = Counter(list(limits)[index] for index in at_once.argmin(axis=0))  # the first of those as low
        used = np.concatenate((np.zeros((len(full), 1), dtype=np.int64), self._used), axis=1)
        count = lowest.astype(np.int64)
        return Expected(
            concurrency=float(lowest.mean()),
            binding_pool=binding.most_common(1)[0][0],
            full_blocks=float(np.take_along_axis(used, count[:, None], axis=1).mean()) + self._kept,
        )
