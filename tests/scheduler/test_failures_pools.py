"""Failures that public engines had between their pools: half-taken grants, leaks, stalls, checks that disagree."""

from typing import Any

import pytest

from hybrid.adapters.adapter import Adapter
from hybrid.pools.sizing import Kinds
from hybrid.pools.window import window_quota
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.request import ImageInput
from tests.scheduler.harness import HYBRID, MIXTURES, WINDOW, Harness, tokens

# Pool -> an engine in which a second request lacks this pool only. The first has 40 + 8 tokens, an image, an adapter.
SHORT_OF: dict[str, dict[str, Any]] = {
    "request row": {"num_rows": 1},
    "full attention": {"num_full_blocks": 5},
    "sliding window": {"num_window_blocks": 3},
    "recurrent state": {"num_state_slots": 1},
    "encoder": {"encoder_tokens": 12},
    "LoRA": {"lora_units": 2},
}


def a_second_request_waits(pool: str, **config: Any) -> Harness:
    """The first request is in the middle of its prompt, its image not yet computed to the end."""
    harness = Harness(
        config=SchedulerConfig(max_num_batched_tokens=45, long_prefill_token_threshold=30, **config),
        kinds=HYBRID, block_size=16, enable_prefix_caching=False, **SHORT_OF[pool],
    )  # fmt: skip
    for seed, name in enumerate(("first", "second"), start=1):
        image = ImageInput(f"picture {seed}", offset=25, num_tokens=12)
        adapter = Adapter(name, lora_id=seed, rank=16)
        harness.add(name, tokens(40, seed), max_tokens=8, images=(image,), adapter=adapter, stop_token_ids=())
    # The first chunk of the second request ends before its image, unless the image is what it needs at once.
    return harness


@pytest.mark.parametrize("pool", [pool for pool in SHORT_OF if pool != "encoder"])
def test_a_refusal_of_one_pool_leaves_the_others_as_they_were(pool: str) -> None:
    """The second pool refused after the first was taken; a slot leaked when admission refused, or on abort."""
    harness = a_second_request_waits(pool)
    alone = a_second_request_waits(pool)
    alone.abort("second")
    for _ in range(6):
        assert "second" not in harness.step()
        alone.step()
        assert harness.ledgers() == alone.ledgers()
        assert f"the {pool} pool" in harness.scheduler.explain("second")
    harness.abort("second")
    assert harness.ledgers() == alone.ledgers()
    harness.finish_all()


@pytest.mark.parametrize("pool", SHORT_OF)
def test_what_was_short_is_granted_as_soon_as_it_is_back(pool: str) -> None:
    """A flag "the batch is full" was never cleared."""
    harness = a_second_request_waits(pool)
    while "first" not in harness.finished:
        harness.step()
    assert "second" in harness.step() or harness.outputs["second"]
    harness.finish_all()
    assert harness.finished["second"].reason == "length"

    aborted = a_second_request_waits(pool)
    aborted.step()
    aborted.abort("first")
    assert "second" in aborted.step()
    aborted.finish_all()


def test_the_window_reserve_is_what_windows_use() -> None:
    """Too large, and nothing is ever admitted; too small, and a running request finds no block."""
    quota = window_quota(sliding_window=20, block_size=8, lookahead=0, max_tokens=400)
    for requests in (1, 2, 3):
        harness = Harness(
            config=SchedulerConfig(max_num_batched_tokens=1024), kinds=WINDOW, sliding_window=20, block_size=8,
            num_window_blocks=requests * quota, max_model_len=400, enable_prefix_caching=False,
        )  # fmt: skip
        for seed in range(4):
            harness.add(f"{seed}", tokens(8, seed), max_tokens=90, stop_token_ids=())
        harness.step()
        assert harness.scheduler.stats().num_running == requests
        harness.finish_all()
        assert harness.scheduler.stats().retractions == 0


def test_a_long_prefill_takes_the_window_pool_for_the_step_only() -> None:
    """The budget of a step is not charged to every request: a chunk shrinks to the room there is."""
    quota = window_quota(sliding_window=20, block_size=8, lookahead=0, max_tokens=400)
    harness = Harness(
        config=SchedulerConfig(max_num_batched_tokens=1024), kinds=WINDOW, sliding_window=20, block_size=8,
        num_window_blocks=2 * quota + 2, max_model_len=400, enable_prefix_caching=False,
    )  # fmt: skip
    assert quota == 4
    harness.add("long", tokens(350, 1), max_tokens=4, stop_token_ids=())
    harness.add("short", tokens(8, 2), max_tokens=4, stop_token_ids=())
    assert harness.step() == {"long": 10 * 8}
    assert [harness.step() for _ in range(5)] == [{"long": 7 * 8}] * 4 + [{"long": 46}]  # 3 blocks stay in the window
    assert harness.step() == {"long": 1, "short": 8}
    harness.finish_all()


