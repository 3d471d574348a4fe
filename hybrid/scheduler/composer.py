"""Composer: what goes into one step, in which order. Asks decodes, chunks and admission; grants nothing itself."""

from collections import Counter, deque

from hybrid.pools.ledger import Ints
from hybrid.pools.memory import Memory
from hybrid.pools.transaction import Claim, Transaction

from .admission import Admission, continue_chunk
from .builder import InFlight, PlanBuilder, PublishPoint
from .config import SchedulerConfig
from .decode import Drafts, schedule_decodes
from .delayer import PrefillDelayer
from .plan import Snapshot
from .retraction import Retraction
from .running import Running
from .siblings import elder_sibling
from .stats import Counters
from .suspects import Suspects
from .tracked import Tracked
from .waiting import WaitingQueue

SKIPPABLE = frozenset({"encoder", "LoRA"})
LOOK_AHEAD = 16  # waiting requests that a full step looks at


class Composer:
    """Fills a PlanBuilder: decode-first (running decodes, running prefills, waiting) or prefill-first."""

    def __init__(
        self,
        config: SchedulerConfig,
        memory: Memory,
        waiting: WaitingQueue,
        running: Running,
        admission: Admission,
        retraction: Retraction,
        drafts: Drafts,
        in_flight: deque[InFlight],
        counters: Counters,
        suspects: Suspects,
    ) -> None:
        self._config = config
        self._memory = memory
        self._waiting = waiting
        self._running = running
        self._admission = admission
        self._retraction = retraction
        self._drafts = drafts
        self._in_flight = in_flight
        self._counters = counters
        self._suspects = suspects
        self._delayer = PrefillDelayer(config)

    def compose(self, builder: PlanBuilder, now: float, admit: bool) -> bool:
        """Mutates: fill the builder. Returns whether somebody was retracted: then nobody is admitted in this step."""
        has_decodes = len(self._running.decoding) > 0
        if self._config.composition == "prefill-first" and not self._delayer.decodes_first():
            self._continue_prefills(builder)
            if admit and not self._delayer.delays(self._waiting.num_tokens, has_decodes):
                self._admit_waiting(builder, now)
            retracted = self._schedule_decodes(builder)
        else:
            retracted = self._schedule_decodes(builder)
            self._continue_prefills(builder)
            if admit and not retracted:
                self._admit_waiting(builder, now)
        self._delayer.note_step(len(self._running.decoding) > builder.num_decodes)
        return retracted

    def _schedule_decodes(self, builder: PlanBuilder) -> bool:
        before = self._counters.retractions

        def retract() -> Ints | None:
            victim = self._retraction.victim(builder.step_id)
            if victim is None or len(self._running) == 1:
                return None
            self._retraction.retract(victim)
            return self._running.decoding

        if builder.token_budget > 0 and len(self._running.decoding):
            in_flight = len(self._in_flight) > 0
            schedule_decodes(self._memory, self._drafts, builder, self._running.decoding, in_flight, retract)
        return self._counters.retractions > before

    def _continue_prefills(self, builder: PlanBuilder) -> None:
        for request in self._running.prefilling:
            if builder.token_budget <= 0:
                return
            continue_chunk(self._memory, self._config, builder, request)

    def _admit_waiting(self, builder: PlanBuilder, now: float) -> None:
        """Mutates: the waiting requests that fit, in the policy's order. A request that lacks only an adapter or an
        encoder place is passed by (a bounded number of times); any other shortage ends the scan.

        A full step still asks its prefills for the resume points at which the next in line part from them."""
        room = builder.token_budget > 0 and self._memory.rows.available() > 0
        if not self._waiting.num_ready or not (room or builder.chunks):
            return
        elders = self._elders()
        keys: Counter[str] = Counter()
        if self._config.scheduling_policy == "routing-key":
            keys.update(request.routing_key for request in self._running.requests())
        admitted: list[Tracked] = []
        passed: list[Tracked] = []
        for scanned, request in enumerate(self._waiting.propose(now, self._admission.refresh_match, keys)):
            room = room and builder.token_budget > 0
            if scanned >= (self._config.max_scan if room else LOOK_AHEAD):
                break
            request.waits_for = ""
            if not self._suspects.may_join(request):
                request.waits_for = "another request that a failed step has made suspect to pass the point of failure"
                continue
            self._admission.refresh_match(request)
            elder = elder_sibling(self._memory, builder, elders, request, self._config.min_shared_tokens)
            if elder is not None:
                request.waits_for = f"request {elder.request_id!r} to compute the prefix that both share"
            if elder is not None or not room:
                continue
            if self._admission.try_admit(request, builder, len(self._in_flight) > 0):
                admitted.append(request)
                elders.append(request)
                for earlier in passed:
                    earlier.skips += 1
                self._count(request, builder)
                if not request.retractions:
                    self._counters.queue_times.append(now - request.arrival)
            elif self._may_be_passed(request):
                passed.append(request)
            else:
                break
        for request in admitted:
            self._waiting.remove(request)

    def _may_be_passed(self, request: Tracked) -> bool:
        only_skippable = all(shortage.pool in SKIPPABLE for shortage in request.shortages)
        return only_skippable and request.skips < self._config.max_skips

    def _elders(self) -> list[Tracked]:
        """Running requests that have resume points ahead of them, or in flight."""
        in_flight = (request for flight in self._in_flight for request in flight.chunks if request.awaited)
        return list(dict.fromkeys([*self._running.prefilling, *(r for r in in_flight if r.row is not None)]))

    def _count(self, request: Tracked, builder: PlanBuilder) -> None:
        """Mutates the counters: what an admitted request hit, or must compute again."""
        assert request.row is not None
        hit = builder.chunk_starts[request.row]
        if request.retractions:
            self._counters.recomputed_tokens += max(0, request.lost_tokens - hit)
        else:
            self._counters.prompt_tokens += len(request.known)
            self._counters.hit_tokens += hit
        request.lost_tokens = 0

    def take_snapshots(self, builder: PlanBuilder) -> None:
        """Mutates: resume points that fall into this plan's chunks get a state slot each, where there is one to
        spare. They come last: a snapshot never keeps a request waiting."""
        memory, table = self._memory, self._memory.table
        for request in builder.chunks:
            row = request.row
            if row is None or not request.wanted:
                continue
            end = int(table.num_computed[row])
            for position in [point for point in request.wanted if point <= end]:
                slot: int | None = None
                if memory.kinds.state:
                    with Transaction() as transaction:
                        if transaction.reserve(Claim.of(memory.state, 1)):
                            continue
                        slot = int(transaction.commit()[0][0])
                    builder.snapshots.append(Snapshot(row, position, slot))
                request.awaited.append(position)
                builder.publish.append(PublishPoint(request, row, int(table.epoch[row]), position, slot))
            request.wanted = [point for point in request.wanted if point > end]
