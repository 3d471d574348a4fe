"""Metrics: what Prometheus scrapes. The engine's thread tells them what happened; scrapes read the last Snapshot.

Names follow vLLM's where the meaning is the same, with the prefix `hybrid:`. Knows no route.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hybrid.frontend.generation import Update
from hybrid.scheduler.scheduler import Scheduler
from hybrid.scheduler.stats import SchedulerStats

COLUMNS = ("free", "reserved", "held", "cached", "pinned", "pending")
PUBLISH_SECONDS = 0.05  # at most so often while the engine is busy: counting who waits costs time per request
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's numbers after a step, which other threads read without a lock.

    waiting_seconds: request-seconds spent waiting since start, by what was waited for (`SchedulerStats.waiting_for`).
    last_queue_time: seconds that the latest admitted request waited.
    """

    stats: SchedulerStats
    waiting_seconds: Mapping[str, float]
    last_queue_time: float = 0.0


@dataclass(slots=True)
class _Times:
    """One request's moments, seconds."""

    arrived: float
    last_token: float | None = None


class Metrics:
    """`arrived` and `stepped` are called by the thread that drives the engine; everything else by any."""

    def __init__(self, scheduler: Scheduler, model_name: str, clock: Callable[[], float] = monotonic) -> None:
        self.registry = CollectorRegistry()
        self._scheduler = scheduler
        self._clock = clock
        self._requests: dict[str, _Times] = {}
        self._published = clock()
        self._snapshot = Snapshot(scheduler.stats(), {})

        def histogram(name: str, text: str) -> Histogram:
            family = Histogram(f"hybrid:{name}_seconds", text, ("model_name",), buckets=SECONDS, registry=self.registry)
            return family.labels(model_name)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"hybrid:{name}", text, ("model_name",), registry=self.registry).labels(model_name)

        self._ttft = histogram("time_to_first_token", "Seconds from arrival to the first token.")
        self._itl = histogram("inter_token_latency", "Seconds between tokens of a request.")
        self._e2e = histogram("e2e_request_latency", "Seconds from arrival to the end of a request.")
        self._queue = histogram("request_queue_time", "Seconds from arrival to the first admission.")
        self._generated = counter("generation_tokens", "Tokens generated.")
        self._finished = Counter(
            "hybrid:request_success", "Requests that ended, by reason.", ("model_name", "finished_reason"),
            registry=self.registry,
        )  # fmt: skip
        self._model_name = model_name
        self.registry.register(_Scraped(self, model_name))

    @property
    def snapshot(self) -> Snapshot:
        """The engine's numbers as of a step not long ago."""
        return self._snapshot

    def arrived(self, request_id: str) -> None:
        """Mutates: the engine has taken the request."""
        self._requests[request_id] = _Times(self._clock())

    def stepped(self, updates: Iterable[Update], idle: bool = False) -> None:
        """Mutates: `updates` are what a step reported. idle: the engine has nothing more to do; publish now."""
        now = self._clock()
        for update in updates:
            times = self._requests.get(update.request_id)
            if times is not None and update.token_ids:
                self._tokens(times, len(update.token_ids), now)
            if update.finish_reason is not None:
                self._finished.labels(self._model_name, update.finish_reason).inc()
                if times is not None:
                    self._e2e.observe(now - times.arrived)
                    del self._requests[update.request_id]
        if idle or now - self._published >= PUBLISH_SECONDS:
            self._publish(now)

    def _tokens(self, times: _Times, count: int, now: float) -> None:
        self._generated.inc(count)
        if times.last_token is None:
            self._ttft.observe(now - times.arrived)
        else:
            for _ in range(count):  # several at once share the time
                self._itl.observe((now - times.last_token) / count)
        times.last_token = now

    def _publish(self, now: float) -> None:
        queue_times = self._scheduler.pop_queue_times()
        for seconds in queue_times:
            self._queue.observe(seconds)
        old, passed = self._snapshot, now - self._published
        waited = dict(old.waiting_seconds)
        for reason, count in old.stats.waiting_for.items():
            waited[reason] = waited.get(reason, 0.0) + count * passed
        last = queue_times[-1] if queue_times else old.last_queue_time
        self._snapshot = Snapshot(self._scheduler.stats(), waited, last)
        self._published = now

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)


class _Scraped(Collector):
    """Gauges and totals of the last snapshot, made when somebody asks."""

    def __init__(self, metrics: Metrics, model_name: str) -> None:
        self._metrics = metrics
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        snapshot = self._metrics.snapshot
        stats = snapshot.stats
        gauge, total = partial(self._family, GaugeMetricFamily), partial(self._family, CounterMetricFamily)
        yield gauge("num_requests_running", "Requests that hold memory.", [((), stats.num_running)])
        yield gauge("num_requests_waiting", "Requests that wait.", [((), stats.num_waiting)])
        yield gauge("num_plans_in_flight", "Steps whose results are not there yet.", [((), stats.num_in_flight)])
        yield total("prompt_tokens", "Prompt tokens of admitted requests.", [((), stats.prompt_tokens)])
        yield total("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", [((), stats.prompt_tokens)])
        yield total("prefix_cache_hits", "Prompt tokens that came from the prefix cache.", [((), stats.hit_tokens)])
        yield total("num_preemptions", "Retractions: requests that gave up their memory.", [((), stats.retractions)])
        yield total("recomputed_tokens", "Tokens lost to retractions and failures.", [((), stats.recomputed_tokens)])
        yield total("failed_steps", "Steps that came to nothing.", [((), stats.failed_steps)])

        pools = stats.ledgers.items()
        units = [((pool, column), getattr(ledger, column)) for pool, ledger in pools for column in COLUMNS]
        yield gauge("pool_units", "Units by ledger column.", units, "pool", "column")
        yield gauge("pool_capacity", "Units in all.", [((pool,), ledger.total) for pool, ledger in pools], "pool")
        reasons = (*stats.ledgers, "gate", "order")
        waiting = [((reason,), stats.waiting_for.get(reason, 0)) for reason in reasons]
        yield gauge("num_requests_waiting_for", "Waiting requests by what holds them.", waiting, "reason")
        seconds = [((reason,), snapshot.waiting_seconds.get(reason, 0.0)) for reason in reasons]
        yield total("waiting_seconds", "Seconds that requests waited, by what held them.", seconds, "reason")
        for column in ("hits", "loads", "evictions"):
            shared = [((pool,), getattr(entries, column)) for pool, entries in stats.shared.items()]
            yield total(f"shared_{column}", f"Images and adapters: {column}.", shared, "pool")

    def _family(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        samples: Iterable[tuple[Sequence[str], float]],
        *labels: str,
    ) -> Metric:
        """samples: values of `labels`, and the number."""
        family = kind(f"hybrid:{name}", text, labels=["model_name", *labels])
        for values, number in samples:
            family.add_metric([self._model_name, *values], number)
        return family
