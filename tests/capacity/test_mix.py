"""Requests of many lengths: the expected number at once is what the real scheduler keeps up, and no other split of the
same memory keeps up more."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hybrid.capacity.mix import MOST_DRAWS, TOKEN_BUDGET
from hybrid.capacity.planning import Plan, plan
from hybrid.capacity.question import NothingFitsError
from hybrid.capacity.split import Split
from hybrid.capacity.traffic import Traffic, parse_traffic
from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.scheduler.request import NewRequest
from hybrid.scheduler.scheduler import Scheduler

from .questions import GIB, question, running

# name, GiB, median prompt and answer: two bound by states, one by full attention, one by windows of many lengths, one
# of prompts so long and answers so short that a step's tokens bind.
MIXES = [
    ("granite-4.0-h-tiny", 1.8, 300, 120, "recurrent state"),
    ("Jamba-v0.1", 0.8, 600, 120, "recurrent state"),
    ("Llama-3.1-8B", 4.0, 400, 150, "full attention"),
    ("Mistral-7B-v0.1", 3.0, 400, 150, "sliding window"),
    ("Llama-3.1-8B", 9.0, 1200, 9, TOKEN_BUDGET),
]


def mixed(name: str, gib: float, prompt: int, answer: int, **more: Any) -> Plan:
    rng = np.random.default_rng(1)
    drawn = (rng.lognormal(np.log(median), 0.7, 1500).astype(np.int64) for median in (prompt, answer))
    prompts, outputs = (np.clip(lengths, 1, 4000) for lengths in drawn)
    traffic = Traffic(prompts, outputs, outputs)
    memory = int(gib * GIB)
    return plan(question(name, traffic=traffic, memory_bytes=memory, weights_dtype="bfloat16", context=5000, **more))


def kept_up(made: Plan, sizes: PoolSizes | None = None) -> tuple[float, float]:
    """Mean number of requests that run, and of full-attention blocks in use, while more wait; the first third of the
    time, in which pools fill, does not count."""
    traffic = made.question.traffic
    assert traffic is not None and made.expected is not None
    scheduler = Scheduler(made.args.scheduler_config(0), sizes or made.sizes, Kinds.of(made.spec))
    turns = 40 if made.expected.binding_pool == TOKEN_BUDGET else 10  # they are short
    for index in range(min(len(traffic.prompts), int(turns * made.expected.concurrency))):
        prompt = np.full(traffic.prompts[index], 2 + index, dtype=np.int32)
        prompt[: made.question.shared_prefix] = 1
        scheduler.add(NewRequest(f"r{index}", prompt, max_tokens=int(traffic.outputs[index])))
    counts, used = [], []
    for count in running(scheduler):
        stats = scheduler.stats()
        if stats.num_waiting:
            counts.append(count)
            used.append(stats.ledgers["full attention"].held + stats.ledgers["full attention"].pinned)
    third = len(counts) // 3
    return float(np.mean(counts[third:])), float(np.mean(used[third:]))


@pytest.mark.parametrize(("name", "gib", "prompt", "answer", "binds"), MIXES)
def test_what_is_expected_is_kept_up(name: str, gib: float, prompt: int, answer: int, binds: str) -> None:
    made = mixed(name, gib, prompt, answer)
    assert made.expected is not None
    assert made.expected.binding_pool == binds
    if binds != TOKEN_BUDGET:
        assert made.expected.concurrency > 2 * made.concurrency, "most requests are much shorter than the longest"
    assert made.pools.total <= made.memory_bytes
    count, used = kept_up(made)
    assert made.expected.concurrency == pytest.approx(count, rel=0.06)
    if made.spec.full_bytes_per_token and binds != TOKEN_BUDGET:
        assert made.expected.full_blocks == pytest.approx(used, rel=0.08)


def test_no_other_split_is_better() -> None:
    """A fifth of the states more or less, and full attention that gets the rest; and the split for the longest."""
    made = mixed("Jamba-v0.1", 0.8, 600, 120)
    best, _ = kept_up(made)
    block = made.sizes.block_size * made.spec.full_bytes_per_token
    longest = plan(replace(made.question, traffic=None, context=made.need.max_total_tokens - 1, output=1))
    slots = made.sizes.num_state_slots
    for others in (slots * 4 // 5, slots * 6 // 5):
        left = made.memory_bytes - others * made.spec.state_bytes_per_slot
        sizes = replace(made.sizes, num_rows=others, num_state_slots=others, num_full_blocks=left // block - 1)
        assert kept_up(made, sizes)[0] < best
    assert longest.concurrency < best / 2


def test_longer_answers_are_permitted_than_given() -> None:
    """What is reserved is the part of the permitted answer that requests use on average: more run at once than if
    all of it were reserved, fewer than if no more than the answer were permitted."""

    def at_once(max_tokens: int | None, output: str) -> float:
        traffic = parse_traffic("600", output, 0, 0, max_tokens)
        made = plan(question("Jamba-v0.1", traffic=traffic, memory_bytes=GIB))
        assert made.expected is not None and made.need.max_total_tokens == traffic.longest
        return made.expected.concurrency

    assert at_once(None, "1000") < at_once(1000, "100") < at_once(None, "100")


def test_a_shared_beginning_is_kept_once() -> None:
    traffic = parse_traffic("uniform:1000-1400", "100", 0, 800, None)
    asked = question("Jamba-v0.1", traffic=traffic, memory_bytes=GIB)
    alone, shared = plan(asked), plan(replace(asked, shared_prefix=800))
    assert alone.expected is not None and shared.expected is not None
    assert shared.expected.concurrency > 1.3 * alone.expected.concurrency
    assert shared.expected.concurrency == pytest.approx(kept_up(shared)[0], rel=0.06)


def test_the_longest_must_fit() -> None:
    with pytest.raises(NothingFitsError, match="no request of 30100 tokens fits"):
        plan(question("Jamba-v0.1", traffic=parse_traffic("30000", "100", 0, 0, None), memory_bytes=GIB // 4))
    left = parse_traffic("uniform:1-1000", "10", 0, 0, 500).within(700)
    assert left.longest == 700 and left.left_out > 2000 and left.left_out + len(left.prompts) == 10_000
    with pytest.raises(ValueError, match="none of these requests fits into the model's limit of 600 tokens"):
        parse_traffic("1000", "10", 0, 0, None).within(600)


def test_of_few_requests_at_once_no_more_are_drawn_than_can_be_searched() -> None:
    """One request at a time: its draws are as many as always suffice, not as many as cells."""
    traffic = parse_traffic("normal:100,10", "64", 0, 0, None)
    asked = question("Llama-3.1-8B", traffic=traffic, memory_bytes=GIB, context=200, output=64, max_num_seqs=1)
    mix = Split(asked).mix(asked)
    assert mix is not None
    assert mix.numbers(np.array([50]), np.array([0])).shape[1] == MOST_DRAWS
