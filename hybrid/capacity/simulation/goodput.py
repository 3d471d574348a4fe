"""Goodput: the highest rate at which enough requests meet their targets, searched by bisection. Only asks."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from .summary import Summary

RESOLUTION = 1.03  # the search ends when the rates around the goodput differ by less than this factor


@dataclass(frozen=True, slots=True)
class Goodput:
    """best: at the highest rate that attained the targets; None: not even the lowest did. at_least: the highest rate
    asked for did, so that there may be more. curve: everything that was simulated, by rate."""

    best: Summary | None
    at_least: bool
    curve: tuple[Summary, ...]


def parse_rates(text: str) -> tuple[float, float]:
    """ "1..50" -> (1, 50); "8" -> (8, 8). Requests per second. Raises ValueError."""
    number = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
    match = re.fullmatch(rf"{number}(?:\.\.{number})?", text.strip())
    low = float(match[1]) if match is not None else 0.0
    high = float(match[2]) if match is not None and match[2] is not None else low
    if not 0 < low <= high:
        raise ValueError(f"rate must be requests per second such as 8, or a range upwards such as 1..50, got {text!r}")
    return low, high


def search(run: Callable[[float], Summary], low: float, high: float) -> Goodput:
    """Simulates the ends of the range and then between them. Supposes that whoever attains the targets at one rate
    attains them at every lower one: `run` stretches the same requests."""
    runs = [run(low)]
    best = runs[0] if runs[0].attained else None
    if best is not None and low < high:
        worse = run(high)
        runs.append(worse)
        if worse.attained:
            best = worse
        while not worse.attained and worse.rate / best.rate > RESOLUTION:
            runs.append(run(math.sqrt(best.rate * worse.rate)))
            best, worse = (runs[-1], worse) if runs[-1].attained else (best, runs[-1])
    at_least = best is not None and best.rate >= high
    return Goodput(best, at_least, tuple(sorted(runs, key=lambda summary: summary.rate)))
