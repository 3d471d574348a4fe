"""Requests with grammars in a whole engine: gates, masks, stop tokens, retraction, plans in flight, ends."""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from hybrid import LLM, SamplingParams, StructuredOutputsParams
from hybrid.frontend.generation import Update
from hybrid.grammar.compiler import GrammarCompiler
from hybrid.grammar.grammars import Grammars
from hybrid.grammar.llguidance_backend import LLGuidanceBackend
from tests.models.families.hostile import FailingRunner

from .held import HeldBackend

EOS = 2
PROSE = "[a-z]{1,4}( [a-z]{1,4}){25,30}[.]"  # some dozens of tokens
PROMPTS = [f"{'Hello! ' * (i % 3)}Prompt {i}" for i in range(8)]


def tiny(**arguments: Any) -> LLM:
    usual: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": 256}
    return LLM("tiny", memory="64MiB", seed=1, **{**usual, **arguments})


@pytest.fixture(scope="module")
def shared() -> LLM:
    return tiny()


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """Idle before and after every test."""
    shared.reset_prefix_cache()
    yield shared
    assert_idle(shared)


@pytest.fixture
def held(shared: LLM) -> Iterator[HeldBackend]:
    """The backend of `llm`, for this test."""
    before = shared.engine.grammars
    backend = HeldBackend(LLGuidanceBackend(shared.get_tokenizer().to_json, 820, (EOS,)))
    shared.engine.grammars = Grammars(GrammarCompiler(backend), 820, (EOS,))
    yield backend
    backend.release()
    shared.engine.grammars = before


def assert_idle(llm: LLM) -> None:
    llm.engine.scheduler.check()
    assert not llm.engine.is_busy
    assert llm.engine.grammars is not None and len(llm.engine.grammars) == 0
    for pool, ledger in llm.stats().ledgers.items():
        assert (ledger.reserved, ledger.held, ledger.pinned, ledger.pending) == (0, 0, 0, 0), pool


def following(regex: str, **params: Any) -> SamplingParams:
    chosen = {"temperature": 1.0, "max_tokens": 200} | params
    return SamplingParams(structured_outputs=StructuredOutputsParams(regex=regex), **chosen)


def texts(llm: LLM, params: list[SamplingParams]) -> list[str]:
    """What they say to PROMPTS, to their own ends."""
    outputs = llm.generate(PROMPTS[: len(params)], params, use_tqdm=False)
    assert [(output.error, output.outputs[0].finish_reason) for output in outputs] == [(None, "stop")] * len(params)
    return [output.outputs[0].text for output in outputs]


def one(llm: LLM, params: SamplingParams) -> tuple[str, str | None, str | None]:
    """(text, finish reason, error)"""
    [output] = llm.generate("Hello", params, use_tqdm=False)
    return output.outputs[0].text, output.outputs[0].finish_reason, output.error


def add(llm: LLM, request_id: str, params: SamplingParams) -> None:
    prompt = llm._processor.process("Hello")
    llm.engine.add_request(request_id, prompt, params, max_tokens=params.max_tokens or 100, seed=3)


def run(llm: LLM, until: set[str] | None = None, max_steps: int = 2000) -> dict[str, list[Update]]:
    """Updates by request, until these requests, or all, have ended."""
    updates = defaultdict(list)
    for _ in range(max_steps):
        for update in llm.engine.step():
            updates[update.request_id].append(update)
        ended = {request_id for request_id, of_one in updates.items() if of_one[-1].finish_reason is not None}
        if ended >= until if until is not None else not llm.engine.has_unfinished:
            return dict(updates)
    raise AssertionError(f"after {max_steps} steps only {sorted(updates)} have ended")


# --- masks ---------------------------------------------------------------------------------------------------------


