"""Mix: requests of many lengths, of mixed ages, and how many of them run at once in given pools.

What a running request is charged is what admission counts: full attention up to the length that it is expected to
reach, a window and a state for its life. Who runs at some moment is drawn: the longer a request runs, the likelier it
is among those. Knows lengths and pools; no bytes, no model.
"""

from dataclasses import dataclass

import numpy as np

from hybrid.pools.ledger import Ints
from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.pools.window import window_quota
from hybrid.scheduler.reservation import MAX_RATIO, MIN_RATIO

CELLS = 2**17  # of draws: a request each
BUDGET = "token budget"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of requests that are equally likely: prompts, images included [n], answers [n], permitted answers [n]."""

    prompts: Ints
    outputs: Ints
    permitted: Ints

    @property
    def longest(self) -> int:
        """Prompt and permitted answer together."""
        return int((self.prompts + self.permitted).max())


@dataclass(frozen=True, slots=True)
class Expected:
    """Means over time: requests at once, and which pool most often kept out the next one; "token budget": none, steps
    cannot start more. held: units of full attention in use, which is less than what is promised."""

    concurrency: float
    binding_pool: str
    held: float


class Mix:
    """`draws` x `requests` requests that run at once, in the order in which they were admitted."""

    def __init__(
        self, lengths: Lengths, shape: PoolSizes, kinds: Kinds, batched: int, most: int, shared_tokens: int = 0
    ) -> None:
        """shape: facts; its capacities are not read. batched: tokens per step. most: requests at once."""
        block = shape.block_size
        prompts, outputs = lengths.prompts, lengths.outputs
        computed = prompts - shared_tokens + outputs - 1
        life = outputs + (prompts - shared_tokens) / batched  # steps
        self.kinds = kinds
        self.budget = batched * float(life.mean()) / float(computed.mean())
        self.shared = shared_tokens // block if kinds.full else 0
        self.kept = -(-shared_tokens // block) if kinds.full else 0
        self.points = 1 if shared_tokens else 0
        ratio = float(np.clip((outputs / lengths.permitted).mean(), MIN_RATIO, MAX_RATIO))
        rng = np.random.default_rng(0)
        size = (max(8, CELLS // most), most)
        who = rng.choice(len(prompts), size, p=life / life.sum())
        age = np.floor(rng.random(size) * outputs[who]).astype(np.int64)  # tokens said so far
        known, left = prompts[who] + age, lengths.permitted[who] - age
        reached = known + np.ceil(ratio * left).astype(np.int64)
        self._full = (-(-reached // block) - self.shared).cumsum(axis=1)
        self._held = (-(-known // block) - self.shared).cumsum(axis=1)
        totals, numbers = np.unique(lengths.prompts + lengths.permitted, return_inverse=True)
        quotas = [window_quota(shape.sliding_window, block, shape.lookahead, total) for total in totals.tolist()]
        self._quota = max(quotas) if kinds.window else 0
        self._window = (np.array(quotas)[numbers][who] * kinds.window).cumsum(axis=1)

    def window_blocks(self, num_seqs: int, deviations: float) -> int:
        """For so many windows, and a resume point: the mean of what they take and so many standard deviations."""
        taken = self._window[:, num_seqs - 1]
        return (
            int(np.ceil(taken.mean() + deviations * taken.std())) + (1 + self.points) * self._quota * self.kinds.window
        )

    @property
    def same_windows(self) -> bool:
        return bool(self._window[:, 0].min() == self._window[:, 0].max())

    def numbers(self, full_blocks: Ints, window_blocks: Ints) -> tuple[Ints, Ints]:
        """How many of each draw fit: into so many full-attention and window blocks. [draws, number of values] each."""
        full = np.array([np.searchsorted(draw, full_blocks - self.kept, "right") for draw in self._full])
        window = np.array([np.searchsorted(draw, window_blocks, "right") for draw in self._window])
        return full, window
