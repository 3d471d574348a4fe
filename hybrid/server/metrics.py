"""Metrics: what Prometheus scrapes. The engine's thread tells them what happened; scrapes read the last Snapshot.

Names follow vLLM's where the meaning is the same, with the prefix `hybrid:`. Knows no route.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hybrid.frontend.generation import Update
from hybrid.scheduler.scheduler import Scheduler

from .snapshot import Snapshot

COLUMNS = ("free", "reserved", "held", "cached", "pinned", "pending")
PUBLISH_SECONDS = 0.05  # at most so often while the engine is busy: counting who waits costs time per request
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


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
        waited = Tally(old.waiting_seconds)
        for reason, count in old.stats.waiting_for.items():
            waited[reason] += count * passed  # type: ignore[assignment]
        last = queue_times[-1] if queue_times else old.last_queue_time
        self._snapshot = Snapshot(self._scheduler.stats(), dict(waited), last)
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
        snapshot, model = self._metrics.snapshot, [self._model_name]
        stats = snapshot.stats
        for name, text, value in (
            ("num_requests_running", "Requests that hold memory.", stats.num_running),
            ("num_requests_waiting", "Requests that wait.", stats.num_waiting),
            ("num_plans_in_flight", "Steps whose results are not there yet.", stats.num_in_flight),
        ):
            gauge = GaugeMetricFamily(f"hybrid:{name}", text, labels=["model_name"])
            gauge.add_metric(model, value)
            yield gauge
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens that came from the prefix cache.", stats.hit_tokens),
            ("num_preemptions", "Retractions: requests that gave up their memory.", stats.retractions),
            ("recomputed_tokens", "Tokens lost to retractions and failures.", stats.recomputed_tokens),
            ("failed_steps", "Steps that came to nothing.", stats.failed_steps),
        ):
            total = CounterMetricFamily(f"hybrid:{name}", text, labels=["model_name"])
            total.add_metric(model, value)
            yield total
        units = GaugeMetricFamily(
            "hybrid:pool_units", "Units by ledger column.", labels=["model_name", "pool", "column"]
        )
        capacity = GaugeMetricFamily("hybrid:pool_capacity", "Units in all.", labels=["model_name", "pool"])
        waiting = GaugeMetricFamily(
            "hybrid:num_requests_waiting_for", "Waiting requests by what holds them.", labels=["model_name", "reason"]
        )
        seconds = CounterMetricFamily(
            "hybrid:waiting_seconds",
            "Seconds that requests waited, by what held them.",
            labels=["model_name", "reason"],
        )
        for pool, ledger in stats.ledgers.items():
            for column in COLUMNS:
                units.add_metric([*model, pool, column], getattr(ledger, column))
            capacity.add_metric([*model, pool], ledger.total)
        for reason in (*stats.ledgers, "gate", "order"):
            waiting.add_metric([*model, reason], stats.waiting_for.get(reason, 0))
            seconds.add_metric([*model, reason], snapshot.waiting_seconds.get(reason, 0.0))
        yield from (units, capacity, waiting, seconds)
        for column in ("hits", "loads", "evictions"):
            shared = CounterMetricFamily(
                f"hybrid:shared_{column}", f"Images and adapters: {column}.", labels=["model_name", "pool"]
            )
            for pool, entries in stats.shared.items():
                shared.add_metric([*model, pool], getattr(entries, column))
            yield shared
