"""What one step consists of: decode-first and prefill-first, delays, pauses, budgets."""

from typing import Any

from hybrid.scheduler.config import SchedulerConfig
from tests.scheduler.harness import Harness, tokens


def decoding(composition: Any, **config: Any) -> Harness:
    """One request in the middle of a long answer."""
    harness = Harness(config=SchedulerConfig(composition=composition, **config))
    harness.add("a", tokens(8, 1), max_tokens=100, stop_token_ids=())
    assert harness.step() == {"a": 8}
    return harness


def test_decode_first_fills_the_rest_with_prefills() -> None:
    harness = decoding("decode-first", max_num_batched_tokens=30)
    harness.add("b", tokens(40, 2))
    harness.add("c", tokens(40, 3))
    assert harness.step() == {"a": 1, "b": 29}
    assert harness.step() == {"a": 1, "b": 11, "c": 18}
    harness.finish_all()


def test_prefill_first_gives_decodes_what_is_left() -> None:
    harness = decoding("prefill-first", max_num_batched_tokens=30, prefill_delay_steps=0)
    harness.add("b", tokens(40, 2), stop_token_ids=())
    assert list(harness.step().items()) == [("b", 30)]
    assert list(harness.step().items()) == [("b", 10), ("a", 1)]
    harness.finish_all()


def test_prefill_first_gathers_small_prompts_for_some_steps() -> None:
    harness = decoding("prefill-first", prefill_delay_steps=3, prefill_delay_tokens=100)
    harness.add("b", tokens(20, 2), stop_token_ids=())
    assert [harness.step() for _ in range(3)] == [{"a": 1}] * 3
    harness.add("c", tokens(20, 3), stop_token_ids=())
    assert harness.step() == {"b": 20, "c": 20, "a": 1}
    harness.add("d", tokens(20, 4), stop_token_ids=())
    assert harness.step() == {"a": 1, "b": 1, "c": 1}
    harness.finish_all()


def test_enough_gathered_tokens_end_the_delay() -> None:
    harness = decoding("prefill-first", prefill_delay_steps=50, prefill_delay_tokens=100)
    harness.add("b", tokens(60, 2))
    assert harness.step() == {"a": 1}
    harness.add("c", tokens(60, 3))
    assert harness.step() == {"b": 60, "c": 60, "a": 1}
    harness.finish_all()


def test_an_idle_device_prefills_at_once() -> None:
    harness = Harness(config=SchedulerConfig(composition="prefill-first", prefill_delay_steps=50))
    harness.add("b", tokens(20, 2))
    assert harness.step() == {"b": 20}
    harness.finish_all()


def test_prefill_first_pauses_decodes_for_a_bounded_number_of_steps() -> None:
    harness = decoding(
        "prefill-first", max_num_batched_tokens=8, prefill_delay_tokens=1, max_decode_pause_steps=3
    )  # fmt: skip
    harness.add("b", tokens(100, 2))
    steps = [harness.step() for _ in range(8)]
    assert steps == [{"b": 8}, {"b": 8}, {"b": 8}, {"a": 1, "b": 7}] * 2
    harness.finish_all()


def test_more_decodes_than_budget_take_turns() -> None:
    """Whoever waited longest is served first; nobody starves."""
    harness = Harness(
        config=SchedulerConfig(max_num_batched_tokens=4, composition="prefill-first", prefill_delay_steps=0)
    )
    for seed in range(6):
        harness.add(f"{seed}", tokens(2, seed), max_tokens=30, stop_token_ids=())
    while min(len(out) for out in harness.outputs.values()) == 0:
        harness.step()
    before = {name: len(out) for name, out in harness.outputs.items()}
    for _ in range(9):
        assert sum(harness.step().values()) == 4
    gained = [len(out) - before[name] for name, out in harness.outputs.items()]
    assert sum(gained) == 36 and max(gained) - min(gained) <= 1
    harness.finish_all()
