"""LoraTables: which tokens of a batch take which rank units, as kernels read it: in blocks that share an adapter.

Sizes follow from a batch, or are the largest that decode steps can have: then nothing that a kernel is launched with
depends on who takes which adapter, and what is not filled is nobody's. Knows neither sites nor who computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..context import Ints

BLOCKS = (16, 64)  # tokens of a block, where no adapter has more than the first, and else
ALIGNMENT = 4  # int32 elements; 16 bytes, as kernels are compiled anew for pointers that are less aligned
NOBODY = -1
Groups = Sequence[tuple[Ints, Ints]]  # per adapter: its tokens, and its rank units; none of them empty


@dataclass(frozen=True, slots=True)
class LoraTables:
    """How large the tables are, which lie one behind the other in one tensor of int32."""

    num_tokens: int  # of the batch
    num_changed: int  # of these, tokens that have an adapter; at most
    num_blocks: int
    block_size: int
    num_adapters: int
    most_units: int  # of an adapter
    busy_blocks: int  # about as many have tokens

    @classmethod
    def of(cls, groups: Groups, num_tokens: int) -> "LoraTables":
        """Of a batch of so many tokens, some of which have an adapter."""
        counts = [len(tokens) for tokens, _ in groups]
        size = BLOCKS[int(max(counts) > BLOCKS[0])]
        blocks = sum(-(-count // size) for count in counts)
        most = max(len(units) for _, units in groups)
        return cls(num_tokens, sum(counts), blocks, size, len(groups), most, blocks)

    @classmethod
    def largest(cls, num_rows: int, num_units: int, most_units: int) -> "LoraTables":
        """Of any step in which so many rows decode, with adapters of at most `most_units` that lie in `num_units`."""
        size, adapters = BLOCKS[0], min(num_rows, num_units)
        blocks = min(num_rows, (num_rows + (size - 1) * adapters) // size)  # every adapter may leave one nearly empty
        return cls(num_rows, num_rows, blocks, size, adapters, most_units, -(-num_rows // size))

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Blocks: adapter, first of its tokens, number of tokens. Tokens, by adapter. Rank units of each adapter. The
        adapter of each token of the batch. Behind the last of anything: NOBODY."""
        return (self.num_blocks, 3), (self.num_changed,), (self.num_adapters, self.most_units), (self.num_tokens,)

    @property
    def size(self) -> int:
        """Elements."""
        return sum(_aligned(shape) for shape in self.shapes)

    def views(self, flat: Any) -> tuple[Any, Any, Any, Any]:
        """The tables in a numpy array or tensor [size]: blocks, tokens, units, adapters."""
        found, start = [], 0
        for shape in self.shapes:
            found.append(flat[start : start + int(np.prod(shape))].reshape(shape))
            start += _aligned(shape)
        blocks, tokens, units, adapters = found
        return blocks, tokens, units, adapters

    def filled(self, groups: Groups) -> NDArray[np.int32]:
        """The tables of a batch, which fits them."""
        flat = np.full(self.size, NOBODY, dtype=np.int32)
        blocks, tokens, units, adapters = self.views(flat)
        counts = np.array([len(members) for members, _ in groups])
        per_adapter = -(-counts // self.block_size)
        adapter = np.repeat(np.arange(len(groups)), per_adapter)
        done = (np.arange(len(adapter)) - (np.cumsum(per_adapter) - per_adapter)[adapter]) * self.block_size
        first = (np.cumsum(counts) - counts)[adapter] + done
        count = np.minimum(self.block_size, counts[adapter] - done)
        blocks[: len(adapter)] = np.stack((adapter, first, count), axis=1)
        members = np.concatenate([members for members, _ in groups])
        tokens[: len(members)] = members
        adapters[members] = np.repeat(np.arange(len(groups)), counts)
        for row, (_, held) in enumerate(groups):
            units[row, : len(held)] = held
        return flat


def _aligned(shape: tuple[int, ...]) -> int:
    return -(-int(np.prod(shape)) // ALIGNMENT) * ALIGNMENT
