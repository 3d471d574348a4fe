"""Requests end in every way there is, and leave nothing behind: in the scheduler, in the runner, in the engine."""

from collections import defaultdict
from collections.abc import Callable

import pytest

from hybrid.engine import Engine
from hybrid.frontend.generation import Update
from hybrid.grammar.backend import Masks
from hybrid.runner.launched import RunnerOutput
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import StepPlan
from tests.scripted import EOS, SPECIAL, ScriptedRunner, prompt, scripted_engine


def add(engine: Engine, request_id: str, text: str = "prompt", max_tokens: int = 20, **params: object) -> None:
    chosen = SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)  # type: ignore[arg-type]
    engine.add_request(request_id, prompt(text), chosen, max_tokens=max_tokens)


def run(engine: Engine, runner: ScriptedRunner, max_steps: int = 500) -> dict[str, list[Update]]:
    """All updates until nothing is unfinished; then nothing may be left anywhere."""
    updates = defaultdict(list)
    for _ in range(max_steps):
        if not engine.has_unfinished:
            break
        for update in engine.step():
            updates[update.request_id].append(update)
        engine.scheduler.check()
    assert_nothing_left(engine, runner)
    for of_one in updates.values():
        assert [update.finish_reason is not None for update in of_one] == [False] * (len(of_one) - 1) + [True]
    return dict(updates)


def assert_nothing_left(engine: Engine, runner: ScriptedRunner) -> None:
    assert not engine.has_unfinished and not engine.is_busy
    assert engine.scheduler.num_unfinished == engine.scheduler.num_in_flight == 0
    assert runner.requests == {}
    for pool, ledger in engine.scheduler.stats().ledgers.items():
        assert (ledger.reserved, ledger.held, ledger.pinned, ledger.pending) == (0, 0, 0, 0), pool


def collect_for_ever(engine: Engine, updates: list[Update]) -> None:
    while True:
        updates += engine.step()


def text_of(updates: list[Update]) -> str:
    return "".join(update.text for update in updates)


