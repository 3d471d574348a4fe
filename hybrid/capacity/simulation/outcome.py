"""Outcome: all that came of one simulation. Totals: what the engine did in it."""

from dataclasses import dataclass, fields, replace

from hybrid.scheduler.stats import SchedulerStats

from .records import Records
from .timeline import Timeline


@dataclass(slots=True)
class Totals:
    """Sums since the start, or their differences. time: simulated seconds; busy: those in which steps ran. rows: of all
    plans, chunks and decodes alike. new_tokens: handed out."""

    time: float = 0.0
    busy: float = 0.0
    steps: int = 0
    rows: int = 0
    scheduled_tokens: int = 0
    new_tokens: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    retractions: int = 0
    recomputed_tokens: int = 0

    def at(self, now: float, stats: SchedulerStats) -> "Totals":
        """A copy, with time and the scheduler's own counts filled in."""
        return replace(
            self,
            time=now,
            prompt_tokens=stats.prompt_tokens,
            hit_tokens=stats.hit_tokens,
            retractions=stats.retractions,
            recomputed_tokens=stats.recomputed_tokens,
        )

    def __sub__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, entry.name) - getattr(other, entry.name) for entry in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """totals: after the warm-up. stopped: why the simulation ended early; "" where everything was answered."""

    records: Records
    timeline: Timeline
    totals: Totals
    stopped: str = ""
