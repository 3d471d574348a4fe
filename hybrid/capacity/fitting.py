"""Fitting: the coefficients of `Calibrated` from measured steps. Pure arithmetic; measures nothing.

Errors count relative to what was measured, so that a step of a millisecond is fitted as well as one of a second.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .calibration import OVERHEADS, TERMS, WINDOW_TERMS, Calibrated, Curve, Residual, amounts, interpolation
from .non_negative import non_negative_least_squares
from .step_work import StepWork
from .tally import Tally, Window

APART = 1.3  # neighbouring points of a curve differ by at least this factor
OUTLIERS = 3.0  # intervals of the engine this many times as long as fitted were something else: they do not count
PASSES = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measured:
    """One step and how long it took; `kind` is what residuals are told by. Seconds of several runs: their median."""

    work: StepWork
    seconds: float
    kind: str


@dataclass(frozen=True, slots=True)
class Execution:
    """What was fitted of the runner."""

    tokens: Curve
    logits: Curve
    terms: dict[str, float]
    attention: tuple[dict[str, float], ...]


def fit_execution(measured: Sequence[Measured], windows: tuple[Window, ...]) -> Execution:
    """Raises ValueError where no step has a token, or none samples."""
    works = [entry.work for entry in measured]
    tallies = [Tally.of(work, windows) for work in works]
    seconds = np.array([entry.seconds for entry in measured])
    token_sizes = _sizes([tally.num_tokens for tally in tallies], "tokens")
    logit_sizes = _sizes([work.num_sampled for work in works], "sampled rows")
    parts = [
        _steps(token_sizes, [tally.num_tokens for tally in tallies]),
        _steps(logit_sizes, [work.num_sampled for work in works]),
        np.array([amounts(work, tally) for work, tally in zip(works, tallies)], dtype=np.float64),
    ]
    solved = non_negative_least_squares(np.hstack(parts) / seconds[:, None], np.ones(len(seconds)))
    tokens, logits, terms = np.split(solved, np.cumsum([len(token_sizes), len(logit_sizes)]))
    own, attention = terms[: len(TERMS)], terms[len(TERMS) :].reshape(len(windows), len(WINDOW_TERMS))
    return Execution(
        Curve(token_sizes, tuple(tokens.cumsum().tolist())),
        Curve(logit_sizes, tuple(logits.cumsum().tolist())),
        dict(zip(TERMS, own.tolist())),
        tuple(dict(zip(WINDOW_TERMS, row.tolist())) for row in attention),
    )


def fit_overhead(works: Sequence[StepWork], seconds: Sequence[float]) -> dict[str, float]:
    """seconds: of an engine's steps beside their execution."""
    matrix = np.array([(1.0, work.num_sampled, work.new_rows) for work in works])
    target = np.array(seconds)
    kept = np.ones(len(target), dtype=np.bool_)
    solved = np.zeros(len(OVERHEADS))
    for _ in range(PASSES):
        solved = non_negative_least_squares(matrix[kept], target[kept])
        expected = matrix @ solved
        off = np.abs(target - expected)
        kept = off <= OUTLIERS * max(float(np.median(off)), 1e-6) + 0.5 * expected
    return dict(zip(OVERHEADS, solved.tolist()))


def fit_slowdown(calibrated: Calibrated, works: Sequence[StepWork], seconds: Sequence[float]) -> float:
    """seconds: of executions in an engine that serves. What they took, in all but the strangest, over what was fitted
    from executions one after the other."""
    fitted = np.array([calibrated.execution(work) for work in works])
    ratios = np.array(seconds) / fitted
    low, high = np.percentile(ratios, (5, 95))
    kept = (ratios >= low) & (ratios <= high)
    return float((ratios * fitted)[kept].sum() / fitted[kept].sum())


def residuals(calibrated: Calibrated, executed: Sequence[Measured], served: Sequence[Measured]) -> dict[str, Residual]:
    """By kind of step. executed: by the runner alone; served: with all that the engine does beside it."""
    off: dict[str, list[float]] = {}
    for entry in executed:
        off.setdefault(entry.kind, []).append(abs(calibrated.execution(entry.work) / entry.seconds - 1))
    for entry in served:
        off.setdefault(entry.kind, []).append(abs(calibrated.seconds(entry.work) / entry.seconds - 1))
    return {
        kind: Residual(len(values), *(round(float(np.percentile(values, p)), 4) for p in (50, 95)))
        for kind, values in off.items()
    }


def _sizes(found: Sequence[int], what: str) -> tuple[int, ...]:
    """Points of a curve: from the smallest size that was measured to the largest."""
    there = sorted({size for size in found if size > 0})
    if not there:
        raise ValueError(f"no step with {what} was measured")
    sizes = [there[0]]
    for size in there[1:]:
        if size >= APART * sizes[-1]:
            sizes.append(size)
    if sizes[-1] != there[-1]:
        sizes[-1] = there[-1]
    return tuple(sizes)


def _steps(sizes: tuple[int, ...], found: Sequence[int]) -> Floats:
    """[len(found), len(sizes)]: the share in a curve's value, at each size found, of the step up to each of its points.
    Steps are not negative: more of anything never takes less time, whatever noise says."""
    matrix = np.zeros((len(found), len(sizes)))
    for row, size in enumerate(found):
        for index, weight in interpolation(sizes, size) if size else ():
            matrix[row, : index + 1] += weight
    return matrix
