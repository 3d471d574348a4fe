"""Summary: one simulation in figures: targets met, percentiles, throughput, cache, memory. Reads an Outcome."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .outcome import Outcome
from .records import Fate
from .simulation import ATTAINMENT
from .targets import Targets
from .timeline import Timeline

PERCENTILES = (50, 90, 95, 99)
STEP = "step in progress"


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds; None where there is nothing to tell."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


def spread(values: NDArray[np.floating]) -> Spread:
    """Of the values that there are; percentiles interpolate between neighbours. Pure."""
    there = values[~np.isnan(values)].astype(np.float64)
    if len(there) == 0:
        return Spread(None, None, None, None, None, None)
    p50, p90, p95, p99 = np.percentile(there, PERCENTILES).tolist()
    return Spread(float(there.mean()), p50, p90, p95, p99, float(there.max()))


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Shares of a pool's capacity: what requests hold, on average and at most, and what only the cache remembers."""

    mean: float
    max: float
    cached: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary:
    """Of the requests that were sent after the warm-up.

    rate: requests per second that the workload was stretched to. attainment: share of the requests that met all
    targets; failed, refused and unfinished ones did not; None without targets. cut: completed, but shorter than in the
    workload, by the length limit. ttft, tpot, e2e, queue: over the requests that got so far; itl: over all gaps between
    tokens of completed requests. queue: from arrival to the first plan. waiting_for: shares of the time that requests
    waited, by what held them: STEP, until the engine took notice of them; and as in Timeline.
    seconds: from the warm-up to the last token; rates per second are over these. batch: rows of a step, mean.
    busy: share of the time in which a step ran. hit_rate: share of prompt tokens found in the cache.
    """

    rate: float
    requests: int
    completed: int
    failed: int
    refused: int
    unfinished: int
    cut: int
    attainment: float | None
    seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    ttft: Spread
    itl: Spread
    tpot: Spread
    e2e: Spread
    queue: Spread
    waiting_for: Mapping[str, float]
    hit_rate: float
    retractions: int
    recomputed_tokens: int
    steps: int
    batch: float
    step_tokens: float
    step_seconds: float
    busy: float
    occupancy: Mapping[str, Occupancy]
    stopped: str
    error: str
    timeline: Timeline

    @property
    def attained(self) -> bool:
        """Whether enough requests met the targets."""
        return self.attainment is not None and self.attainment >= ATTAINMENT


def summarise(outcome: Outcome, rate: float, targets: Targets) -> Summary:
    """Pure."""
    records, totals, timeline = outcome.records, outcome.totals, outcome.timeline
    measured = records.measured
    fates = np.bincount(records.fate[measured], minlength=len(Fate))
    count, steps = int(measured.sum()), max(1, totals.steps)
    seconds = max(totals.time, 1e-12)
    waiting_for = {STEP: float(np.nansum(records.added - records.arrival))} | timeline.waiting_for
    waited = sum(waiting_for.values())
    prompt_tokens = int(records.prompt_tokens[measured & records.completed].sum())
    later = timeline.times >= records.warmup
    return Summary(
        rate=rate,
        requests=count,
        completed=int(fates[Fate.COMPLETED]),
        failed=int(fates[Fate.FAILED]),
        refused=int(fates[Fate.REFUSED]),
        unfinished=int(fates[Fate.UNFINISHED]),
        cut=int((records.tokens < records.wanted)[measured & records.completed].sum()),
        attainment=int(targets.met(records)[measured].sum()) / max(1, count) if targets else None,
        seconds=totals.time,
        requests_per_second=int(fates[Fate.COMPLETED]) / seconds,
        output_tokens_per_second=totals.new_tokens / seconds,
        total_tokens_per_second=(prompt_tokens + totals.new_tokens) / seconds,
        ttft=spread(records.ttft[measured]),
        itl=spread(records.gaps),
        tpot=spread(records.tpot[measured & records.completed]),
        e2e=spread(records.e2e[measured & records.completed]),
        queue=spread(records.queue[measured]),
        waiting_for={cause: time / waited for cause, time in waiting_for.items() if time},
        hit_rate=totals.hit_tokens / max(1, totals.prompt_tokens),
        retractions=totals.retractions,
        recomputed_tokens=totals.recomputed_tokens,
        steps=totals.steps,
        batch=totals.rows / steps,
        step_tokens=totals.scheduled_tokens / steps,
        step_seconds=totals.busy / steps,
        busy=totals.busy / seconds,
        occupancy={
            pool: Occupancy(
                float(timeline.in_use[later, index].mean()),
                float(timeline.in_use[later, index].max()),
                float(timeline.cached[later, index].mean()),
            )
            for index, pool in enumerate(timeline.pools)
        }
        if later.any()
        else {},
        stopped=outcome.stopped,
        error=records.error,
        timeline=timeline,
    )
