"""A package's function is used where it is installed, right and faster; the log says what was chosen and why."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from hybrid.models.ops.packages.contest import Contest, Kernel, Round

INSTALLED = "numpy"


def ours(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def theirs(x: torch.Tensor) -> torch.Tensor:
    return x + x


def wrong(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((2 * x[:-1], 3 * x[-1:]))


def not_a_number(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == x[0], float("nan"), 2 * x)


def other_shape(x: torch.Tensor) -> torch.Tensor:
    return 2 * x[1:]


def failing(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no kernel image\nis available")


def round_of(x: torch.Tensor) -> Round:
    unwritten = torch.tensor([float("nan")])
    return Round(lambda kernel: [kernel(x), unwritten], lambda: [2 * x, unwritten], lambda kernel: kernel(x))


def rounds() -> list[Round]:
    return [round_of(torch.randn(5, generator=torch.Generator().manual_seed(seed))) for seed in range(2)]


def contest(load: Callable[[], Kernel], package: str = INSTALLED) -> Contest:
    return Contest("doubling", package, load, ours, rounds, torch.float32)


def clock(mine: float, its: float) -> Callable[[Callable[[], object]], float]:
    """A timer for which the first two calls take `mine` seconds each, the others `its`."""
    times = [mine, mine, its, its]

    def seconds(run: Callable[[], object]) -> float:
        run()
        return times.pop(0)

    return seconds


def decided(
    caplog: pytest.LogCaptureFixture, contest: Contest, times: tuple[float, float] = (2e-6, 1e-6), always: bool = False
) -> tuple[Kernel, str]:
    caplog.set_level(logging.INFO)
    kernel = contest.winner(clock(*times), always)
    [line] = caplog.messages
    return kernel, line


def test_right_and_faster(caplog: pytest.LogCaptureFixture) -> None:
    kernel, line = decided(caplog, contest(lambda: theirs))
    assert kernel is theirs
    assert line == "doubling: numpy; numpy takes 2 µs, ours 4 µs"


def test_slower(caplog: pytest.LogCaptureFixture) -> None:
    kernel, line = decided(caplog, contest(lambda: theirs), (1e-6, 3e-6))
    assert kernel is ours
    assert line == "doubling: ours; numpy takes 6 µs, ours 2 µs"


def test_slower_but_wanted(caplog: pytest.LogCaptureFixture) -> None:
    kernel, line = decided(caplog, contest(lambda: theirs), (1e-6, 3e-6), always=True)
    assert kernel is theirs
    assert line == "doubling: numpy; numpy takes 6 µs, ours 2 µs"


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (wrong, r"numpy is wrong by 0\.\d+ of the largest value, 0.0001 is allowed"),
        (not_a_number, "numpy is wrong by inf of the largest value, 0.0001 is allowed"),
        (other_shape, "numpy failed: AssertionError: .*"),
        (failing, "numpy failed: RuntimeError: no kernel image"),
    ],
)
def test_wrong(kernel: Kernel, reason: str, always: bool, caplog: pytest.LogCaptureFixture) -> None:
    chosen, line = decided(caplog, contest(lambda: kernel), always=always)
    assert chosen is ours
    assert re.fullmatch(f"doubling: ours; {reason}", line)


def test_a_package_that_cannot_be_imported(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Kernel:
        raise ImportError("undefined symbol")

    assert decided(caplog, contest(load)) == (ours, "doubling: ours; numpy failed: ImportError: undefined symbol")


def test_a_package_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    kernel, line = decided(caplog, contest(lambda: theirs, "no_such_package"))
    assert (kernel, line) == (ours, "doubling: ours; no_such_package is not installed")


def test_a_timer_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def seconds(run: Callable[[], object]) -> float:
        raise RuntimeError("out of memory")

    assert contest(lambda: theirs).winner(seconds) is ours
    assert caplog.messages == ["doubling: ours; numpy failed: RuntimeError: out of memory"]


def test_rounding_is_allowed_for_by_dtype(caplog: pytest.LogCaptureFixture) -> None:
    rough = contest(lambda: lambda x: 2 * x * (1 + 1e-3))
    assert replace(rough, dtype=torch.bfloat16).winner(clock(2.0, 1.0)) is not ours
    assert rough.winner(clock(2.0, 1.0)) is ours
