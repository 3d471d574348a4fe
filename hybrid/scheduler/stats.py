"""Counters the scheduler keeps, and the frozen picture it hands out."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from hybrid.pools.ledger import Ledger


@dataclass(slots=True)
class Counters:
    """Running totals since start. Tokens."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    retractions: int = 0
    recomputed_tokens: int = 0
    failed_steps: int = 0
    # seconds from arrival to first admission, until somebody takes them
    queue_times: deque[float] = field(default_factory=lambda: deque(maxlen=4096))


@dataclass(frozen=True, slots=True)
class SharedEntries:
    """How often requests came to hold an image or an adapter: `hits` found it there, `loads` had it made."""

    hits: int
    loads: int
    evictions: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """hit_tokens of prompt_tokens came from the prefix cache; recomputed_tokens were lost to retractions and
    failures. waiting_for: the waiting requests by what holds each: a pool's name, "gate", or "order" (its turn has not
    come). shared: by pool, of those whose units requests share by key."""

    num_waiting: int
    num_running: int
    num_in_flight: int
    output_ratio: float
    prompt_tokens: int
    hit_tokens: int
    retractions: int
    recomputed_tokens: int
    failed_steps: int
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    waiting_for: Mapping[str, int] = field(default_factory=dict)
    shared: Mapping[str, SharedEntries] = field(default_factory=dict)
