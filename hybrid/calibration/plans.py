"""Plans of calibration: a shape as StepPlans whose rows own blocks and slots that nobody has written in earnest.

What a step takes does not depend on values, so rows begin anywhere in their context without having computed it.
"""

from collections.abc import Sequence

import numpy as np

from hybrid.encoders.inputs import EncoderInput
from hybrid.pools.ledger import EMPTY, Ints
from hybrid.pools.sizing import Kinds, PoolSizes, blocks_for
from hybrid.scheduler.plan import BlockDelta, EncodeImage, NewRow, Snapshot, StepPlan

from .shapes import Row, Shape, window_blocks

NO_DELTA = BlockDelta(EMPTY, EMPTY, EMPTY)
NO_PAIRS: Ints = np.zeros((0, 2), dtype=np.int64)


def request_id(row: int) -> str:
    """Of the request that owns the row in every plan made here; the first one brings the images."""
    return f"calibration-{row}"


class Plans:
    """Makes plans, with step ids that grow."""

    def __init__(self, sizes: PoolSizes, kinds: Kinds, vocab_size: int, images: Sequence[EncoderInput] = ()) -> None:
        """images: as many as the most that a shape has, each one run of equally many tokens."""
        self._sizes = sizes
        self._kinds = kinds
        self._vocab_size = vocab_size
        self._images = images
        self._random = np.random.default_rng(0)
        self._step_id = 0

    def enter(self, shape: Shape) -> StepPlan:
        """Rows and their block tables; computes nothing. It goes before `step` of the same shape."""
        full = _own_blocks(shape.rows, self._sizes, None) if self._kinds.full else NO_DELTA
        window = _own_blocks(shape.rows, self._sizes, self._sizes.sliding_window) if self._kinds.window else NO_DELTA
        return self._plan(self._new_rows(shape), (), full, window)

    def _new_rows(self, shape: Shape) -> tuple[NewRow, ...]:
        new_rows = []
        for index, row in enumerate(shape.rows):
            known = row.computed + row.num_tokens
            new_rows.append(
                NewRow(
                    row=index,
                    request_id=request_id(index),
                    token_ids=self._random.integers(0, self._vocab_size, known, dtype=np.int32),
                    num_prompt_tokens=known,
                    num_computed_tokens=row.computed,
                    state_slot=index if self._kinds.state else 0,
                    lora_id=shape.lora_id,
                )
            )
        return tuple(new_rows)

    def step(self, shape: Shape) -> StepPlan:
        """The step itself; may be repeated."""
        rows, sizes = len(shape.rows), self._sizes
        last = shape.rows[-1]
        snapshots = tuple(
            Snapshot(rows - 1, last.computed + (index + 1) * last.num_tokens // shape.snapshots, rows + index)
            for index in range(shape.snapshots)
        )
        images, begin = [], 0
        for image in self._images[: shape.images]:
            images.append(EncodeImage(image.mm_hash, request_id(0), np.arange(begin, begin + image.runs[0])))
            begin += image.runs[0]
        blocks, slots = shape.block_copies, shape.state_copies
        return self._plan(
            self._new_rows(shape) if shape.enters else (),
            shape.rows,
            snapshots=snapshots,
            encode=tuple(images),
            full_copies=_pairs(blocks, sizes.num_full_blocks if self._kinds.full else 0),
            window_copies=_pairs(blocks, sizes.num_window_blocks if self._kinds.window else 0),
            state_copies=_pairs(slots, sizes.num_state_slots if self._kinds.state else 0),
        )

    def _plan(
        self,
        new_rows: tuple[NewRow, ...],
        rows: Sequence[Row],
        full: BlockDelta = NO_DELTA,
        window: BlockDelta = NO_DELTA,
        snapshots: tuple[Snapshot, ...] = (),
        encode: tuple[EncodeImage, ...] = (),
        full_copies: Ints = NO_PAIRS,
        window_copies: Ints = NO_PAIRS,
        state_copies: Ints = NO_PAIRS,
    ) -> StepPlan:
        self._step_id += 1
        return StepPlan(
            step_id=self._step_id,
            new_rows=new_rows,
            rows=np.arange(len(rows)),
            num_computed_tokens=np.array([row.computed for row in rows], dtype=np.int64),
            num_scheduled_tokens=np.array([row.num_tokens for row in rows], dtype=np.int64),
            samples=np.array([row.samples for row in rows], dtype=np.bool_),
            num_draft_tokens=np.zeros(len(rows), dtype=np.int64),
            draft_token_ids=np.zeros(0, dtype=np.int32),
            needs_grammar=np.zeros(len(rows), dtype=np.bool_),
            full_blocks=full,
            window_blocks=window,
            full_copies=full_copies,
            window_copies=window_copies,
            state_copies=state_copies,
            snapshots=snapshots,
            load_adapters=(),
            encode=encode,
            image_spans=(),
        )


def _own_blocks(rows: Sequence[Row], sizes: PoolSizes, window: int | None) -> BlockDelta:
    """Block tables from block 0 of the pool on, row after row; window: only what the row still sees."""
    owners, indices, begin = [], [], 0
    for index, row in enumerate(rows):
        end = blocks_for(row.computed + row.num_tokens, sizes.block_size)
        count = end if window is None else window_blocks(row, sizes)
        owners.append(np.full(count, index, dtype=np.int64))
        indices.append(np.arange(end - count, end))
        begin += count
    return BlockDelta(np.concatenate(owners), np.concatenate(indices), np.arange(begin))


def _pairs(count: int, units: int) -> Ints:
    """Copies of unit 0 to the last units of a pool, which `fits` keeps free of rows."""
    if count == 0 or units < 2:
        return NO_PAIRS
    destination = units - 1 - np.arange(min(count, units - 1))
    return np.stack((np.zeros(len(destination), dtype=np.int64), destination), axis=1)
