"""Shapes: the steps that a calibration measures: decodes, chunks and both, of several sizes, contexts and offsets.

Knows sizes of pools, so that every shape fits them; no tensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybrid.pools.sizing import Kinds, PoolSizes, blocks_for

SNAPSHOTS = (1, 4)
COPIES = (1, 4)
IMAGES = (1, 4)


@dataclass(frozen=True, slots=True)
class Row:
    """Computes `num_tokens` tokens behind `computed` ones."""

    computed: int
    num_tokens: int = 1
    samples: bool = True


@dataclass(frozen=True, slots=True)
class Shape:
    """enters: the rows are new. snapshots: of the last row. state_copies, block_copies: into units that no row uses.
    images: encoded before. lora_id: the adapter of all rows; 0: the base model."""

    kind: str
    rows: tuple[Row, ...]
    enters: bool = False
    snapshots: int = 0
    state_copies: int = 0
    block_copies: int = 0
    images: int = 0
    lora_id: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    def shortened(self, count: int) -> "Shape":
        """The last row computes so many tokens less, if that leaves it a chunk. An engine seldom meets a number of
        tokens soon again, and oneDNN compiles a product anew for each number that it has forgotten."""
        last = self.rows[-1]
        if last.num_tokens - count < max(2, last.num_tokens // 2, self.snapshots):
            return self
        return replace(self, rows=(*self.rows[:-1], replace(last, num_tokens=last.num_tokens - count)))


def design(sizes: PoolSizes, kinds: Kinds, max_num_batched_tokens: int, image_tokens: int = 0) -> list[Shape]:
    """Shapes that fit, the smallest first. image_tokens: of one image; 0: the model takes none."""
    shapes = [
        shape
        for shape in dict.fromkeys(_all(sizes, kinds, max_num_batched_tokens, image_tokens))
        if shape.num_tokens <= max_num_batched_tokens and fits(shape, sizes, kinds)
    ]
    return sorted(shapes, key=lambda shape: shape.num_tokens)


def fits(shape: Shape, sizes: PoolSizes, kinds: Kinds) -> bool:
    """Whether every row has blocks, a slot and positions of its own."""
    copied = shape.block_copies
    full = copied + sum(blocks_for(row.computed + row.num_tokens, sizes.block_size) for row in shape.rows)
    window = copied + sum(window_blocks(row, sizes) for row in shape.rows)
    slots = len(shape.rows) + shape.snapshots + shape.state_copies
    return (
        len(shape.rows) <= sizes.num_rows
        and all(row.computed + row.num_tokens < sizes.max_model_len for row in shape.rows)
        and (not kinds.full or full <= sizes.num_full_blocks)
        and (not kinds.window or window <= sizes.num_window_blocks)
        and (not kinds.state or slots <= sizes.num_state_slots)
    )


def window_blocks(row: Row, sizes: PoolSizes) -> int:
    """Blocks of the window pool that a row touches in one step."""
    first = max(0, row.computed - sizes.sliding_window + 1) // sizes.block_size
    return blocks_for(row.computed + row.num_tokens, sizes.block_size) - first


def _all(sizes: PoolSizes, kinds: Kinds, budget: int, image_tokens: int) -> Iterator[Shape]:
    longest = sizes.max_model_len - 1
    batches = _sizes(1, min(sizes.num_rows, budget))
    chunks = _sizes(2, min(budget, longest - 1))
    middle = longest // 4
    for batch in batches:
        for context in (longest // 64, middle, longest - 1):
            yield Shape("decode", (Row(context),) * batch)
    for chunk in chunks:
        for offset, samples in ((0, False), (0, True), (longest // 2, False), (longest - chunk - 1, True)):
            if offset >= 0:
                yield Shape("prefill", (Row(offset, chunk, samples),))
        for count in (3, 10):
            if chunk >= 2 * count:
                yield Shape("prefill", (Row(0, chunk // count),) * count)
        for batch in batches[1::2]:
            yield Shape("mixed", (Row(middle),) * batch + (Row(0, chunk, batch % 4 == 1),))
    for batch in batches[1::2]:
        if (rest := min(budget - batch, longest - 1)) > 1:  # what a step holds beside its decodes
            yield Shape("mixed", (Row(middle),) * batch + (Row(0, rest),))
    small = Row(0, min(50, chunks[-1]), False) if chunks else Row(0)
    plain = (Row(middle),)
    for batch in batches[::2]:
        yield Shape("entering", (small,) * batch, enters=True)
    if kinds.state and small.num_tokens > max(SNAPSHOTS):
        for count in SNAPSHOTS:
            yield Shape("snapshots", (small,), snapshots=count)
    for count in COPIES:
        if kinds.state:
            yield Shape("copies", plain, state_copies=count)
        if kinds.full or kinds.window:
            yield Shape("copies", plain, block_copies=count)
    for count in IMAGES:
        if image_tokens and count * image_tokens <= sizes.encoder_tokens:
            yield Shape("images", plain, images=count)


def _sizes(first: int, last: int) -> list[int]:
    """From `first` to `last`, each about half as many again as the one before, and odd: what divides evenly is faster
    than most."""
    sizes = [first] if first <= last else []
    while sizes and sizes[-1] < last:
        following = sizes[-1] + 1 if sizes[-1] < 3 else round(1.5 * sizes[-1]) | 1
        sizes.append(min(following, last))
    return sizes
