"""Contest: whether a package's function takes the place of our own kernel. It has to give what the reference gives, for
new random inputs, and to take less time. Knows no operation and no package.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch

logger = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}  # of the largest value

Kernel = Callable[..., torch.Tensor]
Timer = Callable[[Callable[[], object]], float]  # seconds that a call takes


@dataclass(frozen=True, slots=True)
class Round:
    """One batch of random inputs. results, expected: all outputs and states, of a kernel and of the reference, from the
    same states; NaN where nothing is to be written. again: another call."""

    results: Callable[[Kernel], Sequence[torch.Tensor]]
    expected: Callable[[], Sequence[torch.Tensor]]
    again: Callable[[Kernel], object]


@dataclass(frozen=True, slots=True)
class Contest:
    """One operation at one size."""

    operation: str  # as it is logged
    package: str
    load: Callable[[], Kernel]  # imports the package; may raise anything
    ours: Kernel
    draw: Callable[[], Iterable[Round]]
    dtype: torch.dtype

    def winner(self, timer: Timer, always: bool = False) -> Kernel:
        """The package's kernel where it is installed, right in every round and faster in all of them together, else
        ours; says in the log which and why. always: also where it is slower."""
        try:
            kernel, reason = self._judged(timer, always)
        except Exception as error:  # whatever a foreign package does, ours is there
            kernel, reason = None, f"{self.package} failed: {type(error).__name__}: {error}".splitlines()[0]
        logger.info("%s: %s; %s", self.operation, "ours" if kernel is None else self.package, reason)
        return self.ours if kernel is None else kernel

    def _judged(self, timer: Timer, always: bool) -> tuple[Kernel | None, str]:
        """The package's kernel, None where it is not to be used, and why."""
        if find_spec(self.package) is None:
            return None, f"{self.package} is not installed"
        kernel, rounds, allowed = self.load(), tuple(self.draw()), TOLERANCE[self.dtype]
        for batch in rounds:
            error = max(map(_error, batch.results(kernel), batch.expected()))
            if not error <= allowed:
                return None, f"{self.package} is wrong by {error:.2g} of the largest value, {allowed:g} is allowed"
        mine, its = (sum(timer(partial(batch.again, who)) for batch in rounds) for who in (self.ours, kernel))
        compared = f"{self.package} takes {its * 1e6:.0f} µs, ours {mine * 1e6:.0f} µs"
        return (kernel if always or its < mine else None), compared


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference by the largest expected value; infinite where only one of the two is a number."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    mine, wanted = actual.float(), expected.float()
    difference = (mine - wanted).abs().masked_fill_(mine.isnan() & wanted.isnan(), 0)
    largest = wanted.nan_to_num(0).abs().amax().clamp(min=1e-30)
    return float(difference.nan_to_num(float("inf")).amax() / largest)
