"""Workload: the requests of one experiment, in columns. An Arrival is made when it is asked for.

Knows neither where the columns come from nor who serves them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from .arrival import Arrival, ImageOf
from .segments import Kind, Segment

MAX_RATE = 1e9


@dataclass(frozen=True, eq=False)
class Workload(Sequence[Arrival]):
    """n requests. Those that follow no other one are sorted by time and begin at 0; one that follows another stands
    behind it.

    times [n]: seconds; output_lengths [n]: tokens; priorities [n].
    after [n]: the request whose answer this one follows, -1: none.
    adapter [n]: an index of `adapters` and `ranks`, -1: the base model.
    ends [n]: request i brings the segments from ends[i - 1] to ends[i]; a later turn, what is new in it.
    keys, lengths, ends_message [number of segments]: the last one says that a message of a chat ends here.
    """

    name: str
    times: NDArray[np.float64]
    output_lengths: NDArray[np.int64]
    priorities: NDArray[np.int64]
    after: NDArray[np.int64]
    adapter: NDArray[np.int64]
    ends: NDArray[np.int64]
    keys: NDArray[np.uint64]
    lengths: NDArray[np.int64]
    ends_message: NDArray[np.bool_]
    adapters: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        opening = self.times[self.after < 0]
        if not len(opening):
            raise ValueError(f"{self.name} has no requests")
        assert opening[0] == 0 and bool((np.diff(opening) >= 0).all()), "times start at 0 and never go back"
        assert bool((self.after < np.arange(len(self))).all()), "a turn stands behind the one it follows"
        assert len(self.adapters) == len(self.ranks)

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, index: int) -> Arrival: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Arrival, ...]: ...
    def __getitem__(self, index: int | slice) -> Arrival | tuple[Arrival, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        prompt, message_ends = self._prompt(index)
        offset = 0
        images, hints = [], []
        for segment, is_end in zip(prompt, message_ends):
            if segment.is_image:
                images.append(ImageOf(segment.key, offset, segment.length))
            offset += segment.length
            if is_end:
                hints.append(offset)
        if hints and hints[-1] == offset:
            hints.pop()  # the end of the prompt is no branch within it
        adapter, after = int(self.adapter[index]), int(self.after[index])
        return Arrival(
            time=float(self.times[index]),
            prompt=tuple(prompt),
            output=self._output(index),
            after=after if after >= 0 else None,
            adapter=self.adapters[adapter] if adapter >= 0 else None,
            rank=self.ranks[adapter] if adapter >= 0 else 0,
            images=tuple(images),
            priority=int(self.priorities[index]),
            hints=tuple(hints),
        )

    @property
    def mean_rate(self) -> float:
        """Requests per second, later turns included; infinite where all come at once."""
        opening = self.times[self.after < 0]
        if opening[-1] == 0:
            return math.inf
        return float((len(opening) - 1) / opening[-1] * len(self) / len(opening))

    def scaled(self, rate: float) -> "Workload":
        """The same requests at another mean rate: times stretched. What passes between an answer and the next turn is
        a person's time and stays. One request or session stays as it is. Raises ValueError for a rate that is none, and
        where several requests come at once."""
        if not 1 / MAX_RATE <= rate <= MAX_RATE:
            raise ValueError(f"a rate must be {1 / MAX_RATE:g} to {MAX_RATE:g} requests per second, got {rate}")
        if np.count_nonzero(self.after < 0) == 1:
            return self
        if math.isinf(self.mean_rate):
            raise ValueError(f"all requests of {self.name} come at once: there is no rate to change to {rate}")
        stretched = np.where(self.after < 0, self.times * (self.mean_rate / rate), self.times)
        return replace(self, times=stretched)

    def first(self, count: int) -> "Workload":
        """The first `count` requests, or all if there are fewer. Raises ValueError for less than one."""
        if count < 1:
            raise ValueError(f"the number of requests must be at least 1, got {count}")
        segments = int(self.ends[:count][-1])
        return replace(
            self,
            times=self.times[:count],
            output_lengths=self.output_lengths[:count],
            priorities=self.priorities[:count],
            after=self.after[:count],
            adapter=self.adapter[:count],
            ends=self.ends[:count],
            keys=self.keys[:segments],
            lengths=self.lengths[:segments],
            ends_message=self.ends_message[:segments],
        )

    @cached_property
    def sessions(self) -> NDArray[np.int64]:
        """Of each request the index of the first turn, its own where it follows none. [n]"""
        roots = np.arange(len(self))
        for index in np.flatnonzero(self.after >= 0).tolist():
            roots[index] = roots[self.after[index]]
        return roots

    @cached_property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """Tokens of each whole prompt, images included. [n]"""
        sums = np.concatenate(([0], np.cumsum(self.lengths)))[self.ends]
        whole = np.diff(sums, prepend=0)
        for index in np.flatnonzero(self.after >= 0).tolist():
            earlier = self.after[index]
            whole[index] += whole[earlier] + self.output_lengths[earlier]
        return whole

    def _output(self, index: int) -> Segment:
        return Segment(Kind.ANSWER.key(index), int(self.output_lengths[index]))

    def _prompt(self, index: int) -> tuple[list[Segment], list[bool]]:
        """Segments of the whole prompt, and which of them end a message."""
        turns = [index]
        while (earlier := int(self.after[turns[-1]])) >= 0:
            turns.append(earlier)
        segments: list[Segment] = []
        is_end: list[bool] = []
        for turn in reversed(turns):
            piece = slice(int(self.ends[turn - 1]) if turn else 0, int(self.ends[turn]))
            segments += map(Segment, self.keys[piece].tolist(), self.lengths[piece].tolist())
            is_end += self.ends_message[piece].tolist()
            if turn != index:
                segments.append(self._output(turn))
                is_end.append(True)
        return segments, is_end
