"""The encoder pool under random requests with images, through the real scheduler: its ledger is conserved after every
operation, nothing waits for ever, whoever waits holds nothing, and a step encodes no more than its budget.

`test_properties` draws everything that a scheduler meets; here images are large against pool, budget and step.
"""

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.plan import StepPlan
from hybrid.scheduler.request import ImageInput
from tests.scheduler.harness import MIXTURES, Harness, tokens

LONGEST = 64


def engine(data: st.DataObject) -> Harness:
    def pick(*options: int) -> int:
        return data.draw(st.sampled_from(options))

    config = SchedulerConfig(
        max_num_batched_tokens=pick(8, 24, 100),
        max_num_encoder_tokens=pick(0, 8, 24, 60) or None,
        disable_chunked_mm_input=bool(pick(0, 0, 1)),
        max_plans_in_flight=pick(1, 2, 3),
        initial_output_ratio=0.0,
        force_retraction_every=pick(0, 0, 3, 7),
    )
    blocks = LONGEST // 8 + 1
    return Harness(
        config=config,
        kinds=MIXTURES[data.draw(st.sampled_from(tuple(MIXTURES)))],
        enable_prefix_caching=bool(pick(1, 0)),
        block_size=8,
        max_model_len=LONGEST,
        num_rows=pick(2, 6),
        num_full_blocks=blocks + pick(1, 8, 40),
        num_window_blocks=blocks + pick(1, 8, 40),
        encoder_tokens=pick(12, 30, 90),
    )


def images(data: st.DataObject, length: int) -> tuple[ImageInput, ...]:
    """Up to four, of few contents, so that requests share them."""
    found: list[ImageInput] = []
    offset = data.draw(st.integers(0, 4))
    while offset < length and len(found) < 4:
        size = data.draw(st.integers(1, min(40, length - offset)))
        found.append(ImageInput(f"{data.draw(st.sampled_from('abc'))}{size}", offset, size))
        offset += size + data.draw(st.integers(0, 6))
    return tuple(found)


def add(harness: Harness, name: str, data: st.DataObject) -> None:
    """Refused if and only if one of its images can never be there."""
    length = data.draw(st.integers(1, LONGEST - 8))
    wanted = images(data, length)
    largest = max((image.num_tokens for image in wanted), default=0)
    config = harness.config
    most = min(harness.sizes.encoder_tokens, config.encoder_budget)
    if config.disable_chunked_mm_input:
        most = min(most, config.chunk_limit)
    before = harness.ledgers()
    refused = ""
    try:
        harness.add(name, tokens(length, data.draw(st.sampled_from((1, 2)))), max_tokens=6, images=wanted)
    except ValueError as error:
        event("an image is refused")
        refused = str(error)
    assert bool(refused) is (largest > most), refused
    assert not refused or harness.ledgers() == before


def check(harness: Harness, plan: StepPlan | None = None) -> None:
    scheduler, pool = harness.scheduler, harness.memory.encoder
    ledger = pool.ledger()
    assert ledger.total == pool.capacity == harness.sizes.encoder_tokens
    if plan is not None:
        assert sum(len(image.slots) for image in plan.encode) <= harness.config.encoder_budget
        hashes = [image.mm_hash for image in plan.encode]
        assert len(set(hashes)) == len(hashes), "an image is encoded once"
    held = 0
    for name in set(harness.requests) - set(harness.finished):
        explained = scheduler.explanation(name)
        assert explained is not None
        held += explained.holds[pool.name]
        assert explained.running or not any(explained.holds.values()), f"{name} waits and holds {explained.holds}"
    assert ledger.held <= held, "somebody holds what is held"


@settings(max_examples=200)
@given(data=st.data())
def test_conservation_and_progress(data: st.DataObject) -> None:
    harness = engine(data)
    for serial in range(data.draw(st.integers(3, 25))):
        action = data.draw(st.sampled_from(("add", "add", "plan", "plan", "commit", "abort", "fail")))
        plan = None
        if action == "add":
            add(harness, f"r{serial}", data)
        elif action == "abort" and harness.requests:
            harness.abort(data.draw(st.sampled_from(tuple(harness.requests))))
        elif action == "commit" and harness.results:
            harness.commit()
        elif action in ("plan", "fail"):
            plan = harness.plan(fails=action == "fail")
        check(harness, plan)
    steps = 0
    while harness.scheduler.num_unfinished or harness.results:
        while (plan := harness.plan()) is not None:
            check(harness, plan)
        assert harness.results, f"nothing can run: {harness.why()}"
        harness.commit()
        check(harness)
        steps += 1
        assert steps < 2_000, harness.why()
    harness.assert_outputs()
    harness.assert_idle()
    assert harness.memory.encoder.ledger().held == 0
    event(f"encoded again: {len(set(harness.runner.encoded)) < len(harness.runner.encoded)}")


def test_an_image_larger_than_what_a_step_encodes_is_refused_at_once() -> None:
    harness = Harness(config=SchedulerConfig(max_num_encoder_tokens=50))
    with pytest.raises(ValueError, match="an image has 51 tokens, a step encodes at most 50"):
        harness.add("a", tokens(100), images=(ImageInput("large", 0, 51),))
    harness.add("a", tokens(100), images=(ImageInput("just", 0, 50),))
    harness.finish_all()


def test_a_step_encodes_within_its_budget_and_a_waiting_request_grabs_nothing() -> None:
    """It held its images while it waited for other pools."""
    harness = Harness(config=SchedulerConfig(max_num_encoder_tokens=50), encoder_tokens=100, num_rows=2)
    for serial in range(4):
        image = ImageInput(f"picture {serial}", 0, 30)
        harness.add(f"{serial}", tokens(40, serial), images=(image,), max_tokens=2, stop_token_ids=())
    encoded = []
    while (plan := harness.plan()) is not None:
        encoded.append([image.mm_hash for image in plan.encode])
        check(harness, plan)
        assert harness.ledgers()["encoder"].held <= 60, "two rows, two images"
        harness.commit()
    assert [images for images in encoded if images] == [[f"picture {serial}"] for serial in range(4)]
    harness.finish_all()