def tokens_of(updates: list[Update]) -> list[int]:
    return [token_id for update in updates for token_id in update.token_ids]


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"{n}-in-flight")
def in_flight(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


def test_tokens_and_text_arrive_step_by_step(in_flight: int) -> None:
    runner = ScriptedRunner({"a": "hé!".encode()})
    engine = scripted_engine(runner, max_plans_in_flight=in_flight)
    add(engine, "a")
    updates = run(engine, runner)["a"]
    assert [update.text for update in updates] == ["h", "", "é", "!", ""]
    assert tokens_of(updates) == [*"hé!".encode(), EOS]
    assert (updates[-1].finish_reason, updates[-1].stop_reason, updates[-1].error) == ("stop", None, None)


def test_results_are_committed_only_when_the_window_is_full() -> None:
    """The runner answers late: the scheduler plans ahead of what it knows, and the output is the same."""
    runner = ScriptedRunner({"a": b"0123456789"})
    engine = scripted_engine(runner, max_plans_in_flight=3)
    add(engine, "a")
    assert [update.text for update in engine.step()] == ["0"]
    assert len(runner.plans) == 3
    assert engine.scheduler.num_in_flight == 2
    assert text_of(run(engine, runner)["a"]) == "123456789"


def test_many_requests_through_few_rows(in_flight: int) -> None:
    scripts = {f"r{i}": f"answer {i} {'x' * (i % 7)}".encode() for i in range(25)}
    runner = ScriptedRunner(scripts)
    engine = scripted_engine(runner, max_plans_in_flight=in_flight)
    for i, request_id in enumerate(scripts):
        add(engine, request_id, f"prompt number {i}", max_tokens=30)
    updates = run(engine, runner)
    assert {request_id: text_of(of_one).encode() for request_id, of_one in updates.items()} == scripts


def test_the_length_ends_it(in_flight: int) -> None:
    runner = ScriptedRunner({"a": b"0123456789"})
    engine = scripted_engine(runner, max_plans_in_flight=in_flight)
    add(engine, "a", max_tokens=4)
    updates = run(engine, runner)["a"]
    assert (text_of(updates), updates[-1].finish_reason) == ("0123", "length")


def test_a_stop_string_across_tokens_ends_it(in_flight: int) -> None:
    runner = ScriptedRunner({"a": b"one END two"})
    engine = scripted_engine(runner, max_plans_in_flight=in_flight)
    add(engine, "a", stop=["END"])
    updates = run(engine, runner)["a"]
    assert text_of(updates) == "one "
    assert tokens_of(updates) == list(b"one END")
    assert (updates[-1].finish_reason, updates[-1].stop_reason) == ("stop", "END")
    assert all("E" not in update.text for update in updates)


def test_a_stop_string_stays_in_the_output_when_wanted() -> None:
    runner = ScriptedRunner({"a": b"one END two"})
    engine = scripted_engine(runner)
    add(engine, "a", stop="END", include_stop_str_in_output=True)
    assert text_of(run(engine, runner)["a"]) == "one END"


def test_a_stop_string_with_the_last_permitted_token_is_a_stop() -> None:
    runner = ScriptedRunner({"a": b"one END two"})
    engine = scripted_engine(runner)
    add(engine, "a", stop="END", max_tokens=7)
    last = run(engine, runner)["a"][-1]
    assert (last.finish_reason, last.stop_reason) == ("stop", "END")


def test_no_stop_string_counts_before_min_tokens() -> None:
    runner = ScriptedRunner({"a": b"END x END y"})
    engine = scripted_engine(runner)
    add(engine, "a", stop="END", min_tokens=4)
    assert text_of(run(engine, runner)["a"]) == "END x "


def test_text_held_back_for_a_stop_string_comes_at_the_end() -> None:
    runner = ScriptedRunner({"a": b"the EN"})
    engine = scripted_engine(runner)
    add(engine, "a", stop="END")
    assert text_of(run(engine, runner)["a"]) == "the EN"


def test_a_stop_token_of_the_request_is_named_and_no_text(in_flight: int) -> None:
    runner = ScriptedRunner({"a": b"ab.cd", "b": b"ab.cd"})
    engine = scripted_engine(runner, max_plans_in_flight=in_flight)
    add(engine, "a", stop_token_ids=[ord(".")])
    add(engine, "b", stop_token_ids=[ord(".")], include_stop_str_in_output=True)
    updates = run(engine, runner)
    assert (text_of(updates["a"]), tokens_of(updates["a"])) == ("ab", list(b"ab."))
    assert text_of(updates["b"]) == "ab."
    assert (updates["a"][-1].finish_reason, updates["a"][-1].stop_reason) == ("stop", ord("."))


def test_the_end_of_text_can_be_ignored() -> None:
    runner = ScriptedRunner({"a": [*b"ab", EOS, *b"cd"]})
    engine = scripted_engine(runner)
    add(engine, "a", ignore_eos=True, max_tokens=5)
    updates = run(engine, runner)["a"]
    assert (text_of(updates), updates[-1].finish_reason) == ("abcd", "length")


def test_special_tokens_are_shown_when_wanted() -> None:
    runner = ScriptedRunner({"a": [*b"a", SPECIAL, *b"b"], "b": [*b"a", SPECIAL, *b"b"]})
    engine = scripted_engine(runner)
    add(engine, "a", skip_special_tokens=False)
    add(engine, "b", detokenize=False)
    updates = run(engine, runner)
    assert text_of(updates["a"]) == "a<special>b"
    assert text_of(updates["b"]) == ""


def test_logprobs_come_with_their_tokens(in_flight: int) -> None:
    runner = ScriptedRunner({"a": b"xy", "b": b"pq"})
    engine = scripted_engine(runner, max_plans_in_flight=in_flight)
    add(engine, "b")
    add(engine, "a", logprobs=2)
    updates = run(engine, runner)
    entries = [entry for update in updates["a"] for entry in update.logprobs or ()]
    assert [next(iter(entry)) for entry in entries] == [*b"xy", EOS]
    assert (entries[0][ord("x")].logprob, entries[0][ord("x")].rank) == (-0.5, 2)
    assert (entries[0][7].rank, entries[0][ord("x")].decoded_token) == (1, "x")
    assert all(update.logprobs is None for update in updates["b"])


def test_an_abort_ends_it_wherever_it_stands(in_flight: int) -> None:
    for steps in range(6):
        runner = ScriptedRunner({"a": b"0123456789", "b": b"xyz"})
        engine = scripted_engine(runner, max_plans_in_flight=in_flight)
        add(engine, "a")
        add(engine, "b")
        for _ in range(steps):
            engine.step()
        assert engine.abort("a")
        assert not engine.abort("a")
        updates = run(engine, runner)
        assert [update.finish_reason for update in updates["a"]] == ["abort"]
        assert not engine.abort("nobody")


def test_a_step_that_fails_once_is_done_again(in_flight: int) -> None:
    for broken in range(1, 8):
        runner = ScriptedRunner({"a": b"012345", "b": b"xyz"}, broken={broken: RuntimeError("a hiccup")})
        engine = scripted_engine(runner, max_plans_in_flight=in_flight)
        add(engine, "a")
        add(engine, "b", "another prompt, a longer one")
        updates = run(engine, runner)
        assert {name: text_of(of_one) for name, of_one in updates.items()} == {"a": "012345", "b": "xyz"}
        assert engine.scheduler.stats().failed_steps == 1


def test_a_device_that_always_fails_ends_the_requests_and_not_the_engine(in_flight: int) -> None:
    runner = ScriptedRunner({"a": b"0123", "b": b"xyz"}, always_broken=True)
    engine = scripted_engine(runner, max_plans_in_flight=in_flight)
    add(engine, "a")
    last = run(engine, runner)["a"][-1]
    assert (last.finish_reason, last.stop_reason) == ("error", None)
    assert last.error == "RuntimeError: the device is on fire"
    runner.always_broken = False
    add(engine, "b")
    assert text_of(run(engine, runner)["b"]) == "xyz"


def test_an_interrupt_inside_a_step_leaves_the_ledgers_in_order(in_flight: int) -> None:
    for broken in range(1, 6):
        runner = ScriptedRunner({"a": b"012345"}, broken={broken: KeyboardInterrupt()})
        engine = scripted_engine(runner, max_plans_in_flight=in_flight)
        add(engine, "a")
        before: list[Update] = []
        with pytest.raises(KeyboardInterrupt):
            collect_for_ever(engine, before)
        engine.scheduler.check()
        assert text_of(before + run(engine, runner)["a"]) == "012345"


def test_a_result_that_is_not_the_plans_counts_as_a_failed_step() -> None:
    runner = ScriptedRunner({"a": b"012"})
    engine = scripted_engine(runner)
    add(engine, "a")
    launch = runner.launch

    def lies_once(plan: StepPlan, grammar: Masks | None = None) -> Callable[[], RunnerOutput]:
        output = launch(plan, grammar)()
        runner.launch = launch  # type: ignore[method-assign]
        object.__setattr__(output.result, "step_id", 99)
        return lambda: output

    runner.launch = lies_once  # type: ignore[method-assign]
    assert text_of(run(engine, runner)["a"]) == "012"
    assert engine.scheduler.stats().failed_steps == 1


def test_what_can_never_run_is_refused_and_leaves_no_trace() -> None:
    runner = ScriptedRunner()
    engine = scripted_engine(runner, num_full_blocks=4)
    with pytest.raises(ValueError, match="the full attention pool has 4 blocks in all and 9 are needed"):
        add(engine, "a", "p" * 16, max_tokens=20)
    with pytest.raises(ValueError, match="the prompt is empty"):
        add(engine, "a", "")
    with pytest.raises(ValueError, match="no such token"):
        add(engine, "a", stop_token_ids=[SPECIAL + 1])
    assert_nothing_left(engine, runner)
    add(engine, "a", "p", max_tokens=2)
    with pytest.raises(ValueError, match="'a' exists already"):
        add(engine, "a", "p", max_tokens=2)
    assert list(run(engine, runner)) == ["a"]


def test_an_equal_prompt_hits_what_the_first_one_left() -> None:
    runner = ScriptedRunner({"a": b"xyz", "b": b"xyz"})
    engine = scripted_engine(runner)
    add(engine, "a", "a prompt that is long enough")
    assert run(engine, runner)["a"][-1].num_cached_tokens == 0
    add(engine, "b", "a prompt that is long enough")
    assert run(engine, runner)["b"][-1].num_cached_tokens == len("a prompt that is long enough") - 1


def test_retractions_do_not_show_in_the_output(in_flight: int) -> None:
    scripts = {f"r{i}": b"0123456789" * 3 for i in range(4)}
    runner = ScriptedRunner(scripts)
    engine = scripted_engine(runner, max_plans_in_flight=in_flight, num_full_blocks=20)
    for request_id in scripts:
        add(engine, request_id, f"prompt of {request_id}", max_tokens=35)
    updates = run(engine, runner)
    assert {request_id: text_of(of_one).encode() for request_id, of_one in updates.items()} == scripts
    assert engine.scheduler.stats().retractions > 0
