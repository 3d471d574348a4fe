"""Sweeps: the same question for a range of values, and for several models. Draws the answers.

Knows the planner; matplotlib is imported when something is drawn.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .picture import new_figure, save
from .planning import Plan, plan
from .question import Question
from .tokens import parse_tokens

AXES = ("context", "output", "shared_prefix", "adapters", "images")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a sweep: a plan, or why there is none."""

    value: int
    plan: Plan | None
    why_not: str = ""

    @property
    def concurrency(self) -> float:
        """On average where requests are of many lengths."""
        if self.plan is None:
            return 0
        return self.plan.concurrency if self.plan.expected is None else self.plan.expected.concurrency


def parse_sweep(text: str) -> tuple[str, tuple[int, ...]]:
    """ "context=1k..128k" -> the field of Question and its values, each twice the one before. Raises ValueError."""
    match = re.fullmatch(r"([a-z-]+)=([^.]+)\.\.([^.]+)", text.strip())
    axis = match[1].replace("-", "_") if match is not None else ""
    if match is None or axis not in AXES:
        names = ", ".join(name.replace("_", "-") for name in AXES)
        raise ValueError(f"sweep must be such as context=1k..128k, over {names}, got {text!r}")
    first, last = parse_tokens(match[1], match[2]), parse_tokens(match[1], match[3])
    if not 1 <= first <= last:
        raise ValueError(f"sweep must go from at least 1 upwards, got {text!r}")
    values = [first]
    while 2 * values[-1] <= last:
        values.append(2 * values[-1])
    return axis, tuple(values) if values[-1] == last else (*values, last)


def sweep(question: Question, axis: str, values: Sequence[int]) -> Iterator[Point]:
    """The answer for each value of the field `axis`. Raises ValueError where requests are of many lengths, which `axis`
    is one of."""
    if question.traffic is not None and axis != "adapters":
        raise ValueError(f"a sweep of {axis} needs numbers of tokens for context and output, and no max_tokens")
    for value in values:
        changed: dict[str, Any] = {axis: value}
        try:
            yield Point(value, plan(replace(question, **changed)))
        except ValueError as error:
            yield Point(value, None, str(error))


def draw(path: Path, axis: str, curves: Mapping[str, Sequence[Point]]) -> None:
    """Writes a picture: requests at once over the values, a curve for each model. Raises ValueError where it cannot."""
    figure = new_figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        fitting = [point for point in points if point.plan is not None]
        axes.plot([p.value for p in fitting], [p.concurrency for p in fitting], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(axis.replace("_", " "))
    axes.set_ylabel("requests at once")
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    save(figure, path)