def test_every_kind_and_rows_without_a_grammar_in_one_batch(llm: LLM) -> None:
    free = SamplingParams(temperature=0.0, max_tokens=20)
    alone = [output.outputs[0].token_ids for output in llm.generate(PROMPTS[:2], free, use_tqdm=False)]
    kinds = [
        StructuredOutputsParams(regex=r"\d{3}-\d{3}"),
        StructuredOutputsParams(choice=["north", "south", "south-west"]),
        StructuredOutputsParams(json={"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}),
        StructuredOutputsParams(grammar='start: "(" start? ")"'),
        StructuredOutputsParams(grammar='root ::= "a" ("," "a")*'),
    ]
    params = [SamplingParams(max_tokens=200, structured_outputs=kind) for kind in kinds]
    outputs = llm.generate(PROMPTS[:2] + ["Go"] * 5, [free, free, *params], use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs[:2]] == alone
    said = [output.outputs[0].text for output in outputs[2:]]
    for text, pattern in zip(
        said, [r"\d{3}-\d{3}", "north|south|south-west", r"\[\s*[12](\s*,\s*[12]){1,2}\s*\]", r"\(+\)+", "a(,a)*"]
    ):
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("in_flight", [2, 3])
def test_plans_in_flight_change_nothing(llm: LLM, in_flight: int) -> None:
    params = [following(PROSE, seed=seed) for seed in range(8)]
    params[3] = params[6] = SamplingParams(temperature=0.0, max_tokens=30)  # rows that are planned ahead
    expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    other = tiny(max_plans_in_flight=in_flight)
    assert [output.outputs[0].token_ids for output in other.generate(PROMPTS, params, use_tqdm=False)] == expected
    assert_idle(other)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("cause", ["force", "blocks"])
def test_retraction_changes_nothing(llm: LLM, cause: str, in_flight: int) -> None:
    params = [following(PROSE, seed=seed) for seed in range(8)]
    expected = texts(llm, params)
    assert all(re.fullmatch(PROSE, text) for text in expected) and len(set(expected)) > 1
    how: dict[str, dict[str, Any]] = {
        "force": {"force_retraction_every": 3},
        "blocks": {"num_full_blocks": 60, "block_size": 4, "initial_output_ratio": 0.0},
    }
    other = tiny(max_plans_in_flight=in_flight, **how[cause])
    assert texts(other, params) == expected
    assert other.stats().retractions > 0
    assert_idle(other)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failed_step_changes_nothing(llm: LLM, when: str) -> None:
    params = [following(PROSE, seed=seed) for seed in range(4)]
    expected = texts(llm, params)
    runner, steps = llm.engine._runner, count()
    failing = FailingRunner(runner, lambda: when if next(steps) in (0, 9) else None)
    llm.engine._runner = failing
    try:
        assert texts(llm, params) == expected
    finally:
        llm.engine._runner = runner
    assert failing.failures == 2


def test_sequences_of_one_prompt_have_their_own_matchers(llm: LLM) -> None:
    [output] = llm.generate("Hello", following("[a-z]{6}|[0-9]{2}", n=6, seed=5), use_tqdm=False)
    said = [completion.text for completion in output.outputs]
    assert all(re.fullmatch("[a-z]{6}|[0-9]{2}", text) for text in said)
    assert len(set(said)) > 1


# --- ends ----------------------------------------------------------------------------------------------------------


def test_a_complete_output_ends_at_once(llm: LLM) -> None:
    [output] = llm.generate("Hello", following("abc|abd"), use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop" and EOS not in output.outputs[0].token_ids


def test_the_length_cuts(llm: LLM) -> None:
    text, reason, error = one(llm, following("[0-9]{50}", max_tokens=7))
    assert (reason, error) == ("length", None) and re.fullmatch("[0-9]+", text)


def test_complete_with_the_last_permitted_token_is_no_cut(llm: LLM) -> None:
    [output] = llm.generate("Hello", following("[0-9]{9}", seed=1), use_tqdm=False)
    needed = len(output.outputs[0].token_ids)
    assert one(llm, following("[0-9]{9}", seed=1, max_tokens=needed))[1] == "stop"
    assert one(llm, following("[0-9]{9}", seed=1, max_tokens=needed - 1))[1] == "length"


def test_the_end_of_text_waits_for_the_grammar(llm: LLM) -> None:
    """However much the model wants to end."""
    text, reason, _ = one(llm, following("(ab){3,}", logit_bias={EOS: 100.0}))
    assert (text, reason) == ("ababab", "stop")


def test_min_tokens_where_the_grammar_has_more(llm: LLM) -> None:
    [output] = llm.generate("Hello", following("a+", min_tokens=12, logit_bias={EOS: 100.0}), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 13 and output.outputs[0].token_ids[-1] == EOS
    assert re.fullmatch("a+", output.outputs[0].text)


def test_min_tokens_where_the_grammar_has_no_more(llm: LLM) -> None:
    assert one(llm, following("yes", min_tokens=50)) == ("yes", "stop", None)


def test_ignore_eos_goes_on_as_long_as_the_grammar_does(llm: LLM) -> None:
    text, reason, error = one(llm, following("(ab){1,9}", ignore_eos=True, logit_bias={EOS: 100.0}))
    assert (text, reason, error) == ("ab" * 9, "stop", None)


def test_a_stop_string_cuts(llm: LLM) -> None:
    assert one(llm, following("one two three", stop=["two"]))[:2] == ("one ", "stop")


def test_a_stop_token_that_is_no_text_ends_where_the_grammar_may_end(llm: LLM) -> None:
    special = 3
    assert special in llm.get_tokenizer().special_token_ids and special != EOS
    params = following("(ab){2,}", stop_token_ids=[special], logit_bias={special: 100.0})
    [output] = llm.generate("Hello", params, use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("abab", special)


# --- gates ---------------------------------------------------------------------------------------------------------


def test_what_waits_for_its_grammar_holds_nothing_and_blocks_nobody(llm: LLM, held: HeldBackend) -> None:
    held.hold("slow")
    add(llm, "slow", following("slow"))
    add(llm, "quick", following("quick"))
    add(llm, "plain", SamplingParams(max_tokens=5))
    run(llm, until={"quick", "plain"})
    assert "waits for grammar" in llm.engine.scheduler.explain("slow")
    for pool, ledger in llm.stats().ledgers.items():
        assert ledger.held == 0, pool
    held.release("slow")
    assert "".join(update.text for update in run(llm)["slow"]) == "slow"


def test_c11_ready_pending_failed_late_broken_and_aborted(llm: LLM, held: HeldBackend) -> None:
    """SGLang test_grammar_manager: each ends its own request only, and nothing of it is remembered for the text."""
    now = 0.0
    compiler = GrammarCompiler(held, num_workers=4, timeout=10.0, clock=lambda: now)
    llm.engine.grammars = Grammars(compiler, 820, (EOS,))
    held.hold("pending", "late", "aborted")
    held.errors["failed"] = ValueError("no such thing")
    for name in ("ready", "late", "failed", "aborted"):
        add(llm, name, following(name))
    updates = run(llm, until={"ready", "failed"})
    assert "".join(update.text for update in updates["ready"]) == "ready"
    assert [(update.finish_reason, update.error) for update in updates["failed"]] == [
        ("error", "grammar: no such thing")
    ]
    assert llm.engine.abort("aborted")
    assert run(llm, until={"aborted"})["aborted"][-1].finish_reason == "abort"
    now = 9.0
    add(llm, "pending", following("pending"))
    now = 10.5
    [late] = run(llm, until={"late"})["late"]
    assert (late.finish_reason, late.error) == ("error", "grammar: not compiled within 10 seconds")
    held.errors.clear()
    held.release()
    for name in ("late", "failed", "aborted"):
        add(llm, f"{name} again", following(name))
    said = {name: "".join(update.text for update in of_one) for name, of_one in run(llm).items()}
    assert said == {"pending": "pending"} | {f"{name} again": name for name in ("late", "failed", "aborted")}


def test_c7_those_that_were_blocked_keep_their_order(llm: LLM, held: HeldBackend) -> None:
    """vLLM test_fcfs_mixed_skipped_waiting_types_keep_order, with one row: who comes first shows."""
    narrow = tiny(max_num_seqs=1)
    narrow.engine.grammars = Grammars(GrammarCompiler(held), 820, (EOS,))
    held.hold("first", "second")
    for name in ("first", "second"):
        add(narrow, name, following(name))
    add(narrow, "plain", SamplingParams(max_tokens=30, ignore_eos=True))
    [update] = narrow.engine.step()
    assert (update.request_id, update.finish_reason) == ("plain", None)
    add(narrow, "tail", SamplingParams(max_tokens=3))
    held.release()
    for sequence in narrow.engine.grammars._sequences.values():
        sequence.compilation._future.result(60)
    assert list(run(narrow)) == ["plain", "first", "second", "tail"]
    assert_idle(narrow)


@pytest.mark.parametrize("breaks_at", [0, 2, -2], ids=["first mask", "later mask", "token"])
def test_a_matcher_that_breaks_ends_its_request_only(llm: LLM, held: HeldBackend, breaks_at: int) -> None:
    held.breaks_at["[0-9]{8}"] = breaks_at
    add(llm, "broken", following("[0-9]{8}"))
    add(llm, "other", following("[0-9]{9}"))
    add(llm, "plain", SamplingParams(max_tokens=5))
    updates = run(llm)
    assert updates["broken"][-1].finish_reason == "error"
    assert re.fullmatch("grammar: .*(states|too much)", str(updates["broken"][-1].error))
    assert re.fullmatch("[0-9]{9}", "".join(update.text for update in updates["other"]))
    assert updates["plain"][-1].error is None


def test_compile_errors_reach_the_caller(llm: LLM) -> None:
    text, reason, error = one(llm, following("a("))
    assert (text, reason) == ("", "error")
    assert error is not None and error.startswith("grammar: ") and "unclosed group" in error


def test_a_schema_that_cannot_be_honoured_is_refused_at_once(llm: LLM) -> None:
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(json={"items": {"uniqueItems": True}}))
    with pytest.raises(ValueError, match=r"prompt 1: grammar: JSON schema keyword 'uniqueItems' at \$.items"):
        llm.generate(["a", "b"], [SamplingParams(), bad], use_tqdm=False)


def test_a_request_that_can_never_run_leaves_no_grammar(llm: LLM) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        add(llm, "r", following("a", stop_token_ids=[99999]))


def test_without_a_tokenizer_there_are_no_grammars() -> None:
    llm = tiny(skip_tokenizer_init=True)
    with pytest.raises(ValueError, match="structured outputs need a tokenizer"):
        llm.generate([[5, 6]], following("a"), use_tqdm=False)


def test_chat(llm: LLM) -> None:
    choice = StructuredOutputsParams(choice=["yes", "no"])
    [output] = llm.chat(
        [{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=9, structured_outputs=choice), use_tqdm=False
    )
    assert output.outputs[0].text in ("yes", "no")
