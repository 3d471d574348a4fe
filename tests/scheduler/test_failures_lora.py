"""Failures that public engines had with LoRA adapters, as far as the pools and the scheduler can show them."""

from hybrid.adapters.adapter import Adapter
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.request import Gate, GateStatus
from tests.scheduler.harness import Harness, tokens

SMALL, LARGE = Adapter("small", lora_id=1, rank=8), Adapter("large", lora_id=2, rank=16)


def test_never_one_adapter_too_many() -> None:
    """A chunked or skipped request whose adapter was not counted: with the small one resident, the large one waits."""
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=16), lora_units=2)
    harness.add("chunked", tokens(40, 1), max_tokens=3, adapter=SMALL, stop_token_ids=())
    harness.add("skipped", tokens(6, 2), max_tokens=3, adapter=LARGE, stop_token_ids=())
    harness.add("plain", tokens(6, 3), max_tokens=3, stop_token_ids=())
    harness.add("same", tokens(6, 4), max_tokens=9, adapter=SMALL, stop_token_ids=())
    ran: set[str] = set()
    while "same" not in harness.finished:
        ran |= harness.step().keys()
        ledger = harness.ledgers()["LoRA"]
        assert ledger.held + ledger.pinned + ledger.cached + ledger.free == 2
        assert "same" in harness.finished or "the LoRA pool" in harness.scheduler.explain("skipped")
    assert ran == {"chunked", "plain", "same"}, "whoever can go on passes it by"
    harness.finish_all()
    assert harness.finished["skipped"].reason == "length"


def test_a_passed_by_request_is_not_starved() -> None:
    """Those that lack only an adapter are passed by `max_skips` times, then the queue waits for them."""
    harness = Harness(config=SchedulerConfig(max_skips=3), lora_units=2, num_rows=3)
    harness.add("small 0", tokens(5, 0), max_tokens=12, adapter=SMALL, stop_token_ids=())
    harness.step()
    harness.add("large", tokens(5, 1), max_tokens=2, adapter=LARGE, stop_token_ids=())
    for serial in range(1, 12):
        harness.add(f"small {serial}", tokens(5, 1 + serial), max_tokens=12, adapter=SMALL, stop_token_ids=())
    while "large" not in harness.finished:
        harness.step()
    assert sum(name.startswith("small") for name in harness.finished) == 4
    harness.finish_all()


def test_no_adapter_is_held_over_a_retraction() -> None:
    """The first grows, the second is retracted; meanwhile its adapter may be evicted for another."""
    harness = Harness(
        config=SchedulerConfig(initial_output_ratio=0.0, scheduling_policy="priority"),
        num_full_blocks=5, block_size=16, lora_units=2, enable_prefix_caching=False,
    )  # fmt: skip
    harness.add("first", tokens(20, 1), max_tokens=55, stop_token_ids=())
    harness.add("second", tokens(30, 2), max_tokens=30, priority=2, adapter=LARGE, stop_token_ids=())
    while not harness.scheduler.stats().retractions:
        harness.step()
    ledger = harness.ledgers()["LoRA"]
    assert (ledger.held, ledger.pinned, ledger.cached) == (0, 0, 2)
    harness.add("urgent", tokens(3, 3), max_tokens=3, priority=-1, adapter=SMALL, stop_token_ids=())
    assert "urgent" in harness.step()
    harness.finish_all()
    assert harness.finished["second"].reason == "length"


def test_a_cold_adapter_does_not_block_the_queue() -> None:
    loaded = GateStatus.PENDING
    harness = Harness()
    harness.add("cold", tokens(5, 1), adapter=LARGE, gates=(Gate("adapter large", lambda: loaded),))
    harness.add("warm", tokens(5, 2))
    assert harness.step() == {"warm": 5}
    assert harness.scheduler.explain("cold") == (
        "request 'cold' waits for adapter large to become ready and holds no memory"
    )
    loaded = GateStatus.READY
    assert "cold" in harness.step()
    harness.finish_all()


def test_no_adapter_is_charged_for_a_refused_request() -> None:
    harness = Harness(num_full_blocks=3, block_size=16, enable_prefix_caching=False)
    harness.add("first", tokens(20, 1), max_tokens=20, stop_token_ids=())
    harness.step()
    before = harness.ledgers()["LoRA"]
    harness.add("second", tokens(30, 2), adapter=LARGE)
    harness.step()
    assert harness.ledgers()["LoRA"] == before and before.free == 64
    harness.finish_all()


def test_an_unloaded_adapter_goes_with_its_last_user() -> None:
    """Unload hung after an abort, or with several requests on one adapter."""
    harness = Harness(config=SchedulerConfig(max_plans_in_flight=2), lora_units=4)
    for seed, name in enumerate("abc"):
        harness.add(name, tokens(20, seed), max_tokens=9, adapter=LARGE, stop_token_ids=())
    harness.plan()
    harness.plan()
    harness.commit()
    harness.memory.lora.forget(LARGE.lora_id)
    assert harness.ledgers()["LoRA"].held == 2 and harness.memory.lora.get(LARGE.lora_id) is None
    harness.abort("a")
    while harness.results:
        harness.commit()
    for name in "bc":
        harness.abort(name)
    assert harness.ledgers()["LoRA"].free == 4
    harness.finish_all()


def test_a_reloaded_adapter_never_meets_the_old_cache() -> None:
    """The name is the same, the `lora_id` is new at every load."""
    harness = Harness()
    for name, lora_id, hit in (("old", 1, 0), ("old again", 1, 29), ("reloaded", 2, 0), ("no adapter", 0, 0)):
        adapter = Adapter("poet", lora_id, rank=8) if lora_id else None
        harness.add(name, tokens(30), max_tokens=4, adapter=adapter)
        harness.finish_all()
        assert harness.hit(name) == hit


def test_a_failed_step_does_not_unload_what_a_later_step_loaded() -> None:
    """Its user is gone, another loads it anew, and then the first step turns out to have failed."""
    harness = Harness(config=SchedulerConfig(max_plans_in_flight=2))
    adapter = Adapter("x", 1, 8)
    harness.add("first", [1, 2, 3], adapter=adapter)
    assert harness.plan(fails=True) is not None
    harness.abort("first")
    harness.add("second", [4, 5, 6], adapter=adapter)
    assert harness.plan() is not None
    harness.commit()
    assert harness.memory.lora.get(adapter.lora_id) is not None
    harness.finish_all()
