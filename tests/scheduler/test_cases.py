"""Cases with known answers: numbers that the tests of public engines assert, restated for our surface.

They hold for any correct scheduler under the settings given; composition decode-first and order fcfs unless said.
"""

from itertools import count

import pytest

from hybrid.adapters.adapter import Adapter
from hybrid.pools.keyed import KeyedPool
from hybrid.pools.ledger import InvariantViolation, UnitPool
from hybrid.pools.sizing import blocks_for
from hybrid.pools.transaction import Claim, Transaction
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.request import Gate, GateStatus, ImageInput
from hybrid.scheduler.waiting import agree
from tests.scheduler.harness import HYBRID, MIXTURES, Harness, tokens


def test_c1_partial_prefills_share_the_image_budget() -> None:
    """vLLM test_schedule_partial_requests: an image is encoded whole or not in this step."""
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=1024, max_num_encoder_tokens=1024))
    for seed, name in enumerate("abc"):
        image = ImageInput(f"picture {name}", offset=100, num_tokens=600)
        harness.add(name, tokens(800, seed), images=(image,), stop_token_ids=())
    assert harness.step() == {"a": 800, "b": 100, "c": 100}
    assert harness.step() == {"a": 1, "b": 700}
    assert "'c' runs in row" in harness.scheduler.explain("c")
    harness.finish_all()


def test_c2_a_single_prefill_takes_at_most_its_threshold() -> None:
    """vLLM test_schedule_concurrent_partial_requests."""
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=1024, long_prefill_token_threshold=400))
    for seed, name in enumerate("abc"):
        harness.add(name, tokens(800, seed), stop_token_ids=())
    assert harness.step() == {"a": 400, "b": 400, "c": 224}
    assert harness.step() == {"a": 400, "b": 400, "c": 224}
    assert harness.step() == {"a": 1, "b": 1, "c": 352}
    harness.finish_all()


def test_c3_an_image_is_not_split_over_chunks() -> None:
    """vLLM test_no_mm_input_chunking."""
    config = SchedulerConfig(max_num_batched_tokens=1024, disable_chunked_mm_input=True, max_image_tokens=800)
    harness = Harness(config=config)
    harness.add("a", tokens(1200), images=(ImageInput("picture", offset=400, num_tokens=800),))
    assert [harness.step(), harness.step()] == [{"a": 400}, {"a": 800}]
    harness.finish_all()
    with pytest.raises(ValueError, match="a step of 100 tokens cannot hold an image of 800 tokens"):
        SchedulerConfig(
            max_num_batched_tokens=100, disable_chunked_mm_input=True, max_image_tokens=800, max_num_encoder_tokens=800
        )


def test_c4_no_drafts_while_the_prompt_is_computed() -> None:
    """vLLM test_no_spec_tokens_scheduled_for_prefill_chunks."""
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=50, num_draft_tokens=3))
    harness.add("a", tokens(80), stop_token_ids=())
    assert [harness.step()["a"] for _ in range(3)] == [50, 30, 4]
    harness.finish_all()


def test_c5_a_full_encoder_cache_makes_progress() -> None:
    """vLLM test_mamba_align_encoder_cache_cap_makes_progress, without its block rule."""
    images = (ImageInput("first", 0, 500), ImageInput("second", 510, 500))
    for kinds in MIXTURES.values():
        harness = Harness(config=SchedulerConfig(max_num_batched_tokens=1024), kinds=kinds, encoder_tokens=600)
        harness.add("a", tokens(1010), images=images, stop_token_ids=())
        assert harness.step() == {"a": 510}
        assert harness.runner.encoded == ["first"]
        encoder = harness.ledgers()["encoder"]
        assert (encoder.cached, encoder.pinned, encoder.held) == (500, 0, 0)  # given up, kept while nobody needs room
        assert harness.step() == {"a": 500}
        assert harness.runner.encoded == ["first", "second"]
        harness.finish_all()
        assert harness.finished["a"].reason == "length"


