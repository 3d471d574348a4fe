"""Simulation: the real scheduler, driven as the engine drives it, in a time that jumps from event to event.

`AsyncEngine` takes what has arrived between two steps; `Engine.step` plans and launches as far ahead as plans may be in
flight, waits for the oldest result, and commits it. So does this, with a StepTime instead of a runner, columns of
tokens instead of texts, and no waiting. The same workload and engine always give the same outcome.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.outcome import FinishedRequest
from hybrid.scheduler.plan import Ints, StepPlan, StepResult
from hybrid.scheduler.request import ImageInput, NewRequest
from hybrid.scheduler.scheduler import Scheduler

from ..step_time.step_work import AdaptedRows, RecentSizes, StepWork
from ..workload.arrival import ImageOf
from ..workload.segments import Segment, token_ids
from ..workload.workload import Workload
from .answers import Answers
from .arrivals import Arrivals
from .engine_model import EngineModel
from .host_adapters import HostAdapters
from .journal import Journal
from .outcome import Outcome, Totals
from .records import Fate, Records
from .targets import NO_TARGETS, Targets
from .timeline import Recorder

ATTAINMENT = 0.95  # of the requests must meet the targets
SAMPLES = 1000  # of ledgers and queue, over the time in which requests arrive
MOST_WAITING = 1000  # requests, and as many rounds of the rows; a longer queue has diverged
ROUNDS_WAITING = 10
MOST_WAITING_TOKENS = 2**24  # in any case: they take memory, here as in the engine
NUM_DRAWN = 4096  # at once
NO_GAPS = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """targets: what requests must meet; they only decide when it is pointless to go on. duration: nothing arrives
    later. warmup: what arrives earlier is not measured. max_tokens: what requests ask for, and end of themselves
    before; None: exactly what they will generate. Seconds."""

    targets: Targets = NO_TARGETS
    duration: float = float("inf")
    warmup: float = 0.0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Flight:
    """A plan that was launched and not committed."""

    result: StepResult
    slots: Ints  # of the rows that sample
    end: float  # when the runner is done with it


def simulate(
    engine: EngineModel,
    workload: Workload,
    conditions: Conditions | None = None,
    progress: Callable[[float], None] = lambda now: None,
) -> Outcome:
    """Everything that became of the workload. progress: told the simulated time after every step. Raises ValueError for
    pools in which no request fits."""
    return Simulation(engine, workload, conditions or Conditions()).run(progress)


class Simulation:
    """One run, once. `now` is the simulated time, in seconds; `scheduler` may be looked at."""

    def __init__(self, engine: EngineModel, workload: Workload, conditions: Conditions) -> None:
        self.now = 0.0
        self._engine = engine
        self._workload = workload
        self._conditions = conditions
        self.scheduler = Scheduler(
            engine.config,
            engine.sizes,
            engine.kinds,
            enable_prefix_caching=engine.enable_prefix_caching,
            clock=lambda: self.now,
        )
        self._arrivals = Arrivals(workload, conditions.duration)
        self._most = self._arrivals.most()
        self._journal = Journal(workload, conditions.warmup)
        self._answers = Answers(engine.sizes.num_rows)
        self._adapters = HostAdapters(engine.lora_bytes_per_unit, lambda: self.now)
        self._variation = _draws(engine.step_time.variation)
        self._recent_sizes, self._adapted_rows = RecentSizes(), AdaptedRows(engine.sizes.num_rows)
        self._recorder = Recorder(self.scheduler, self._arrivals.last_opening / SAMPLES)
        self._in_flight: deque[_Flight] = deque()
        self._free = 0.0  # when the runner is done with all that was launched
        self._outputs: dict[int, Segment] = {}  # of requests that wait for their first plan
        self._stopped = ""
        self._totals = Totals()
        self._before: Totals | None = None  # what was done in the warm-up

    def run(self, progress: Callable[[float], None]) -> Outcome:
        """Mutates: to the end, or to where it is pointless to go on."""
        while not self._stopped:
            self._take_arrivals()
            if self._before is None and self.now >= self._conditions.warmup:
                self._before = self._totals_now()
            if self.scheduler.num_unfinished or self._in_flight:
                self._step()
                progress(self.now)
            elif (following := self._arrivals.next_time()) < float("inf"):
                self.now = following
            else:
                break
        self._recorder.sample(self.now)
        after = self._totals_now()
        return Outcome(
            records=self._journal.records(),
            timeline=self._recorder.timeline(),
            totals=after - self._before if self._before is not None else Totals(),
            stopped=self._stopped,
        )

    # --- as AsyncEngine --------------------------------------------------------------------------------------------

    def _take_arrivals(self) -> None:
        for arrival, request in self._arrivals.pop(self.now):
            self._journal.sent(request, arrival, self.now)
            try:
                self.scheduler.add(self._new_request(request))
            except ValueError as error:
                self._journal.refused(request, str(error))
                del self._outputs[request]

    def _new_request(self, request: int) -> NewRequest:
        """Mutates the adapters: its adapter is being read, if it was not. Tokens are made here and not earlier."""
        arrival = self._workload[request]
        self._outputs[request] = arrival.output
        adapter, gates = self._adapters.get(arrival.adapter, arrival.rank) if arrival.adapter else (None, ())
        asked = arrival.output.length if self._conditions.max_tokens is None else self._conditions.max_tokens
        return NewRequest(
            request_id=str(request),
            prompt_token_ids=token_ids(arrival.prompt, vocab_size=self._engine.vocab_size),
            max_tokens=max(asked, arrival.output.length),
            stop_token_ids=(self._engine.vocab_size,),
            images=tuple(entry for image in arrival.images for entry in self._entries(image)),
            adapter=adapter,
            priority=arrival.priority,
            resume_hints=arrival.hints,
            gates=gates,
            enable_prefix_caching=self._engine.enable_prefix_caching,
        )

    def _entries(self, image: ImageOf) -> Iterator[ImageInput]:
        """One after the other at its beginning; its marks are text behind them."""
        offset = image.offset
        for index, num_tokens in enumerate(self._engine.image_entries or (image.num_tokens,)):
            yield ImageInput(f"{image.key}-{index}", offset, num_tokens)
            offset += num_tokens

    # --- as Engine -------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Mutates: plan and launch as far as plans may be in flight, commit the oldest result."""
        scheduler = self.scheduler
        while scheduler.num_in_flight < self._engine.config.max_plans_in_flight:
            plan = scheduler.schedule()
            if plan is None:
                break
            self._in_flight.append(self._launch(plan))
        if self._in_flight:
            self._commit_oldest()
            while self._in_flight and not scheduler.num_unfinished:
                self._commit_oldest()
        elif not self._end(scheduler.pop_finished()):
            self._recorder.sample(self.now)
            self.now = min(self._arrivals.next_time(), self._adapters.next_ready())
            assert self.now < float("inf"), "requests wait, and nothing will happen"

    def _launch(self, plan: StepPlan) -> _Flight:
        """Mutates: the runner begins with it as soon as it is free; what the plan samples is there."""
        for new in plan.new_rows:
            request = int(new.request_id)
            if request not in self._answers:
                self._begin(request, new.num_prompt_tokens)
                self._journal.admitted(request, self.now, new.num_computed_tokens)
            self._answers.place(new.row, request)
        if self.now >= self._recorder.due:
            self._stopped = self._why_stop(self._recorder.sample(self.now))
        slots, tokens = self._answers.sample(plan)
        work = StepWork.of(plan, self._recent_sizes, self._adapted_rows)
        seconds = next(self._variation) * self._engine.step_time.seconds(work)
        self._free = max(self.now, self._free) + seconds
        self._totals.steps += 1
        self._totals.busy += seconds
        self._totals.rows += len(plan.rows)
        self._totals.scheduled_tokens += plan.num_tokens
        return _Flight(StepResult.one_each(plan.step_id, tokens), slots, self._free)

    def _begin(self, request: int, num_prompt_tokens: int) -> None:
        """Mutates: from now on the request's tokens are known. One that asked for more ends itself."""
        tokens = token_ids((self._outputs.pop(request),), vocab_size=self._engine.vocab_size)
        if self._conditions.max_tokens is not None:
            tokens[-1] = self._engine.vocab_size
        self._answers.begin(request, num_prompt_tokens, self._journal.arrival(request), tokens)

    def _commit_oldest(self) -> None:
        """Mutates: time passes until the oldest result is there; its tokens are handed out, and requests that ended
        leave."""
        flight = self._in_flight.popleft()
        self.now = max(self.now, flight.end)
        tokens = self.scheduler.commit(flight.result)
        slots = flight.slots[tokens.result_rows]
        self._totals.new_tokens += len(slots)
        began = self._answers.hand_out(slots, self.now)
        if len(began):
            self._journal.began(began, self.now)
        self._end(self.scheduler.pop_finished())

    def _end(self, finished: Iterable[FinishedRequest]) -> bool:
        """Mutates: what ended is noted, and its later turns will come. Whether there was any."""
        some = False
        for ended in finished:
            some = True
            request = int(ended.request_id)
            last, gaps = self._answers.end(request) if request in self._answers else (self.now, NO_GAPS)
            if ended.error is not None:
                self._journal.failed(request, ended.error)
            else:
                self._journal.completed(request, last, gaps[1:])
                self._arrivals.answered(request, self.now)
        return some

    # --- looking around --------------------------------------------------------------------------------------------

    def _totals_now(self) -> Totals:
        return self._totals.at(self.now, self.scheduler.stats())

    def _why_stop(self, num_waiting: int) -> str:
        """ "" to go on. Pure."""
        targets, sizes, waiting = self._conditions.targets, self._engine.sizes, f"{num_waiting} requests wait"
        records = self._journal.records(with_gaps=False)
        if self._arrivals.next_time() < float("inf"):
            if num_waiting * sizes.max_model_len > MOST_WAITING_TOKENS:
                queued = (records.fate == Fate.UNFINISHED) & np.isnan(records.admitted)
                tokens = int(records.prompt_tokens[queued].sum())
                if tokens > MOST_WAITING_TOKENS:
                    return f"the queue grows without bound: {waiting}, {tokens:,} tokens"
            diverges = num_waiting > MOST_WAITING + ROUNDS_WAITING * sizes.num_rows
            if diverges and (not targets or self._cannot_attain(records, targets.missed(records, self.now))):
                return f"the queue grows without bound: {waiting}"
        elif targets:
            missed, unfinished = targets.missed(records, self.now), records.fate == Fate.UNFINISHED
            if unfinished.any() and missed[unfinished].all() and self._cannot_attain(records, missed):
                return f"none of the last {int(unfinished.sum())} requests could meet the targets any more"
        return ""

    def _cannot_attain(self, records: Records, missed: NDArray[np.bool_]) -> bool:
        """Whether too many have missed, whatever the others do. Pure."""
        return int((missed & records.measured).sum()) > (1 - ATTAINMENT) * self._most


def _draws(factors: tuple[float, ...]) -> Iterator[float]:
    """One of them after the other, at random, always the same ones."""
    rng = np.random.default_rng(0)
    while True:
        yield from rng.choice(factors, NUM_DRAWN).tolist()
