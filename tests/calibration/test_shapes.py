"""Shapes of a calibration fit the pools, and their plans are ones that the runner's tables take."""

import numpy as np
import pytest

from hybrid.calibration.plans import Plans
from hybrid.calibration.shapes import IMAGES, Row, Shape, design, window_blocks
from hybrid.encoders.inputs import EncoderInput
from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.runner.row_mirror import RowMirror


def sizes(**more: int) -> PoolSizes:
    given = {"num_rows": 16, "num_full_blocks": 200, "num_window_blocks": 60, "num_state_slots": 20}
    given |= {"encoder_tokens": 64, "lora_units": 0, "block_size": 4, "sliding_window": 10, "max_model_len": 128}
    return PoolSizes(**given | more)


ALL = Kinds(full=True, window=True, state=True)


@pytest.mark.parametrize("kinds", [ALL, Kinds(full=True, window=False, state=False), Kinds(False, False, True)])
def test_rows_own_what_they_read_and_write(kinds: Kinds) -> None:
    made = sizes()
    shapes = design(made, kinds, 64, image_tokens=16)
    images = [EncoderInput(f"picture {index}", {}, (16,)) for index in range(max(IMAGES))]
    plans, mirror = Plans(made, kinds, 100, images), RowMirror(made)
    for shape in shapes:
        enter, step = plans.enter(shape), plans.step(shape)
        for new in enter.new_rows:
            mirror.start_row(new)
        mirror.apply_deltas(enter)
        mirror.apply_deltas(step)  # asserts that all tokens of the step are known
        assert step.num_tokens == shape.num_tokens <= 64
        for used, table, delta, units in (
            (kinds.full, mirror.full_table, enter.full_blocks, made.num_full_blocks),
            (kinds.window, mirror.window_table, enter.window_blocks, made.num_window_blocks),
        ):
            assert len(delta.blocks) == len(set(delta.blocks.tolist()))
            assert not len(delta.blocks) or delta.blocks.max() < units
            if not used:
                continue
            for index, row in enumerate(shape.rows):
                seen = row.computed if units == made.num_full_blocks else min(row.computed, made.sliding_window - 1)
                blocks = np.unique(np.arange(row.computed - seen, row.computed + row.num_tokens) // made.block_size)
                mine = delta.blocks[delta.rows == index]
                assert set(table[index, blocks].tolist()) <= set(mine.tolist())
        encoded = [slot for image in step.encode for slot in image.slots.tolist()]
        assert encoded == list(range(16 * shape.images))
        slots = [snapshot.slot for snapshot in step.snapshots] + step.state_copies[:, 1].tolist()
        assert all(len(shape.rows) <= slot < made.num_state_slots for slot in slots)
        last = shape.rows[-1]
        assert all(last.computed < s.position <= last.computed + last.num_tokens for s in step.snapshots)
        assert len({snapshot.position for snapshot in step.snapshots}) == shape.snapshots


def test_all_kinds_of_steps_are_there_the_smallest_first() -> None:
    shapes = design(sizes(), ALL, 64, image_tokens=16)
    kinds = {shape.kind for shape in shapes}
    assert kinds == {"decode", "prefill", "mixed", "entering", "snapshots", "copies", "images"}
    assert [shape.num_tokens for shape in shapes] == sorted(shape.num_tokens for shape in shapes)
    decodes = [shape for shape in shapes if shape.kind == "decode"]
    assert {len(shape.rows) for shape in decodes} == {1, 2, 3, 5, 9, 15, 16}
    prefills = [shape for shape in shapes if shape.kind == "prefill" and len(shape.rows) == 1]
    assert {shape.num_tokens for shape in prefills} == {2, 3, 5, 9, 15, 23, 35, 53, 64}
    assert {shape.rows[0].samples for shape in prefills} == {True, False}
    assert any(shape.rows[0].computed for shape in prefills)


def test_without_a_vision_tower_or_states_there_are_no_such_steps() -> None:
    kinds = {shape.kind for shape in design(sizes(), Kinds(full=True, window=False, state=False), 64)}
    assert kinds == {"decode", "prefill", "mixed", "entering", "copies"}


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_the_smallest_engines_have_shapes(budget: int) -> None:
    shapes = design(sizes(num_rows=1, num_full_blocks=1, max_model_len=3), ALL, budget)
    assert shapes
    assert all(shape.num_tokens <= budget for shape in shapes)


def test_a_window_is_a_few_blocks() -> None:
    made = sizes()
    assert window_blocks(Row(100), made) == 4  # tokens 91 .. 100 in blocks of 4
    assert window_blocks(Row(0, 20), made) == 5


def test_a_shortened_chunk_stays_a_chunk() -> None:
    shape = Shape("mixed", (Row(5), Row(0, 10)))
    assert shape.shortened(3).rows == (Row(5), Row(0, 7))
    assert shape.shortened(9) == shape
    assert Shape("decode", (Row(5),)).shortened(1).rows == (Row(5),)
