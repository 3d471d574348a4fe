"""Counters the scheduler keeps, and the frozen picture it hands out."""

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


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """hit_tokens of prompt_tokens came from the prefix cache; recomputed_tokens were lost to retractions and
    failures."""

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
