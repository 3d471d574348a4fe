"""Case: one kernel at one size, its torch reference, and what it has to move and to multiply; how errors and times are
taken, and whose operations are chosen. Knows no kernel.

The reference computes in float32 from the very inputs of the kernel, so that the error is the kernel's own: a sum that
was kept in bfloat16 shows.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

COPIED_BYTES = 2**31
MATRIX = 8192
REPEATS_MS = 60  # that a measurement repeats for
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
STALE = 7.0  # stands for NaN in caches that are compared
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Work:
    """kernel, reference: each from fresh copies of the same state, the results and every cache. again: what is timed.

    bytes: that have to be read and written once; operations: of products.
    """

    kernel: Callable[[], Tensors]
    reference: Callable[[], Tensors]
    again: Callable[[], object]
    bytes: float
    operations: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """make: draws new inputs. timed: the size is a real one."""

    name: str
    size: str
    dtype: torch.dtype
    timed: bool
    make: Callable[[], Work]


@dataclass(frozen=True, slots=True)
class Rates:
    """What the device does at best. Bytes read plus written per second; operations per second in bfloat16."""

    bandwidth: float
    matrix: float

    @classmethod
    def measure(cls, device: torch.device) -> "Rates":
        """By copying, and by multiplying large matrices."""
        source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        bandwidth = 2 * COPIED_BYTES / seconds(lambda: target.copy_(source))
        left, right = (torch.randn(MATRIX, MATRIX, device=device, dtype=torch.bfloat16) for _ in range(2))
        return cls(bandwidth, 2 * MATRIX**3 / seconds(lambda: left @ right))

    def seconds(self, work: Work) -> float:
        """The least that the work takes."""
        return max(work.bytes / self.bandwidth, work.operations / self.matrix)


def seconds(run: Callable[[], object]) -> float:
    """Median time on the GPU, with nothing in its cache."""
    from triton.testing import do_bench

    return float(do_bench(run, warmup=20, rep=REPEATS_MS, return_mode="median")) / 1e3


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference by the expected one's; 0 for nothing at all."""
    if expected.numel() == 0:
        return 0.0
    wanted = expected.float()
    difference = torch.linalg.vector_norm(actual.float() - wanted)
    return float(difference / torch.linalg.vector_norm(wanted).clamp(min=1e-30))


def error(work: Work) -> float:
    """The largest of all results; NaN where one of them has a NaN."""
    errors = [relative_error(*pair) for pair in zip(work.kernel(), work.reference(), strict=True)]
    return max(errors, key=lambda value: (value != value, value))


def written(cache: torch.Tensor) -> torch.Tensor:
    """A cache for comparison: what nobody wrote is as equal as anything."""
    return torch.nan_to_num(cache, STALE)


@contextmanager
def ops(name: str) -> Iterator[None]:
    """HYBRID_OPS, see `hybrid/models/ops/choice.py`."""
    before = os.environ.get("HYBRID_OPS")
    os.environ["HYBRID_OPS"] = name
    try:
        yield
    finally:
        os.environ.pop("HYBRID_OPS")
        if before is not None:
            os.environ["HYBRID_OPS"] = before