@pytest.mark.parametrize("kinds", MIXTURES.values(), ids=MIXTURES)
def test_an_eviction_never_takes_what_was_just_matched(kinds: Kinds) -> None:
    """The pools hold one request and little more: the second evicts everything but its own match."""
    harness = Harness(
        kinds=kinds, block_size=8, sliding_window=16 if kinds.window else 0, max_model_len=80,
        num_full_blocks=11, num_window_blocks=11, num_state_slots=3,
    )  # fmt: skip
    shared = tokens(40, 1)
    for seed in range(6):
        harness.add(f"{seed}", shared + tokens(30, 10 + seed), max_tokens=8, resume_hints=(40,))
        harness.finish_all()
        if seed:
            assert harness.hit(f"{seed}") == 40


@pytest.mark.parametrize("kinds", MIXTURES.values(), ids=MIXTURES)
@pytest.mark.parametrize("unsplit", [False, True])
@pytest.mark.parametrize(("block_size", "width"), [(1, 3), (3, 1), (4, 7), (8, 5)])
def test_what_is_accepted_alone_ends_alone(kinds: Kinds, unsplit: bool, block_size: int, width: int) -> None:
    """A start-up check accepted what the running scheduler could never place. Every size of pool, full caches."""
    accepted, refused = 0, 0
    sizes = (1, 2, 3, 4, 6, 9, 11)
    for units in sizes:
        harness = Harness(
            config=SchedulerConfig(disable_chunked_mm_input=unsplit, max_num_batched_tokens=16),
            kinds=kinds, block_size=block_size, sliding_window=width if kinds.window else 0, max_model_len=40,
            num_rows=1, num_full_blocks=units, num_window_blocks=units, num_state_slots=1, encoder_tokens=units,
        )  # fmt: skip
        for length in (1, 4, 9, 20, 33):
            for size in (0, 3, 8):
                name = f"{length} {size}"
                images = (ImageInput(f"picture {name}", length - size - 1, size),) if 0 < size < length else ()
                try:
                    harness.add(name, tokens(length, length), max_tokens=5, stop_token_ids=(), images=images)
                except ValueError as error:
                    refused += "can never run: the" in str(error) and "pool has" in str(error)
                    continue
                accepted += 1
                harness.run(200)
                assert harness.finished[name].reason == "length", harness.finished[name]
        harness.assert_outputs()
        harness.assert_idle()
    assert accepted and refused and accepted + refused == len(sizes) * 15


def test_long_prompts_do_not_retract_each_other_for_ever() -> None:
    """Each fits, both do not: they must end one after the other, with a bounded number of retractions."""
    harness = Harness(
        config=SchedulerConfig(max_num_batched_tokens=32), num_full_blocks=10, block_size=8, max_model_len=80,
        enable_prefix_caching=False,
    )  # fmt: skip
    for seed, name in enumerate("abcd"):
        harness.add(name, tokens(52, seed), max_tokens=20, stop_token_ids=())
    harness.run(300)
    harness.assert_outputs()
    assert harness.scheduler.stats().retractions <= 4


def test_a_waiting_request_keeps_nothing() -> None:
    """A request that was refused, or retracted, held on to the images and the adapter it had grabbed."""
    harness = Harness(
        config=SchedulerConfig(initial_output_ratio=0.0), num_full_blocks=5, block_size=16, enable_prefix_caching=False
    )
    harness.add("first", tokens(20, 1), max_tokens=50, stop_token_ids=())
    image = ImageInput("picture", offset=2, num_tokens=12)
    adapter = Adapter("x", lora_id=1, rank=8)
    harness.add("second", tokens(20, 2), max_tokens=50, stop_token_ids=(), images=(image,), adapter=adapter)
    while not harness.scheduler.stats().retractions:
        harness.step()
    for pool in ("encoder", "LoRA"):
        ledger = harness.ledgers()[pool]
        assert ledger.held == ledger.pinned == 0 and ledger.cached > 0
    harness.finish_all()
