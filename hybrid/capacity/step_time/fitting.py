"""Fitting: the coefficients of `Calibrated` from measured steps. Pure arithmetic; measures nothing.

Errors count relative to what was measured, so that a step of a millisecond is fitted as well as one of a second.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .calibrated import OVERHEADS, Residual
from .execution_time import TERMS, WINDOW_TERMS, Curve, ExecutionTime, amounts, interpolation
from .non_negative import non_negative_least_squares
from .step_time import EXACT
from .step_work import StepWork
from .tally import Tally, Window

APART = 1.3  # neighbouring points of a curve differ by at least this factor
OUTLIERS = 3.0  # intervals of the engine this many times as long as fitted were something else: they do not count
PASSES = 3
SERVED = 4.0
FACTORS = 50
STRANGE = 0.01  # of the served steps, at either end

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measured:
    """One step and how long it took; `kind` is what residuals are told by. Seconds of several runs: their median."""

    work: StepWork
    seconds: float
    kind: str


def fit_execution(
    measured: Sequence[Measured], windows: tuple[Window, ...], served: Sequence[Measured] = ()
) -> ExecutionTime:
    """served: executions in an engine that serves, where other work comes between them, as in what is predicted. All
    but the strangest weigh SERVED times as much as the others, which tell the terms apart, and in sum they take as long
    as they took. Raises ValueError where no step has a token, or none samples."""
    first = _fit(measured, windows, np.ones(len(measured)))
    if not served:
        return first
    ratios = np.array([entry.seconds / first.seconds(entry.work) for entry in served])
    low, high = np.percentile(ratios, (100 * STRANGE, 100 - 100 * STRANGE))
    usual = [entry for entry, ratio in zip(served, ratios) if low <= ratio <= high]
    weights = np.full(len(usual), SERVED * (len(measured) / len(usual)) ** 0.5)
    fitted = _fit([*measured, *usual], windows, np.concatenate((np.ones(len(measured)), weights)))
    # What disturbs a step makes it longer, so that relative errors are least below the mean; queues feel the mean.
    return fitted.scaled(sum(entry.seconds for entry in usual) / sum(fitted.seconds(entry.work) for entry in usual))


def _fit(measured: Sequence[Measured], windows: tuple[Window, ...], weights: Floats) -> ExecutionTime:
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
    solved = non_negative_least_squares(np.hstack(parts) * (weights / seconds)[:, None], weights)
    tokens, logits, terms = np.split(solved, np.cumsum([len(token_sizes), len(logit_sizes)]))
    own, attention = terms[: len(TERMS)], terms[len(TERMS) :].reshape(len(windows), len(WINDOW_TERMS))
    return ExecutionTime(
        tokens=Curve(token_sizes, tuple(tokens.cumsum().tolist())),
        logits=Curve(logit_sizes, tuple(logits.cumsum().tolist())),
        terms=dict(zip(TERMS, own.tolist())),
        windows=windows,
        attention=tuple(dict(zip(WINDOW_TERMS, row.tolist())) for row in attention),
    )


def variation(execution: ExecutionTime, served: Sequence[Measured]) -> tuple[float, ...]:
    """Of executions in an engine that serves, around the fit: see StepTime. EXACT where there are none."""
    if not served:
        return EXACT
    factors = [entry.seconds / execution.seconds(entry.work) for entry in served]
    middles = np.percentile(factors, (np.arange(FACTORS) + 0.5) * 100 / FACTORS)
    return tuple((middles / middles.mean()).round(4).tolist())


def fit_overhead(counts: Sequence[tuple[int, int]], seconds: Sequence[float]) -> dict[str, float]:
    """counts: of each step the tokens that it handed out, and the requests that entered with the next. seconds: of what
    an engine does from the end of the execution to the begin of the next. Zeros where there are no steps."""
    if not counts:
        return dict.fromkeys(OVERHEADS, 0.0)
    matrix = np.array([(1.0, tokens, requests) for tokens, requests in counts])
    target = np.array(seconds)
    kept = np.ones(len(target), dtype=np.bool_)
    solved = np.zeros(len(OVERHEADS))
    for _ in range(PASSES):
        solved = non_negative_least_squares(matrix[kept], target[kept])
        expected = matrix @ solved
        off = np.abs(target - expected)
        kept = off <= OUTLIERS * max(float(np.median(off)), 1e-6) + 0.5 * expected
    return dict(zip(OVERHEADS, solved.tolist()))


def residuals(execution: ExecutionTime, measured: Sequence[Measured]) -> dict[str, Residual]:
    """By kind of step."""
    off: dict[str, list[float]] = {}
    for entry in measured:
        off.setdefault(entry.kind, []).append(abs(execution.seconds(entry.work) / entry.seconds - 1))
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
