"""Lengths: a distribution of numbers of tokens, written as 512, uniform:100-900, lognormal:mean=512,p95=1500, ...

Knows no workload; a trace's lengths are read by `parse`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..tokens import parse_tokens
from .segments import MAX_LENGTH

SYNTAX = "512, uniform:100-900, normal:512,128, lognormal:mean=512,p95=1500, exponential:512 or trace:FILE"
P95 = 1.6448536269514722  # 95% of a standard normal distribution lie below

Sampler = Callable[[np.random.Generator, int], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """text: as the user wrote it."""

    text: str
    sampler: Sampler

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Whole numbers from 1 to MAX_LENGTH: what a tail has beyond counts as the nearest. [count]"""
        return np.clip(np.rint(self.sampler(rng, count)), 1, MAX_LENGTH).astype(np.int64)


def observed(text: str, lengths: NDArray[np.int64]) -> Lengths:
    """Drawn from these, each as likely as every other."""
    return Lengths(text, lambda rng, count: rng.choice(lengths, count).astype(np.float64))


def parse_distribution(name: str, text: str) -> Lengths:
    """name: of the option, for messages. Raises ValueError for what is none of SYNTAX (and for a trace)."""
    kind, separator, rest = text.strip().partition(":")
    if not separator:
        constant = _tokens(name, kind, text)
        return Lengths(text, lambda _, count: np.full(count, float(constant)))
    if kind == "uniform":
        low, high = _several(name, rest, "-", text)
        if low > high:
            raise ValueError(f"{name} must go from the smaller number to the larger one, got {text!r}")
        return Lengths(text, lambda rng, count: rng.integers(low, high + 1, count).astype(np.float64))
    if kind == "normal":
        mean, deviation = _several(name, rest, ",", text)
        return Lengths(text, lambda rng, count: rng.normal(mean, deviation, count))
    if kind == "exponential":
        average = _tokens(name, rest, text)
        return Lengths(text, lambda rng, count: rng.exponential(average, count))
    if kind == "lognormal":
        mu, sigma = _lognormal(name, rest, text)
        return Lengths(text, lambda rng, count: rng.lognormal(mu, sigma, count))
    raise ValueError(f"{name} must be such as {SYNTAX}, got {text!r}")


def _lognormal(name: str, rest: str, text: str) -> tuple[float, float]:
    """Mean and deviation of the logarithm, from p95 and mean or median. With m the median:
    ln(p95 / m) = 1.645 sigma and ln(mean / m) = sigma^2 / 2."""
    parts = dict(part.partition("=")[::2] for part in rest.split(","))
    if parts.keys() not in ({"mean", "p95"}, {"p50", "p95"}):
        raise ValueError(
            f"{name} must be such as lognormal:mean=512,p95=1500 or lognormal:p50=300,p95=1500, got {text!r}"
        )
    middle, value = next(iter(parts.keys() - {"p95"})), {key: _tokens(name, parts[key], text) for key in parts}
    ratio = math.log(value["p95"] / value[middle])
    if ratio < 0:
        raise ValueError(f"{name} needs a p95 of at least the {middle}, got {text!r}")
    if middle == "p50":
        return math.log(value["p50"]), ratio / P95
    if ratio > P95**2 / 2:
        most = math.exp(P95**2 / 2)
        raise ValueError(
            f"{name} must have a p95 of at most {most:.2f} times the mean, or p50 for the mean, got {text!r}"
        )
    sigma = P95 - math.sqrt(P95**2 - 2 * ratio)
    return math.log(value["mean"]) - sigma**2 / 2, sigma


def _several(name: str, rest: str, between: str, text: str) -> tuple[int, int]:
    first, separator, second = rest.partition(between)
    if not separator:
        raise ValueError(f"{name} must be such as {SYNTAX}, got {text!r}")
    return _tokens(name, first, text), _tokens(name, second, text)


def _tokens(name: str, value: str, text: str) -> int:
    """1 to MAX_LENGTH."""
    try:
        tokens = parse_tokens(name, value)
    except ValueError:
        raise ValueError(f"{name} must be such as {SYNTAX}, got {text!r}") from None
    if not 1 <= tokens <= MAX_LENGTH:
        raise ValueError(f"{name} must be 1 to {MAX_LENGTH:,} tokens, got {text!r}")
    return tokens
