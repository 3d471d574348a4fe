"""Shapes of warming up: steps after which every kernel that serving can launch is compiled, in every variant.

A kernel is compiled anew for other constants, other dtypes, and arguments that are 1 or divide by 16 (or no longer do).
What changes from step to step and changes one of these: whether there are rows of one token and chunks, with and
without snapshots; how long the longest chunk is (blocks of recurrent layers, one or several); the number of tokens
(blocks of experts), one of which has strides of its own; whether contexts are cut (split keys), which the longest is
first of all; whether adapters take part, with few tokens or many, and with few sampling rows or many. Knows sizes; no
tensors.
"""

from collections.abc import Callable, Iterator

from hybrid.calibration.shapes import Row, Shape, fits
from hybrid.pools.sizing import Kinds, PoolSizes

SHORT = 4  # tokens of a chunk, where nothing depends on shapes
TAIL = 16  # tokens behind a long context


def short_shapes(sizes: PoolSizes, kinds: Kinds) -> list[Shape]:
    """A chunk, and a token behind it: what is compiled on a CPU depends on no more. Those that fit the pools."""

    def chunk(tokens: int) -> Shape:
        return Shape("prefill", (Row(0, tokens),))

    tokens = _most(lambda tokens: fits(chunk(tokens), sizes, kinds), SHORT)
    shapes = (chunk(tokens), Shape("decode", (Row(tokens),)), Shape("decode", (Row(tokens - 1),)))
    return [shape for shape in shapes if fits(shape, sizes, kinds)][:2]


def all_shapes(sizes: PoolSizes, kinds: Kinds, max_num_batched_tokens: int, lora_id: int = 0) -> list[Shape]:
    """For a GPU; those that fit the pools. lora_id: of an adapter that takes part; 0: there are none."""
    longest = sizes.max_model_len - 1

    def fit(shape: Shape) -> bool:
        return shape.num_tokens <= max_num_batched_tokens and fits(shape, sizes, kinds)

    def chunks(tokens: int) -> Shape:
        """As few as hold so many tokens."""
        count = -(-tokens // longest)
        return Shape("prefill", tuple(Row(0, len(range(index, tokens, count))) for index in range(count)))

    def decodes(rows: int) -> Shape:
        return Shape("decode", (Row(0),) * rows)

    def wanted() -> Iterator[Shape]:
        most_tokens = _most(lambda tokens: fit(chunks(tokens)), max_num_batched_tokens)
        most_rows = _most(lambda rows: fit(decodes(rows)), sizes.num_rows)
        few_and_many = [chunks(most_tokens), chunks(min(2, most_tokens)), decodes(most_rows), decodes(1)]
        others = [chunks(2**power) for power in range(1, most_tokens.bit_length())]
        # 1. the largest first: memory that does not suffice shows at once
        yield from few_and_many
        yield from others
        # 2. cut contexts
        tail = min(TAIL, longest)
        yield Shape("long", (Row(longest - 1),))
        yield Shape("long", (Row(longest - tail, tail),))
        # 3. snapshots and adapters
        for shape in few_and_many:
            yield Shape("snapshots", shape.rows, snapshots=1)
        for shape in (*few_and_many, *others) if lora_id else ():
            yield Shape("adapters", shape.rows, lora_id=lora_id)

    return [shape for shape in dict.fromkeys(wanted()) if (kinds.state or not shape.snapshots) and fit(shape)]


def _most(fit: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` that fits; 1 at least."""
    low, high = 1, limit + 1
    while high - low > 1:  # low fits, high does not
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low
