"""Drawn workloads: when requests come, how long they are, chats of several turns; adapters and priorities for any.

Everything is a function of the seed. Knows no syntax.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .lengths import Lengths
from .segments import Kind
from .workload import Workload

MAX_REQUESTS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Gaps between arrivals: gamma distributed, with a standard deviation of `cv` times the mean. 0, and all below a
    thousandth: steady; 1: a Poisson process; above: bursts."""

    cv: float = 1.0

    def gaps(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """With a mean of 1. [count]"""
        if self.cv < 1e-3:
            return np.ones(count)
        # Strong bursts bring gaps that are rounded to nothing; some time must pass for a rate to exist.
        return np.maximum(rng.gamma(self.cv**-2, self.cv**2, count), 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What each session sends.

    system: tokens with which all begin. message, answer: tokens of each turn's text and of what is generated.
    images: of a session's first message, no two the same. turns: of a session. think: mean seconds between an answer
    and the next turn, exponentially distributed.
    """

    message: Lengths
    answer: Lengths
    turns: Lengths
    system: int = 0
    images: int = 0
    image_tokens: int = 0
    think: float = 0.0


def generate(name: str, shape: Shape, pattern: Pattern, *, rate: float, num_requests: int, seed: int) -> Workload:
    """rate: requests per second over the whole, later turns included; kept exactly. Raises ValueError for a rate or a
    number that is none."""
    if not 1 <= num_requests <= MAX_REQUESTS:
        raise ValueError(f"the number of requests must be 1 to {MAX_REQUESTS:,}, got {num_requests}")
    # Of each column its own stream: another distribution of one leaves the others as they are.
    times_rng, message_rng, answer_rng, turns_rng, think_rng = np.random.default_rng(seed).spawn(5)
    turns = np.minimum(shape.turns.draw(num_requests, turns_rng), num_requests)
    turns = turns[: int(np.searchsorted(np.cumsum(turns), num_requests)) + 1]
    starts = np.cumsum(turns) - turns
    opens = np.zeros(int(turns.sum()), np.bool_)
    opens[starts] = True
    gaps = pattern.gaps(len(turns), times_rng)
    times = think_rng.exponential(shape.think, len(opens)) if shape.think else np.zeros(len(opens))
    times[starts] = np.cumsum(gaps) - gaps[0]

    brought = 1 + opens * ((shape.system > 0) + shape.images)
    ends = np.cumsum(brought)
    texts = ends - 1
    keys = np.zeros(int(ends[-1]), np.int64)
    lengths = np.zeros(len(keys), np.int64)
    ends_message = np.ones(len(keys), np.bool_)
    keys[texts] = Kind.TEXT.key(0) + np.arange(len(opens))
    lengths[texts] = shape.message.draw(len(opens), message_rng)
    for image in range(shape.images):
        places = texts[starts] - shape.images + image
        keys[places] = Kind.IMAGE.key(0) + np.arange(len(turns)) * shape.images + image
        lengths[places] = shape.image_tokens
        ends_message[places] = False
    if shape.system:
        places = ends[starts] - brought[starts]
        keys[places] = Kind.NAMED.key(0)
        lengths[places] = shape.system

    count = len(opens)
    whole = Workload(
        name=name,
        times=times,
        output_lengths=shape.answer.draw(count, answer_rng),
        priorities=np.zeros(count, np.int64),
        after=np.where(opens, -1, np.arange(count) - 1),
        adapter=np.full(count, -1),
        ends=ends,
        keys=keys.astype(np.uint64),
        lengths=lengths,
        ends_message=ends_message,
    ).first(num_requests)
    return whole.scaled(rate)


def with_adapters(workload: Workload, count: int, *, ranks: Sequence[int], zipf: float, seed: int) -> Workload:
    """Every session gets one of `count` adapters, the k-th of them with a weight of k^-zipf and the rank ranks[k], from
    the start again where there are fewer ranks. 0: the base model for all."""
    names = tuple(f"adapter-{number}" for number in range(1, count + 1))
    weights = np.arange(1, count + 1, dtype=np.float64) ** -zipf
    rng = np.random.default_rng([seed, 1])
    drawn = rng.choice(count, len(workload), p=weights / weights.sum()) if count else np.full(len(workload), -1)
    return replace(
        workload,
        adapter=drawn[workload.sessions],
        adapters=names,
        ranks=tuple(ranks[number % len(ranks)] for number in range(count)),
    )


def with_priorities(workload: Workload, priorities: Sequence[int], *, seed: int) -> Workload:
    """Every session gets one of these, all as likely: (0, 0, 1) makes a third of them wait for the others."""
    drawn = np.random.default_rng([seed, 2]).choice(np.asarray(priorities, np.int64), len(workload))
    return replace(workload, priorities=drawn[workload.sessions])