def test_c6_window_blocks_wait_for_the_step_that_reads_them() -> None:
    """vLLM test_swa_free_waits_for_in_flight_step: 100 tokens are 7 blocks, the next token sees positions 85..100."""
    config = SchedulerConfig(max_plans_in_flight=2)
    harness = Harness(config=config, kinds=HYBRID, sliding_window=16, block_size=16, enable_prefix_caching=False)
    harness.add("a", tokens(100), stop_token_ids=())
    before = harness.ledgers()["sliding window"]
    harness.plan()
    assert harness.ledgers()["sliding window"].held == 7
    harness.plan()
    assert harness.scheduler.num_in_flight == 2
    assert harness.ledgers()["sliding window"].held == 7
    harness.commit()  # the prefill is processed, the decode after it still in flight
    after = harness.ledgers()["sliding window"]
    assert (after.held, after.pending, after.free) == (2, 0, before.free - 2), "exactly 5 blocks were released"
    harness.finish_all()


def test_c7_blocked_requests_keep_their_place() -> None:
    """vLLM test_fcfs_mixed_skipped_waiting_types_keep_order."""
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=20))
    ready = {"grammar": GateStatus.PENDING, "remote": GateStatus.PENDING}
    for seed, name in enumerate(ready):
        gate = Gate(name, lambda name=name: ready[name])  # type: ignore[misc]
        harness.add(name, tokens(6, seed), max_tokens=1, gates=(gate,))
    harness.add("plain", tokens(20, 2), max_tokens=1)
    harness.add("tail", tokens(20, 3), max_tokens=1)
    assert harness.step() == {"plain": 20}
    ready["remote"] = GateStatus.READY  # the later one first: it must not overtake for good
    ready["grammar"] = GateStatus.READY
    assert list(harness.step().items()) == [("grammar", 6), ("remote", 6), ("tail", 8)]
    harness.finish_all()


@pytest.mark.parametrize("evicted", [False, True])
def test_c8_an_image_is_encoded_again_only_if_it_was_evicted(evicted: bool) -> None:
    """vLLM test_encoder_cache_retained_across_preemption_and_resume and ..._recomputed_when_evicted."""
    harness = Harness(
        config=SchedulerConfig(scheduling_policy="priority", initial_output_ratio=0.0),
        enable_prefix_caching=False, num_full_blocks=3, block_size=16, encoder_tokens=16,
    )  # fmt: skip
    harness.add("first", tokens(8, 1), max_tokens=24, stop_token_ids=())
    picture = ImageInput("picture", 0, 16)
    harness.add("second", tokens(30, 2), max_tokens=16, priority=1, images=(picture,), stop_token_ids=())
    while harness.scheduler.stats().retractions == 0:  # the third block of the second is not there
        harness.step()
    assert harness.scheduler.stats().num_waiting == 1 and harness.runner.encoded == ["picture"]
    if evicted:
        harness.add("urgent", tokens(16, 3), max_tokens=1, images=(ImageInput("other", 0, 16),))
        harness.step()
    harness.finish_all()
    assert harness.runner.encoded == (["picture", "other", "picture"] if evicted else ["picture"])


def extend(full: UnitPool, window: UnitPool, block_size: int, lengths: list[tuple[int, int]]) -> bool:
    """Blocks for extending requests from one length to another, in both pools or in none."""
    growth = sum(blocks_for(after, block_size) - blocks_for(before, block_size) for before, after in lengths)
    with Transaction() as transaction:
        if transaction.reserve(Claim.of(full, growth), Claim.of(window, growth)):
            return False
        transaction.commit()
    return True


def test_c9_page_estimation_over_two_pools() -> None:
    """SGLang test_swa_alloc_extend_page_estimation: blocks of 8, pools of 16 and 16 tokens, then 8 and 64."""
    cases = [
        (2, 2, [(5, 6)] * 2, True),
        (2, 2, [(7, 10)] * 2, True),
        (2, 2, [(8, 9)] * 2, True),
        (2, 2, [(8, 9)] * 3, False),
        (1, 8, [(8, 9)] * 5, False),
        (8, 1, [(8, 9)] * 5, False),
    ]
    for full_blocks, window_blocks, lengths, fits in cases:
        full, window = UnitPool("full attention", "block", full_blocks), UnitPool("window", "block", window_blocks)
        before = full.ledger(), window.ledger()
        assert extend(full, window, 8, lengths) is fits, (full_blocks, window_blocks, lengths)
        if not fits:
            assert (full.ledger(), window.ledger()) == before


