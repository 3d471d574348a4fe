"""StepWork: what one step makes a device do, in counts: tokens, contexts, logits, images, adapters, copies.

Made of a StepPlan. Knows no model and no time.
"""

from dataclasses import dataclass

import numpy as np

from hybrid.pools.ledger import Ints
from hybrid.scheduler.plan import StepPlan

RECENT_SIZES = 8  # of so many the kernels are kept on a CPU: see ONEDNN_PRIMITIVE_CACHE_CAPACITY in hybrid/__init__.py


@dataclass(frozen=True, slots=True)
class Adapted:
    """Tokens of a step that one adapter changes, and its rank units (8 ranks each)."""

    num_tokens: int
    units: int


@dataclass(frozen=True, slots=True)
class StepWork:
    """num_sampled counts rows of logits: one for each row that samples, and one for each draft.

    image_tokens: of every image that is encoded. loaded_units: rank units of adapters that are written to the device.
    full_copies and window_copies count blocks; state_copies and snapshots count slots. new_rows: requests that enter.
    new_num_tokens, new_num_sampled: whether no recent step had as many.
    """

    num_tokens: Ints  # [num_rows] of each row in this step, each >= 1
    computed: Ints  # [num_rows] tokens of each row that were computed before this step
    num_sampled: int
    image_tokens: tuple[int, ...] = ()
    adapted: tuple[Adapted, ...] = ()  # one for each adapter of the batch
    loaded_units: int = 0
    full_copies: int = 0
    window_copies: int = 0
    state_copies: int = 0
    snapshots: int = 0
    new_rows: int = 0
    new_num_tokens: bool = False
    new_num_sampled: bool = False

    @classmethod
    def of(cls, plan: StepPlan, sizes: "RecentSizes | None" = None, rows: "AdaptedRows | None" = None) -> "StepWork":
        """What a plan does not tell, but those before it: without `sizes` none is new, without `rows` no adapter works.
        Mutates both."""
        num_sampled = int(np.count_nonzero(plan.samples)) + len(plan.draft_token_ids)
        new_num_tokens, new_num_sampled = sizes.follow(plan.num_tokens, num_sampled) if sizes else (False, False)
        return cls(
            num_tokens=plan.num_scheduled_tokens,
            computed=plan.num_computed_tokens,
            num_sampled=num_sampled,
            image_tokens=tuple(len(image.slots) for image in plan.encode) if plan.encode else (),
            adapted=rows.follow(plan) if rows else (),
            loaded_units=sum(len(load.units) for load in plan.load_adapters) if plan.load_adapters else 0,
            full_copies=len(plan.full_copies),
            window_copies=len(plan.window_copies),
            state_copies=len(plan.state_copies),
            snapshots=len(plan.snapshots),
            new_rows=len(plan.new_rows),
            new_num_tokens=new_num_tokens,
            new_num_sampled=new_num_sampled,
        )


class RecentSizes:
    """Which numbers of tokens, and of sampled rows, the last steps had: for a new one, kernels may have to be compiled.
    Every plan must pass, in order."""

    def __init__(self) -> None:
        self._tokens: dict[int, None] = {}  # the least recent first
        self._sampled: dict[int, None] = {}

    def follow(self, num_tokens: int, num_sampled: int) -> tuple[bool, bool]:
        """Whether these are new. Mutates."""
        return _is_new(self._tokens, num_tokens), _is_new(self._sampled, num_sampled)


def _is_new(recent: dict[int, None], size: int) -> bool:
    """Mutates `recent`: the size is the most recent one, unless it is 0."""
    if not size:
        return False
    new = recent.pop(size, True) is True
    recent[size] = None
    if len(recent) > RECENT_SIZES:
        del recent[next(iter(recent))]
    return new


class AdaptedRows:
    """Which adapter each row uses, kept up with plans as a runner does. Every plan must pass, in order."""

    def __init__(self, num_rows: int) -> None:
        self._lora_ids = np.zeros(num_rows, dtype=np.int64)
        self._units: dict[int, int] = {}  # lora_id -> rank units

    def follow(self, plan: StepPlan) -> tuple[Adapted, ...]:
        """What adapters do in this plan. Mutates: the plan's new rows and loaded adapters are remembered."""
        for new in plan.new_rows:
            self._lora_ids[new.row] = new.lora_id
        for load in plan.load_adapters:
            self._units[load.lora_id] = len(load.units)
        if not self._units:
            return ()
        lora_ids = self._lora_ids[plan.rows]
        used, owner = np.unique(lora_ids, return_inverse=True)
        tokens = np.bincount(owner, weights=plan.num_scheduled_tokens, minlength=len(used))
        return tuple(
            Adapted(int(count), self._units[lora_id]) for lora_id, count in zip(used.tolist(), tokens) if lora_id
        )
