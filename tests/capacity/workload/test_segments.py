"""Segments stand for the tokens they say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hybrid.capacity.workload.segments import MAX_NUMBER, Kind, Segment, token_ids
from tests.capacity.workload.traces import common

SEGMENTS = st.lists(
    st.builds(Segment, st.sampled_from(Kind).map(lambda kind: kind.key(3)) | st.integers(0, 2**63), st.integers(1, 9)),
    max_size=5,
)


def shared(first: list[Segment], second: list[Segment]) -> int:
    """Tokens with which both begin, by the keys alone; two pieces that follow each other differ."""
    total = 0
    for left, right in zip(first, second):
        if left.key != right.key:
            break
        total += min(left.length, right.length)
        if left.length != right.length:
            break
    return total


@given(SEGMENTS, SEGMENTS)
def test_prompts_share_as_many_tokens_as_their_keys_say(first: list[Segment], second: list[Segment]) -> None:
    left, right = (token_ids(segments, vocab_size=2**31 - 1).tolist() for segments in (first, second))
    assert common(left, right) == shared(first, second)


@given(SEGMENTS, st.integers(1, 2**31 - 1))
def test_tokens_are_those_of_the_pieces_and_lie_in_the_vocabulary(segments: list[Segment], vocab_size: int) -> None:
    ids = token_ids(segments, vocab_size=vocab_size)
    pieces = [token_ids([segment], vocab_size=vocab_size) for segment in segments]
    assert ids.dtype == np.int32
    assert ids.tolist() == [token for piece in pieces for token in piece.tolist()]
    assert all(0 <= token < vocab_size for token in ids.tolist())


def test_a_longer_segment_begins_with_the_shorter_one() -> None:
    assert token_ids([Segment(5, 100)], vocab_size=512)[:40].tolist() == (
        token_ids([Segment(5, 40)], vocab_size=512).tolist()
    )


def test_tokens_are_spread_over_the_vocabulary() -> None:
    counts = np.bincount(token_ids([Segment(number, 64) for number in range(1000)], vocab_size=64), minlength=64)
    assert counts.min() > 800 and counts.max() < 1200  # 1000 expected, with a deviation of 31


def test_kinds_of_keys_never_meet() -> None:
    keys = {kind.key(number) for kind in Kind for number in (0, 1, MAX_NUMBER)}
    assert len(keys) == 3 * len(Kind) and max(keys) < 2**63
    assert [Segment(kind.key(MAX_NUMBER), 1).is_image for kind in Kind] == [kind is Kind.IMAGE for kind in Kind]