def test_c10_the_least_recently_used_adapter_goes() -> None:
    """SGLang lora/test_eviction_policy: used 1, 2, 3, 1; the victim is 2."""
    harness = Harness(lora_units=3)
    adapters = {name: Adapter(str(name), name, rank=8) for name in (1, 2, 3, 4)}
    for serial, name in zip(count(), (1, 2, 3, 1), strict=False):
        harness.add(f"{serial}", tokens(5, serial), max_tokens=1, adapter=adapters[name])
        harness.run()
    harness.add("fourth", tokens(5, 9), max_tokens=1, adapter=adapters[4])
    harness.run()
    assert [name for name in adapters if harness.memory.lora.get(name) is not None] == [1, 3, 4]

    pool: KeyedPool[int] = KeyedPool("LoRA", "rank unit", 3)
    for name in (1, 2, 3):
        with Transaction() as transaction:
            assert not transaction.reserve(Claim.of(pool, 1))
            (units,) = transaction.commit()
        pool.insert(name, units)
        pool.confirm(name, units)
        pool.leave(name, units)
    pool.use(1)
    pool.evict(1)
    assert [name for name in (1, 2, 3) if pool.get(name) is not None] == [1, 3]


def test_c11_what_the_ranks_conclude() -> None:
    """SGLang test_grammar_manager: ready on all ranks is ready, failed on any is failed, else it is pending."""
    ready, pending, failed = GateStatus.READY, GateStatus.PENDING, GateStatus.FAILED
    assert agree([ready, ready]) is ready
    assert agree([ready, pending]) is pending and agree([pending, pending]) is pending
    for other in (ready, pending, failed):
        assert agree([failed, other]) is failed and agree([other, failed]) is failed


def test_c11_each_gate_ends_its_own_request_only() -> None:
    """Ready, pending, timed-out, failed, broken and aborted grammars side by side, two ranks each."""
    now = 0.0

    def broken() -> GateStatus:
        raise RuntimeError("unbalanced bracket")

    ranks = {
        "ready": [GateStatus.READY, GateStatus.READY],
        "pending": [GateStatus.READY, GateStatus.PENDING],
        "late": [GateStatus.PENDING, GateStatus.PENDING],
        "failed": [GateStatus.READY, GateStatus.FAILED],
        "aborted": [GateStatus.PENDING, GateStatus.PENDING],
    }
    harness = Harness(clock=lambda: now)

    def add(name: str, request_id: str) -> None:
        gate = Gate(
            "grammar",
            broken if name == "broken" else lambda: agree(ranks[name]),
            lambda: "no such regex",
            deadline=now + 10.0 if name == "late" else None,
        )
        harness.add(request_id, tokens(5, len(harness.requests)), max_tokens=2, gates=(gate,), needs_grammar=True)

    for name in (*ranks, "broken"):
        add(name, name)
    assert harness.step() == {"ready": 5}
    assert harness.finished["failed"].error == "grammar: no such regex"
    assert harness.finished["broken"].error == "grammar: unbalanced bracket"
    assert harness.abort("aborted")
    now = 10.5
    harness.step()
    assert harness.finished["late"].error == "grammar: not ready by its deadline"
    assert {name for name in ranks if name not in harness.finished} == {"pending"}
    assert "waits for grammar" in harness.scheduler.explain("pending")
    ranks["pending"][1] = ranks["late"][0] = ranks["late"][1] = GateStatus.READY
    add("late", "the same schema again")  # a time-out is not remembered
    harness.finish_all()
    assert harness.finished["the same schema again"].reason in ("stop", "length")
    assert harness.finished["pending"].reason in ("stop", "length")


def test_c12_the_check_names_what_is_wrong() -> None:
    """SGLang test_kv_page_invariants: committed more than allocated, an owner of a free block, a block freed twice."""

    def running() -> Harness:
        harness = Harness(kinds=HYBRID)
        harness.add("a", tokens(40), stop_token_ids=())
        harness.step()
        return harness

    harness = running()
    harness.memory.table.num_computed[0] = 1000
    with pytest.raises(InvariantViolation, match="row 0 has computed 1000 tokens but holds blocks for 48"):
        harness.scheduler.check()

    for name, blocks in (("full attention", "full_blocks"), ("sliding window", "window_blocks")):
        harness = running()
        pool = {pool.name: pool for pool in harness.memory.pools}[name]
        owned = getattr(harness.memory.table, blocks)(0)[-1:].copy()
        pool.release(owned)
        with pytest.raises(InvariantViolation, match=f"{name}: block {owned[0]} is free but row 0 owns it"):
            harness.scheduler.check()
        with pytest.raises(InvariantViolation, match=f"{name}: block {owned[0]} was freed twice"):
            pool.release(owned)
