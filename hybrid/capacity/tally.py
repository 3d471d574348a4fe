"""Tally: sums over the rows of a step: tokens, rows of one token, chunks, and the keys that they see.

Knows windows, no other property of a model. A row of one token counts as a decode, as for the engine's operations.
"""

from dataclasses import dataclass

import numpy as np

from hybrid.pools.ledger import Ints

from .step_work import StepWork

BLOCK = 64
Window = int | None  # tokens that a token sees, itself included; None: all before it


@dataclass(frozen=True, slots=True)
class Tally:
    """One entry per window in the tuples.

    chunk_blocks: of BLOCK tokens, the last one of each chunk filled up, as scans take them.
    decode_keys: that decodes see, themselves included. chunk_pairs: of a chunk's token and a token that it sees.
    chunk_keys: that some token of a chunk sees.
    """

    num_tokens: int
    num_decodes: int
    num_chunks: int
    chunk_blocks: int
    decode_keys: tuple[int, ...]
    chunk_pairs: tuple[int, ...]
    chunk_keys: tuple[int, ...]

    @property
    def chunk_tokens(self) -> int:
        return self.num_tokens - self.num_decodes

    @classmethod
    def of(cls, work: StepWork, windows: tuple[Window, ...]) -> "Tally":
        """Sums for each of `windows`."""
        tokens, computed = work.num_tokens, work.computed
        rows = len(tokens)
        total = int(np.add.reduce(tokens))
        nothing = (0,) * len(windows)
        if total == rows:
            return cls(total, rows, 0, 0, _decode_keys(computed, windows), nothing, nothing)
        single = tokens == 1
        chunked = ~single
        begin, length = computed[chunked], tokens[chunked]
        decodes = rows - len(length)
        keys = _decode_keys(computed[single], windows) if decodes else nothing
        pairs, seen = zip(*(_chunk_keys(begin, length, window) for window in windows)) if windows else ((), ())
        blocks = int(np.add.reduce(-(-length // BLOCK)))
        return cls(total, decodes, len(length), blocks, keys, pairs, seen)


def _decode_keys(computed: Ints, windows: tuple[Window, ...]) -> tuple[int, ...]:
    own = len(computed)
    return tuple(
        own + int(np.add.reduce(computed if window is None else np.minimum(computed, window - 1))) for window in windows
    )


def _chunk_keys(begin: Ints, length: Ints, window: Window) -> tuple[int, int]:
    """(pairs, keys) of tokens begin .. begin + length - 1 of each chunk."""
    end = begin + length
    if window is None:
        return int(((begin + end + 1) * length).sum()) // 2, int(end.sum())
    pairs = _seen_before(end, window) - _seen_before(begin, window)
    return int(pairs.sum()), int((length + np.minimum(begin, window - 1)).sum())


def _seen_before(position: Ints, window: int) -> Ints:
    """Sum over the tokens before `position` of what each of them sees."""
    grown = np.minimum(position, window)
    sums: Ints = grown * (grown + 1) // 2 + (position - grown) * window
    return sums
