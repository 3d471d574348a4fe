"""Snapshot: the engine's numbers after a step, frozen, so that other threads read them without a lock."""

from collections.abc import Mapping
from dataclasses import dataclass

from hybrid.scheduler.stats import SchedulerStats


@dataclass(frozen=True, slots=True)
class Snapshot:
    """stats: as the scheduler gave them out. waiting_seconds: request-seconds spent waiting since start, by what was
    waited for (see SchedulerStats.waiting_for). last_queue_time: seconds that the latest admitted request waited."""

    stats: SchedulerStats
    waiting_seconds: Mapping[str, float]
    last_queue_time: float = 0.0
