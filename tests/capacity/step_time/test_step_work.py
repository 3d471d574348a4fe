"""StepWork: counts of what the real scheduler plans."""

import numpy as np

from hybrid.adapters.adapter import Adapter
from hybrid.capacity.step_time.step_work import RECENT_SIZES, Adapted, AdaptedRows, RecentSizes, StepWork
from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.plan import StepPlan, StepResult
from hybrid.scheduler.request import ImageInput, NewRequest
from hybrid.scheduler.scheduler import Scheduler

SIZES = PoolSizes(
    num_rows=4, num_full_blocks=64, num_window_blocks=0, num_state_slots=8, encoder_tokens=32, lora_units=8,
    block_size=4, sliding_window=0, max_model_len=64,
)  # fmt: skip


def scheduler() -> Scheduler:
    config = SchedulerConfig(max_num_batched_tokens=16, max_image_tokens=6)
    return Scheduler(config, SIZES, Kinds(full=True, window=False, state=True))


def planned(made: Scheduler) -> StepPlan:
    plan = made.schedule()
    assert plan is not None
    return plan


def commit(made: Scheduler, plan: StepPlan) -> None:
    made.commit(StepResult.one_each(plan.step_id, np.full(int(plan.samples.sum()), 7, dtype=np.int32)))


def test_chunks_then_decodes() -> None:
    made = scheduler()
    made.add(NewRequest("a", np.arange(10, 20, dtype=np.int32), max_tokens=4))
    made.add(NewRequest("b", np.arange(30, 42, dtype=np.int32), max_tokens=4))
    first = planned(made)
    work = StepWork.of(first)
    assert (work.num_tokens.tolist(), work.computed.tolist()) == ([10, 6], [0, 0])
    assert (work.num_sampled, work.new_rows) == (1, 2)
    assert work.snapshots == len(first.snapshots) > 0
    commit(made, first)
    work = StepWork.of(planned(made))
    assert (work.num_tokens.tolist(), work.computed.tolist()) == ([1, 6], [10, 6])
    assert (work.num_sampled, work.new_rows, work.image_tokens) == (2, 0, ())


def test_a_hit_copies_a_state() -> None:
    made = scheduler()
    for name in "ab":
        made.add(NewRequest(name, np.arange(10, 20, dtype=np.int32), max_tokens=1))
        plan = planned(made)
        commit(made, plan)
        assert StepWork.of(plan).state_copies == (name == "b")
        assert StepWork.of(plan).full_copies == (name == "b")  # the hit ends inside a block


def test_an_image_is_encoded_once() -> None:
    made = scheduler()
    for name, encoded in (("a", (6,)), ("b", ())):
        image = ImageInput("picture", 2, 6)
        made.add(NewRequest(name, np.arange(40, 50, dtype=np.int32), max_tokens=1, images=(image,)))
        plan = planned(made)
        assert StepWork.of(plan).image_tokens == encoded
        commit(made, plan)


def test_adapters_of_rows_are_remembered() -> None:
    made, rows = scheduler(), AdaptedRows(SIZES.num_rows)
    wide, narrow = Adapter("wide", 1, 16), Adapter("narrow", 2, 4)
    for name, adapter in (("a", wide), ("b", None), ("c", narrow), ("d", wide)):
        start = 100 * ord(name)
        made.add(NewRequest(name, np.arange(start, start + 4, dtype=np.int32), max_tokens=3, adapter=adapter))
    first = planned(made)
    work = StepWork.of(first, rows=rows)
    assert sorted(work.adapted, key=lambda group: group.units) == [Adapted(4, 1), Adapted(8, 2)]
    assert work.loaded_units == 3
    commit(made, first)
    second = planned(made)
    work = StepWork.of(second, rows=rows)
    assert sorted(work.adapted, key=lambda group: group.units) == [Adapted(1, 1), Adapted(2, 2)]
    assert work.loaded_units == 0


def test_a_number_of_tokens_is_new_until_it_comes_again_soon_enough() -> None:
    sizes = RecentSizes()
    first = [sizes.follow(number, 0) for number in range(1, RECENT_SIZES + 1)]
    assert first == [(True, False)] * RECENT_SIZES  # nobody samples: that is no size
    assert sizes.follow(1, 0) == (False, False)  # and is the most recent one now
    assert sizes.follow(RECENT_SIZES + 1, 0) == (True, False)
    assert sizes.follow(1, 0) == (False, False)
    assert sizes.follow(2, 0) == (True, False)  # it was the least recent one
    assert sizes.follow(2, 2) == (False, True)
    assert sizes.follow(0, 2) == (False, False)


def test_a_plan_s_numbers_are_new_once() -> None:
    made, sizes = scheduler(), RecentSizes()
    made.add(NewRequest("a", np.arange(40, 50, dtype=np.int32), max_tokens=3))
    seen = []
    for _ in range(3):
        plan = planned(made)
        work = StepWork.of(plan, sizes)
        seen.append((work.new_num_tokens, work.new_num_sampled))
        assert not StepWork.of(plan).new_num_tokens
        commit(made, plan)
    assert seen == [(True, True), (True, False), (False, False)]  # the prompt, and decodes
