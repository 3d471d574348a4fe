"""Tally: sums over the rows of a step, against counting one token after the other."""

import numpy as np
import pytest

from hybrid.capacity.step_work import StepWork
from hybrid.capacity.tally import BLOCK, Tally

WINDOWS = (None, 1, 5, 100)


@pytest.mark.parametrize("seed", range(40))
def test_sums_are_those_of_counting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 7))
    tokens = np.where(rng.random(rows) < 0.5, 1, rng.integers(2, 20, rows))
    computed = rng.integers(0, 30, rows)
    tally = Tally.of(StepWork(tokens, computed, 0), WINDOWS)
    assert tally.num_tokens == tokens.sum()
    assert (tally.num_decodes, tally.num_chunks) == ((tokens == 1).sum(), (tokens > 1).sum())
    assert tally.chunk_tokens == tokens[tokens > 1].sum()
    assert tally.chunk_blocks == sum(-(-n // BLOCK) for n in tokens.tolist() if n > 1)
    for index, window in enumerate(WINDOWS):
        seen = [
            [range(max(0, p - (window or 1000) + 1), p + 1) for p in range(begin, begin + length)]
            for begin, length in zip(computed.tolist(), tokens.tolist())
        ]
        chunks = [row for row in seen if len(row) > 1]
        assert tally.decode_keys[index] == sum(len(row[0]) for row in seen if len(row) == 1)
        assert tally.chunk_pairs[index] == sum(len(keys) for row in chunks for keys in row)
        assert tally.chunk_keys[index] == sum(len(set().union(*row)) for row in chunks)


def test_a_model_without_attention_and_a_step_without_rows() -> None:
    mixed = Tally.of(StepWork(np.array([1, 7]), np.array([3, 0]), 1), ())
    assert (mixed.num_tokens, mixed.num_decodes, mixed.decode_keys, mixed.chunk_pairs) == (8, 1, (), ())
    nothing = Tally.of(StepWork(np.zeros(0, np.int64), np.zeros(0, np.int64), 0), (None, 8))
    assert (nothing.num_tokens, nothing.num_chunks, nothing.decode_keys) == (0, 0, (0, 0))
