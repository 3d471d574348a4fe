"""Scheduler: requests in, plans out, results in, tokens out. The one public face of this folder.

    add / abort / finish      requests come and go, at any moment
    schedule -> StepPlan      running first, then waiting; a plan holds only what was granted
    commit(StepResult)        the only place where truth advances;  fail(step_id, error) takes a step back
    pop_finished, explain, stats

It drives without a model. It knows tokens, rows and pools; it does not know text, tensors or devices.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection
from time import monotonic

from hybrid.pools.ledger import Shortage
from hybrid.pools.memory import Memory
from hybrid.pools.sizing import Kinds, Need, PoolSizes, never_fits

from .admission import Admission
from .builder import InFlight, PlanBuilder, PublishPoint
from .chunk import release_images
from .commit import advance, check_result
from .composer import Composer
from .config import SchedulerConfig
from .decode import Drafts
from .explain import Explanation, explain_running, explain_waiting, held_units, waits_for
from .leave import leave, publish_point, release_snapshot
from .outcome import FinishedRequest, FinishReason, NewTokens
from .plan import StepPlan, StepResult
from .request import NewRequest
from .reservation import OutputReservation
from .retraction import Retraction
from .running import Running
from .stats import Counters, SchedulerStats, SharedEntries
from .suspects import Suspects
from .tracked import Tracked, track
from .validate import check_request
from .waiting import WaitingQueue


class Scheduler:
    """See the module. Not thread-safe: one thread drives it.

    `clock` gives seconds for arrival, ageing and time-outs; nothing else depends on it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        sizes: PoolSizes,
        kinds: Kinds,
        *,
        enable_prefix_caching: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        lookahead = max(config.max_plans_in_flight - 1, config.num_draft_tokens)
        if sizes.lookahead < lookahead:
            raise ValueError(
                f"pools sized for a lookahead of {sizes.lookahead} tokens, but {config.max_plans_in_flight} plans in "
                f"flight and {config.num_draft_tokens} drafts need {lookahead}"
            )
        image = config.smallest_image
        smallest = Need(image + 1, (image,), unsplit_images=config.disable_chunked_mm_input)
        for shortage in never_fits(smallest, sizes, kinds):
            raise ValueError(f"not even a request of {image + 1} tokens fits: {shortage}")
        self.config = config
        self.memory = Memory(sizes, kinds, enable_prefix_caching)
        self._clock = clock
        self._requests: dict[str, Tracked] = {}
        self._waiting = WaitingQueue(config)
        self._running = Running(sizes.num_rows)
        self._reservation = OutputReservation(config.initial_output_ratio)
        self._admission = Admission(self.memory, config, self._running, self._reservation)
        self._drafts = Drafts(sizes.num_rows, config.num_draft_tokens)
        self._in_flight: deque[InFlight] = deque()
        self._finished: list[FinishedRequest] = []
        self._counters = Counters()
        self._suspects = Suspects(config.max_step_failures)
        self._retraction = Retraction(
            self.memory, self._running, self._waiting, self._reservation, self._counters, config.force_retraction_every
        )
        self._composer = Composer(
            config,
            self.memory,
            self._waiting,
            self._running,
            self._admission,
            self._retraction,
            self._drafts,
            self._in_flight,
            self._counters,
            self._suspects,
        )
        self._next_step = 1
        self._next_seq = 0

    # --- requests come and go ------------------------------------------------------------------------------------

    def add(self, new: NewRequest) -> None:
        """Mutates: the request waits. Raises ValueError in one sentence when it is malformed or can never run."""
        if new.request_id in self._requests:
            raise ValueError(f"request {new.request_id!r} is already here")
        sizes = self.memory.sizes
        need = check_request(new, sizes, self.config)
        shortages = never_fits(need, sizes, self.memory.kinds)
        if shortages:
            reasons = "; ".join(str(shortage) for shortage in shortages)
            raise ValueError(f"request {new.request_id!r} can never run: {reasons}")
        request = track(new, self._next_seq, self._clock(), need.max_total_tokens)
        self._next_seq += 1
        self._requests[new.request_id] = request
        self._waiting.push(request)

    def abort(self, request_id: str) -> bool:
        """Mutates: ends the request at once, wherever it stands. False if it is not here (any more)."""
        return self._end(request_id, "abort")

    def finish(self, request_id: str) -> bool:
        """Mutates: ends a running request as "stop" (the caller found a stop string). False if it is not here."""
        return self._end(request_id, "stop")

    def finish_with_error(self, request_id: str, error: str) -> bool:
        """Mutates: ends the request at once with `error` (the caller cannot go on with it). False if it is not here."""
        return self._end(request_id, "error", error)

    def _end(self, request_id: str, reason: FinishReason, error: str | None = None) -> bool:
        request = self._requests.get(request_id)
        if request is None:
            return False
        if request.row is None:
            self._waiting.remove(request)
            self._report(request, reason, len(request.known), error=error)
        elif reason == "stop":
            self._finish_running(request, "stop", None)
        else:
            self._report(request, reason, int(self.memory.table.num_tokens[request.row]), error=error)
            leave(self.memory, self._running, request)
        return True

    def _report(
        self,
        request: Tracked,
        reason: FinishReason,
        num_tokens: int,
        stop_token: int | None = None,
        error: str | None = None,
    ) -> None:
        """Mutates: the request is gone for its caller."""
        self._suspects.forget(request)
        del self._requests[request.request_id]
        self._finished.append(
            FinishedRequest(
                request_id=request.request_id,
                reason=reason,
                num_prompt_tokens=request.num_prompt_tokens,
                num_output_tokens=num_tokens - request.num_prompt_tokens,
                num_cached_tokens=request.num_cached_tokens or 0,
                stop_token_id=stop_token,
                error=error,
            )
        )

    def pop_finished(self) -> list[FinishedRequest]:
        """Mutates: everything that ended since the last call, in order."""
        finished, self._finished = self._finished, []
        return finished

    # --- schedule ------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Mutates: the next plan, or None when nothing can run before something else happens (a result, an arrival,
        a gate). Several plans may be in flight; results are committed in the order of the plans."""
        now = self._clock()
        for request, error in self._waiting.sweep(now):
            self._report(request, "error", len(request.known), error=error)
        if len(self._in_flight) >= self.config.max_plans_in_flight:
            return None
        self._retraction.force(self._next_step)
        builder = self._fill(now)
        if builder is None:
            return None
        self._composer.take_snapshots(builder)
        flight = builder.freeze()
        self._in_flight.append(flight)
        self._next_step += 1
        self._running.start_decoding([request for request in flight.chunks if self._prefilled(request)])
        return flight.plan

    def _fill(self, now: float) -> PlanBuilder | None:
        """Mutates: a builder with something in it; None when nothing can run now.

        With results in flight an empty step just waits for them. Otherwise those that run block each other: the one
        that gives way first gives up its memory, again and again, until the first of them can go on. That one fits
        alone, as was checked when it was added; should it fail all the same, it ends with an error and the others go
        on.
        """
        admit = True
        while True:
            builder = self._new_builder()
            retracted = self._composer.compose(builder, now, admit)
            if not builder.empty:
                return builder
            if self._in_flight or len(self._running) == 0:
                return None
            admit = admit and not retracted
            if len(self._running) > 1:
                victim = self._retraction.victim(builder.step_id)
                assert victim is not None, "an empty plan holds nobody"
                self._retraction.retract(victim)
                admit = False
            elif not retracted:
                self._give_up(self._running.requests()[0])
                admit = True

    def _new_builder(self) -> PlanBuilder:
        budget = self.config.max_num_batched_tokens
        return PlanBuilder(self._next_step, self.memory.table, budget, self.config.encoder_budget)

    def _prefilled(self, request: Tracked) -> bool:
        """Whether the request has been planned up to its last known token."""
        table, row = self.memory.table, request.row
        return row is not None and bool(table.num_computed[row] >= table.num_tokens[row])

    def _give_up(self, request: Tracked) -> None:
        """Mutates: the last resort. One request runs alone, nothing is in flight, and it cannot go on."""
        reasons = "; ".join(str(shortage) for shortage in request.shortages) or "no pool names a shortage"
        self._end(
            request.request_id,
            "error",
            f"request {request.request_id!r} cannot go on although it runs alone: {reasons}",
        )

    # --- results -------------------------------------------------------------------------------------------------

    def commit(self, result: StepResult) -> NewTokens:
        """Mutates: what the oldest plan in flight computed becomes true. Rows of requests that were aborted or
        retracted meanwhile are dropped. Raises ValueError, with nothing changed, if the result is not that plan's."""
        if not self._in_flight:
            raise ValueError(f"result of step {result.step_id}, but no step is in flight")
        check_result(self._in_flight[0], result, self.config.num_draft_tokens)
        flight = self._in_flight.popleft()
        memory, step = self.memory, flight.plan.step_id
        memory.settle(step)
        advanced = advance(memory, self._drafts, flight, result)
        self._suspects.clear(memory.table)
        for image in flight.plan.encode:
            memory.encoder.confirm(image.mm_hash, image.slots)
        for loaded in flight.plan.load_adapters:
            memory.lora.confirm(loaded.lora_id, loaded.units)
        for point in flight.publish:
            self._publish(point)
        for request in flight.chunks:
            if request.row is not None and request.images:
                release_images(memory, request, int(memory.table.num_processed[request.row]))
        memory.release_behind_window(advanced.rows)
        for request in [
            r for r in self._running.draining if r.row is not None and memory.table.last_step[r.row] <= step
        ]:
            leave(memory, self._running, request)
        for row, stop_token in zip(advanced.ended_rows.tolist(), advanced.stop_tokens.tolist(), strict=True):
            ended = self._running.by_row[row]
            assert ended is not None
            self._finish_running(
                ended, "stop" if stop_token >= 0 else "length", stop_token if stop_token >= 0 else None
            )
        return advanced.tokens

    def _publish(self, point: PublishPoint) -> None:
        """Mutates: a snapshot of a request that still owns its row becomes a resume point; its slot changes owner."""
        memory = self.memory
        if memory.table.epoch[point.row] == point.epoch:
            publish_point(memory, point.request, point.position, point.slot)
            if point.position in point.request.awaited:
                point.request.awaited.remove(point.position)
        if point.slot is not None:
            release_snapshot(memory, point.slot)

    def _finish_running(self, request: Tracked, reason: FinishReason, stop_token: int | None) -> None:
        """Mutates: reported at once; its memory goes back as soon as no step in flight computes for it."""
        table, row = self.memory.table, request.row
        assert row is not None
        num_tokens = int(table.num_tokens[row])
        self._reservation.finished(
            num_tokens - request.num_prompt_tokens, request.max_total_tokens - request.num_prompt_tokens
        )
        self._report(request, reason, num_tokens, stop_token)
        if table.last_step[row] <= self.memory.rows.settled_step:
            leave(self.memory, self._running, request)
        else:
            table.live[row] = False
            self._running.stop(request)
            self._running.draining.append(request)

    def fail(self, step_id: int, error: str, blamed: Collection[str] = ()) -> None:
        """Mutates: the oldest plan in flight came to nothing. Its requests wait to be recomputed. Those in `blamed`
        (request ids) end with `error`, and so does one that is found to break its steps (see suspects.py). Raises
        ValueError if `step_id` is not the oldest in flight."""
        if not self._in_flight or self._in_flight[0].plan.step_id != step_id:
            oldest = self._in_flight[0].plan.step_id if self._in_flight else None
            raise ValueError(f"step {step_id} is not the oldest step in flight ({oldest})")
        flight = self._in_flight.popleft()
        memory = self.memory
        memory.settle(step_id)
        owned = memory.table.epoch[flight.plan.rows] == flight.epochs
        victims = [self._running.by_row[row] for row in flight.plan.rows[owned].tolist()]
        holders = [*self._running.requests(), *self._running.draining]  # of what this step should have filled
        for image in flight.plan.encode:
            if memory.encoder.is_unconfirmed(image.mm_hash, image.slots):
                memory.encoder.forget(image.mm_hash)
                victims += [r for r in holders if any(u is image.slots for u in r.images.values())]
        for loaded in flight.plan.load_adapters:
            if memory.lora.is_unconfirmed(loaded.lora_id, loaded.units):
                memory.lora.forget(loaded.lora_id)
                victims += [r for r in holders if r.adapter_units is loaded.units]
        for point in flight.publish:
            if point.slot is not None:
                release_snapshot(memory, point.slot)
        failed = [request for request in dict.fromkeys(victims) if request is not None]
        live = [request for request in failed if request not in self._running.draining]
        ended = self._suspects.blame(live, blamed, memory.table)
        for request in failed:
            if request in live and request not in ended:
                self._retraction.requeue(request, state_is_exact=False)
                continue
            if request in ended:
                assert request.row is not None
                self._report(request, "error", int(memory.table.num_tokens[request.row]), error=error)
            leave(memory, self._running, request, state_is_exact=False)
        self._counters.failed_steps += 1

    # --- questions -----------------------------------------------------------------------------------------------

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._requests)

    @property
    def num_in_flight(self) -> int:
        """Plans whose results are not committed."""
        return len(self._in_flight)

    def num_cached_tokens(self, request_id: str) -> int:
        """Prompt tokens that the request did not compute itself, as of its first admission."""
        return self._requests[request_id].num_cached_tokens or 0

    def explain(self, request_id: str) -> str:
        """One sentence: what holds the request back, with numbers. Pure."""
        request = self._requests.get(request_id)
        if request is None:
            return f"request {request_id!r} is not here: it never was, or it has ended"
        if request.row is not None:
            return explain_running(request, self.memory)
        ahead = sum(1 for other in self._waiting if not other.gates and other.seq < request.seq)
        shortages = () if request.gates else self.shortages(request_id)
        return explain_waiting(request, shortages, ahead, self.memory)

    def shortages(self, request_id: str) -> tuple[Shortage, ...]:
        """Why a waiting request could not start now, were it its turn: what admission answers. Pure."""
        return self._admission.shortages(self._requests[request_id], self._new_builder())

    def explanation(self, request_id: str) -> Explanation | None:
        """`explain` with what the request holds; None if it is not here. Pure."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        holds = held_units(request, self.memory)
        return Explanation(request_id, request.row is not None, self.explain(request_id), holds)

    def pop_queue_times(self) -> list[float]:
        """Mutates: seconds from arrival to first admission, of those admitted since the last call (the latest 4096)."""
        times = list(self._counters.queue_times)
        self._counters.queue_times.clear()
        return times

    def stats(self) -> SchedulerStats:
        """Counters and ledgers as they are now."""
        return SchedulerStats(
            num_waiting=len(self._waiting),
            num_running=len(self._running),
            num_in_flight=len(self._in_flight),
            output_ratio=self._reservation.ratio,
            prompt_tokens=self._counters.prompt_tokens,
            hit_tokens=self._counters.hit_tokens,
            retractions=self._counters.retractions,
            recomputed_tokens=self._counters.recomputed_tokens,
            failed_steps=self._counters.failed_steps,
            ledgers=self.memory.ledgers(),
            waiting_for=Counter(waits_for(request) for request in self._waiting),
            shared={
                pool.name: SharedEntries(pool.num_hits, pool.num_loads, pool.num_evictions)
                for pool in (self.memory.encoder, self.memory.lora)
            },
        )

    def reset_prefix_cache(self) -> None:
        """Mutates: forget all resume points and idle images."""
        if self.memory.cache is not None:
            self.memory.cache.clear()
        self.memory.encoder.forget_idle()

    def check(self) -> None:
        """Every invariant of memory and queues. For tests; raises InvariantViolation or AssertionError."""
        rows = [row for row, request in enumerate(self._running.by_row) if request is not None]
        self.memory.check(rows)
        waiting = set(self._waiting)
        for request in self._requests.values():
            queued = request in waiting
            assert queued == (request.row is None), f"{request.request_id!r} is neither waiting nor running, or both"
            if queued:
                assert not request.images and request.adapter_units is None, (
                    f"{request.request_id!r} holds while it waits"
                )
