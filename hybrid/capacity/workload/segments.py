"""Segments: tokens named by a key instead of listed. Two prompts share a prefix as far as their segments are equal.

Knows numbers only; what a segment stands for (a system prompt, a message, an answer, an image) is its key's kind.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

# Of one prompt, answer or piece of them. Far beyond every context window, and small enough to be materialised.
MAX_LENGTH = 2**24
MAX_NUMBER = 2**56 - 1


class Kind(IntEnum):
    """What a segment is; keys of different kinds never meet."""

    TEXT = 0
    ANSWER = 1
    NAMED = 2  # a beginning that several prompts share
    BLOCK = 3  # of a trace that tells equal blocks by an id
    IMAGE = 4

    def key(self, number: int) -> int:
        """number: 0 to MAX_NUMBER, of the kind's own count."""
        return self << 56 | number


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` token ids, a pure function of key (64 bits) and position: a longer one begins with a shorter one's."""

    key: int
    length: int

    @property
    def is_image(self) -> bool:
        return self.key >> 56 == Kind.IMAGE


def token_ids(segments: Iterable[Segment], *, vocab_size: int) -> NDArray[np.int32]:
    """The tokens one after the other, spread evenly over 0 ... vocab_size - 1. [sum of lengths]"""
    listed = tuple(segments)
    lengths = np.array([segment.length for segment in listed], np.int64)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    mixed = np.repeat(_mix(np.array([segment.key for segment in listed], np.uint64)), lengths)
    mixed += np.arange(len(starts)).astype(np.uint64) - starts.astype(np.uint64)
    return ((_mix(mixed) >> np.uint64(32)) % np.uint64(vocab_size)).astype(np.int32)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection in which every bit of the input changes half of the output's (splitmix64, Steele et al. 2014)."""
    mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
