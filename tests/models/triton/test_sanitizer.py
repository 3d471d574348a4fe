"""The sanitizer finds what it is for, in kernels that are wrong on purpose, and nothing in kernels that are right."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from hybrid.models.ops.triton.device import interpreted

from .sanitized import sanitized
from .sanitizer import KernelFault, Order

pytestmark = pytest.mark.skipif(not interpreted(), reason="nothing is interpreted where there is a GPU")


@pytest.fixture(autouse=True)
def sanitize() -> None:
    """Not over these tests, which do so themselves."""


@triton.jit
def shift(x, SIZE: tl.constexpr):
    """Grid (programs): every program copies its part to where the next one reads."""
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(x + i + SIZE, tl.load(x + i))


@triton.jit
def shift_back(x, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(x + i, tl.load(x + i + SIZE))


@triton.jit
def same_value(x):
    tl.store(x, 1)


@triton.jit
def same_value_per_thread(x, SIZE: tl.constexpr):
    tl.store(x + tl.arange(0, SIZE) // 2, 1)


@triton.jit
def copy(x, out, count, SIZE: tl.constexpr):
    """Grid (rows): rows of SIZE, but `count` elements of each."""
    i = tl.arange(0, SIZE)
    row = tl.program_id(0) * SIZE
    tl.store(out + row + i, tl.load(x + row + i, mask=i < count, other=0))


@triton.jit
def through_memory(x, BARRIER: tl.constexpr):
    """Grid (1): threads read what others wrote."""
    i = tl.arange(0, 4)
    tl.store(x + i, i)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + 4 + i, tl.load(x + 3 - i))


@triton.jit
def far(x, out, number, stride):
    tl.store(out, tl.load(x + number * stride))


@triton.jit
def far_masked(x, out, number, stride):
    at = tl.arange(0, 2) * number
    tl.store(out, tl.sum(tl.load(x + at.to(tl.int64) * stride, mask=at == 0, other=0), 0))


@triton.jit
def take_number(counter, out):
    """Grid (programs): the order in which they run."""
    tl.store(out + tl.program_id(0), tl.atomic_add(counter, 1))


@triton.jit
def read_and_count(counter, out):
    tl.store(out + tl.program_id(0), tl.load(counter))
    tl.atomic_add(counter, 1)


@triton.jit
def _inner(x, at):
    return tl.load(x + at)


@triton.jit
def calls(x, out):
    tl.store(out, _inner(x, 9))


INTS = torch.int32
LAUNCHES: dict[str, tuple[Callable[[], Any], str | None]] = {
    "a part that the next program reads": (
        lambda: shift[(3,)](torch.zeros(16), SIZE=4),
        r"shift \(test_sanitizer.py:\d+\): program \(\d, 0, 0\) (reads|writes) element \d+ of x, which program "
        r"\(\d, 0, 0\) of the same launch has (written|read)",
    ),
    "a part that the program before reads": (lambda: shift_back[(3,)](torch.zeros(16), SIZE=4), "of the same launch"),
    "a program alone": (lambda: shift[(1,)](torch.zeros(16), SIZE=4), None),
    "parts of two tensors in one storage": (lambda: both_of_one_storage(3), "of the same launch"),
    "the same value by two programs": (
        lambda: same_value[(2,)](torch.zeros(1)),
        r"writes element 0 of x, which program \(\d, 0, 0\) of the same launch has written",
    ),
    "the same value by two threads": (
        lambda: same_value_per_thread[(1,)](torch.zeros(4), SIZE=8),
        "writes element 0 of x by several threads at once",
    ),
    "masked": (lambda: copy[(2,)](torch.zeros(2, 8)[:, :5].flatten(), torch.zeros(16), 2, SIZE=8), None),
    "behind the end": (
        lambda: copy[(2,)](torch.zeros(15), torch.zeros(16), 8, SIZE=8),
        r"copy \(test_sanitizer.py:\d+\): program \(1, 0, 0\) touches element 15 of x, which has none there: \[15\]",
    ),
    "behind the end, in the same storage": (
        lambda: copy[(2,)](torch.zeros(99)[9:24], torch.zeros(16), 8, SIZE=8),
        "touches element 15 of x",
    ),
    "before the beginning": (lambda: far[(1,)](torch.zeros(99)[9:], torch.zeros(1), -1, 1), "touches element -1 of x"),
    "between the rows of a view": (
        lambda: copy[(2,)](torch.zeros(2, 8)[:, :5], torch.zeros(16), 6, SIZE=8),
        r"touches element (5|13) of x, which has none there: \[2, 5\] by \[8, 1\]",
    ),
    "in the rows of a view": (lambda: copy[(2,)](torch.zeros(2, 8)[:, :5], torch.zeros(16), 5, SIZE=8), None),
    "in an empty tensor": (lambda: far[(1,)](torch.zeros(0), torch.zeros(1), 0, 1), "touches element 0 of x"),
    "in a function": (lambda: calls[(1,)](torch.zeros(9), torch.zeros(1)), "touches element 9 of x"),
    "threads without a barrier": (
        lambda: through_memory[(1,)](torch.zeros(8, dtype=INTS), BARRIER=False),
        "reads element 3 of x, which another thread of it, with no barrier since, has written",
    ),
    "threads with a barrier": (lambda: through_memory[(1,)](torch.zeros(8, dtype=INTS), BARRIER=True), None),
    "more than int32": (
        lambda: far[(1,)](torch.zeros(1), torch.zeros(1), 1 << 16, 1 << 15),
        "has an int32 that overflows: mul",
    ),
    "more than int32, masked": (lambda: far_masked[(1,)](torch.zeros(1), torch.zeros(1), 1 << 16, 1 << 15), None),
    "atomics": (lambda: take_number[(3,)](torch.zeros(1, dtype=INTS), torch.zeros(3, dtype=INTS)), None),
    "atomics and others": (
        lambda: read_and_count[(3,)](torch.zeros(1, dtype=INTS), torch.zeros(3, dtype=INTS)),
        r"reads element 0 of counter, which an atomic of the launch has written|"
        r"writes element 0 of counter, which program \(\d, 0, 0\) of the same launch has read",
    ),
}


def both_of_one_storage(programs: int) -> None:
    """As float32 and as bytes."""
    whole = torch.zeros(32)
    copy[(programs,)](whole.view(torch.uint8)[2:], whole[:31], 8, SIZE=8)


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
@pytest.mark.parametrize("name", LAUNCHES)
def test_launches(name: str, order: Order) -> None:
    launch, said = LAUNCHES[name]
    with sanitized(order) as sanitizer:
        if said is None:
            launch()
        else:
            with pytest.raises(KernelFault, match=said):
                launch()
    assert len(sanitizer.faults) == (said is not None)


def test_a_launch_knows_nothing_of_the_one_before() -> None:
    x = torch.arange(16.0)
    with sanitized() as sanitizer:
        for _ in range(2):
            same_value[(1,)](x)
            copy[(1,)](x[:8], x[8:], 8, SIZE=8)
    assert not sanitizer.faults and sanitizer.kernels == {"same_value", "copy"}
    assert x.tolist() == [1.0, *range(1, 8)] * 2


def test_orders() -> None:
    said = {}
    for order in ("ascending", "descending", "shuffled"):
        out = torch.zeros(9, dtype=INTS)
        with sanitized(order):
            take_number[(9,)](torch.zeros(1, dtype=INTS), out)
        said[order] = out.tolist()
    assert said["ascending"] == list(range(9)) == said["descending"][::-1]
    assert sorted(said["shuffled"]) == list(range(9)) != said["shuffled"]


def test_what_nobody_initialised_is_not_zero() -> None:
    with sanitized():
        assert torch.empty(3).isnan().all() and torch.zeros(1).new_empty(3).isnan().all()
        assert (torch.empty(3, dtype=INTS) > 1 << 30).all()
    assert not torch.are_deterministic_algorithms_enabled()
