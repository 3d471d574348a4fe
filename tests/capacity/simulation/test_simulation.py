"""The simulation against answers that are known without it, and against the real engine with the same step times."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from hybrid.capacity.simulation.outcome import Outcome
from hybrid.capacity.simulation.records import Fate
from hybrid.capacity.simulation.simulation import Conditions, Simulation, simulate
from hybrid.capacity.simulation.targets import Targets
from hybrid.capacity.step_time.step_time import EXACT
from hybrid.capacity.step_time.step_work import StepWork
from hybrid.capacity.workload.parse import Surroundings, parse_workload
from hybrid.capacity.workload.segments import token_ids
from hybrid.encoders.inputs import EncoderInput
from hybrid.engine import Engine
from hybrid.frontend.prompt import Prompt
from hybrid.grammar.backend import Masks
from hybrid.models.image_positions import ImagePositions
from hybrid.runner.launched import RunnerOutput
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.plan import StepPlan, StepResult
from hybrid.scheduler.scheduler import Scheduler

from .engines import HYBRID, VOCAB_SIZE, Linear, engine, poisson, workload


def test_one_request_takes_its_chunks_and_then_a_step_a_token() -> None:
    """1,000 tokens in chunks of 512 are two steps; the second one samples."""
    model = engine(Linear(0.01, 0.0001), config=SchedulerConfig(max_num_batched_tokens=512))
    outcome = simulate(model, workload([0.0], 1000, 5))
    records = outcome.records
    assert records.ttft[0] == pytest.approx(0.01 + 0.0512 + 0.01 + 0.0488)
    assert records.gaps == pytest.approx([0.0101] * 4, rel=1e-5)
    assert records.itl_p95[0] == pytest.approx(0.0101, rel=1e-5)
    assert records.e2e[0] == pytest.approx(records.ttft[0] + 4 * 0.0101)
    totals = outcome.totals
    assert (totals.steps, totals.scheduled_tokens, totals.new_tokens) == (6, 1004, 5)
    assert totals.time == totals.busy == pytest.approx(records.e2e[0])


def test_an_arrival_in_a_step_is_noticed_at_its_end() -> None:
    outcome = simulate(engine(Linear(1.0)), workload([0.0, 0.25], 10, 3))
    records = outcome.records
    assert records.added.tolist() == [0.0, 1.0]
    assert records.admitted.tolist() == [0.0, 1.0]
    assert records.first.tolist() == [1.0, 2.0]
    assert records.queue.tolist() == [0.0, 0.75]


def test_an_idle_engine_starts_at_once() -> None:
    records = simulate(engine(Linear(1.0)), workload([0.0, 10.5], 10, 3)).records
    assert records.ttft.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_one_server_with_fixed_times(load: float) -> None:
    """One row and one token make a single server with constant service times (M/D/1), where each arrival waits for what
    the one before it waited and was served, less the time between the two (Lindley 1952)."""
    times, service = poisson(1000, load / 0.1), 0.1
    outcome = simulate(engine(Linear(service), num_rows=1, enable_prefix_caching=False), workload(times, 8, 1))
    expected = [0.0]
    for gap in np.diff(times):
        expected.append(max(0.0, expected[-1] + service - gap))
    assert outcome.records.queue == pytest.approx(expected)
    assert outcome.totals.busy / outcome.totals.time == pytest.approx(load, rel=0.05)


def test_saturated_decoding_is_as_fast_as_its_steps() -> None:
    """Everybody there from the start, prompts of one token: 64 rows decode in every step but the last ones."""
    model = engine(Linear(0.01, 0.001), num_rows=64)
    outcome = simulate(model, workload(np.zeros(640), 1, 50))
    assert outcome.totals.new_tokens / outcome.totals.time == pytest.approx(64 / (0.01 + 64 * 0.001), rel=0.01)
    waiting_for = outcome.timeline.waiting_for
    assert max(waiting_for, key=lambda cause: waiting_for[cause]) == "request row"


def test_the_pool_that_is_short_holds_the_queue() -> None:
    """Blocks for two requests at a time."""
    outcome = simulate(engine(num_full_blocks=20), workload(np.zeros(30), 100, 60))
    assert set(outcome.timeline.waiting_for) == {"full attention"}
    assert outcome.timeline.in_use[:, outcome.timeline.pools.index("full attention")].max() > 0.9


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_nothing_is_held_at_the_end(in_flight: int) -> None:
    config = SchedulerConfig(max_plans_in_flight=in_flight, max_num_batched_tokens=256, initial_output_ratio=0.1)
    model = engine(config=config, kinds=HYBRID, num_full_blocks=80, num_rows=16, max_model_len=400)
    simulation = Simulation(model, workload(poisson(80, 40), 150, 90), Conditions(max_tokens=200))
    outcome = simulation.run(lambda now: None)
    assert (outcome.records.fate == Fate.COMPLETED).all()
    assert (outcome.records.tokens == 90).all()
    assert outcome.totals.retractions > 0 and outcome.totals.recomputed_tokens > 0
    simulation.scheduler.check()
    for pool in simulation.scheduler.memory.pools:
        ledger = pool.ledger()
        assert (ledger.held, ledger.pinned, ledger.pending, ledger.reserved) == (0, 0, 0, 0), pool.name
        assert ledger.total == pool.capacity


def test_the_next_turn_finds_the_last_one() -> None:
    """The second prompt is the first, its answer and 20 tokens more, 5 seconds after the answer."""
    outcome = simulate(engine(kinds=HYBRID), workload([0.0, 5.0, 100.0], [200, 20, 50], 30, after=[-1, 0, -1]))
    records = outcome.records
    assert records.arrival[1] == pytest.approx(records.last[0] + 5.0)
    assert records.prompt_tokens.tolist() == [200, 250, 50]
    assert records.cached.tolist() == [0, 229, 0]  # all that was computed: all but the last token
    without = simulate(engine(enable_prefix_caching=False), workload([0.0, 5.0], [200, 20], 30, after=[-1, 0]))
    assert without.records.cached.tolist() == [0, 0]


def test_turns_of_a_request_that_failed_are_never_sent() -> None:
    outcome = simulate(engine(max_model_len=100), workload([0.0, 1.0, 2.0], [200, 20, 50], 30, after=[-1, 0, -1]))
    assert outcome.records.fate.tolist() == [Fate.REFUSED, Fate.UNSENT, Fate.COMPLETED]
    assert "200 tokens, max_model_len 100" in outcome.records.error
    assert outcome.records.measured.tolist() == [True, False, True]


def test_adapters_are_read_and_held() -> None:
    """Two adapters of 2 units, read one after the other at 2 GB/s; the third request finds its adapter there."""
    model = engine(Linear(0.01), lora_bytes_per_unit=10**9, lora_units=4)
    traffic = workload([0.0, 0.0, 3.0], 10, 2, adapters=("a", "b"), ranks=(16, 16), adapter=[0, 1, 0], keys=[1, 1, 2])
    outcome = simulate(model, traffic)
    assert outcome.records.ttft == pytest.approx([1.01, 2.01, 0.01])
    assert set(outcome.timeline.waiting_for) == {"gate"}
    too_large = simulate(engine(lora_units=1), traffic)
    assert (too_large.records.fate == Fate.REFUSED).all()


@dataclass(frozen=True, slots=True)
class Seen:
    """A second a step; `encoded` hears of every image."""

    encoded: list[int]
    variation: ClassVar[tuple[float, ...]] = EXACT

    def seconds(self, work: StepWork) -> float:
        self.encoded.extend(work.image_tokens)
        return 1.0


def test_steps_vary_around_what_they_take_and_always_alike() -> None:
    @dataclass(frozen=True, slots=True)
    class Varying(Linear):
        variation: ClassVar[tuple[float, ...]] = (0.5, 1.0, 1.5)

    traffic = workload([0.0], [1], [3000])
    [first, second] = [simulate(engine(Varying()), traffic).records.gaps for _ in range(2)]
    assert sorted(set(first.round(6).tolist())) == pytest.approx([0.005, 0.01, 0.015])
    assert first.mean() == pytest.approx(0.01, rel=0.03)
    assert (first == second).all()


def test_images_are_encoded_once() -> None:
    """Four requests of two images of 20 tokens and 30 tokens of text; the same four again find their images."""
    given = Surroundings(context="30", output="3", images=2, image_tokens=20)
    traffic = parse_workload("steady", replace(given, num_requests=4))
    seen = Seen([])
    config = SchedulerConfig(max_image_tokens=20)
    outcome = simulate(engine(seen, config=config, enable_prefix_caching=False), traffic)
    assert (outcome.records.fate == Fate.COMPLETED).all() and outcome.records.prompt_tokens.tolist() == [70] * 4
    assert seen.encoded == [20] * 8
    assert outcome.timeline.cached[-1, outcome.timeline.pools.index("encoder")] == 160 / 512
    twice = replace(traffic, times=np.zeros(4), keys=np.tile(traffic.keys[:3], 4))
    simulate(engine(seen, config=config, enable_prefix_caching=False), twice)
    assert seen.encoded == [20] * 10


def test_an_image_of_several_entries() -> None:
    """Of 8, 8 and 3 tokens, with a mark behind them."""
    given = Surroundings(context="30", output="3", images=2, image_tokens=20, num_requests=1)
    seen = Seen([])
    model = replace(engine(seen, config=SchedulerConfig(max_image_tokens=8)), image_entries=(8, 8, 3))
    outcome = simulate(model, parse_workload("steady", given))
    assert (outcome.records.fate == Fate.COMPLETED).all() and outcome.records.prompt_tokens.tolist() == [70]
    assert seen.encoded == [8, 8, 3] * 2


def test_nothing_is_sent_after_the_duration_and_nothing_measured_before_the_warm_up() -> None:
    outcome = simulate(engine(), workload(np.arange(100.0), 50, 10), Conditions(duration=50.0, warmup=20.0))
    assert np.bincount(outcome.records.fate).tolist() == [49, 0, 51]
    assert outcome.records.measured.sum() == 31
    assert len(outcome.records.gaps) == 31 * 9
    assert outcome.totals.new_tokens == 310
    assert outcome.totals.time == pytest.approx(30.1)


def test_overload_ends_early_and_says_so() -> None:
    """Ten times what one row can do, for a simulated day."""
    model = engine(Linear(1.0), num_rows=1)
    traffic = workload(np.arange(86_400.0), 10, 10)
    outcome = simulate(model, traffic, Conditions(targets=Targets(ttft=5.0)))
    assert outcome.stopped.startswith("the queue grows without bound")
    assert outcome.totals.time < 7200
    assert (outcome.records.fate == Fate.UNSENT).sum() > 70_000


def test_a_queue_that_can_no_longer_meet_its_targets_is_not_waited_for() -> None:
    model = engine(Linear(1.0), num_rows=1)
    outcome = simulate(model, workload(np.zeros(500), 10, 10), Conditions(targets=Targets(ttft=5.0)))
    assert "could meet the targets any more" in outcome.stopped
    assert outcome.totals.time < 50
    whole = simulate(model, workload(np.zeros(500), 10, 10))
    assert whole.stopped == "" and (whole.records.fate == Fate.COMPLETED).all()


def test_two_runs_are_equal() -> None:
    def run() -> Outcome:
        model = engine(Linear(0.01, 0.0001), kinds=HYBRID, num_full_blocks=200)
        return simulate(model, workload(poisson(100, 30), 100, 40), Conditions(targets=Targets(ttft=1.0)))

    one, other = run(), run()
    assert one.totals == other.totals
    for column in ("arrival", "admitted", "first", "last", "itl_p95", "gaps"):
        assert np.array_equal(getattr(one.records, column), getattr(other.records, column), equal_nan=True)
    assert np.array_equal(one.timeline.in_use, other.timeline.in_use)


class TimedRunner:
    """For the real engine: the same step times, the same tokens, the same clock."""

    def __init__(self, step_time: Linear, answers: Mapping[str, Any], prompt_lengths: Mapping[str, int]) -> None:
        self.now = 0.0
        self._free = 0.0  # when the device is done with all that was launched
        self._step_time = step_time
        self._answers = answers
        self._prompt_lengths = prompt_lengths
        self._rows: dict[int, str] = {}

    def add_request(
        self,
        request_id: str,
        params: SamplingParams,
        images: Mapping[str, EncoderInput] | None = None,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
        image_positions: ImagePositions | None = None,
    ) -> None:
        pass

    def remove_request(self, request_id: str) -> None:
        pass

    def launch(self, plan: StepPlan, grammar: Masks | None = None) -> Callable[[], RunnerOutput]:
        for new in plan.new_rows:
            self._rows[new.row] = new.request_id
        end = self._free = max(self.now, self._free) + self._step_time.seconds(StepWork.of(plan))
        ids = [self._rows[row] for row in plan.rows[plan.samples].tolist()]
        ends = (plan.num_computed_tokens + plan.num_scheduled_tokens)[plan.samples].tolist()
        tokens = [self._answers[one][end - self._prompt_lengths[one]] for one, end in zip(ids, ends, strict=True)]
        result = StepResult.one_each(plan.step_id, np.array(tokens, dtype=np.int32))

        def wait() -> RunnerOutput:
            self.now = max(self.now, end)
            return RunnerOutput(result, (None,) * len(tokens))

        return wait


@pytest.mark.parametrize("in_flight", [1, 2])
def test_token_times_are_those_of_the_real_engine(in_flight: int) -> None:
    """The real Engine, driven as AsyncEngine drives it, hands out the same tokens at the same times."""
    config = SchedulerConfig(
        max_plans_in_flight=in_flight, max_num_batched_tokens=128, initial_output_ratio=0.1, scheduling_policy="lpm"
    )
    step_time = Linear(0.01, 0.0001)
    model = engine(step_time, config=config, kinds=HYBRID, num_full_blocks=45, num_rows=12, max_model_len=400)
    rng = np.random.default_rng(5)
    traffic = workload(poisson(80, 100), rng.integers(20, 200, 80), rng.integers(1, 60, 80), keys=np.arange(80) // 4)
    outcome = simulate(model, traffic)

    lengths = {str(index): int(length) for index, length in enumerate(traffic.prompt_lengths)}
    answers = {str(i): token_ids((one.output,), vocab_size=VOCAB_SIZE) for i, one in enumerate(traffic)}
    runner = TimedRunner(step_time, answers, lengths)
    scheduler = Scheduler(config, model.sizes, model.kinds, clock=lambda: runner.now)
    real = Engine(scheduler, runner, None, max_plans_in_flight=in_flight)
    coming = deque(enumerate(traffic))
    times: dict[str, list[float]] = {str(index): [] for index in range(80)}
    while coming or real.is_busy:
        if not real.is_busy:
            runner.now = max(runner.now, coming[0][1].time)
        while coming and coming[0][1].time <= runner.now:
            index, arrival = coming.popleft()
            prompt = Prompt(None, token_ids(arrival.prompt, vocab_size=VOCAB_SIZE))
            params = SamplingParams(max_tokens=arrival.output.length, ignore_eos=True, detokenize=False)
            real.add_request(str(index), prompt, params, max_tokens=arrival.output.length)
        for update in real.step():
            times[update.request_id] += [runner.now] * len(update.token_ids)
            if update.finish_reason is not None:
                assert update.num_cached_tokens == outcome.records.cached[int(update.request_id)]
    assert outcome.totals.retractions == scheduler.stats().retractions
    assert outcome.totals.retractions > 0 or in_flight > 1  # with results in flight rows wait instead
    assert outcome.totals.hit_tokens == scheduler.stats().hit_tokens > 0
    for index in range(80):
        assert times[str(index)][0] == outcome.records.first[index]
        assert times[str(index)][-1] == outcome.records.last[index]
        assert len(times[str(index)]) == outcome.records.tokens[index]
