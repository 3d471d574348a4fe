"""Norms, rotation and activations by Triton's kernels give what plain torch gives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hybrid.models.blueprint.parts import Activation
from hybrid.models.ops import elementwise

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2}


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], tuple[Any, Any]]:
    """What a computation gives by Triton's kernels, and in torch."""

    def run(compute: Callable[[], Any]) -> tuple[Any, Any]:
        results = []
        for name in ("triton", "torch"):
            monkeypatch.setenv("HYBRID_OPS", name)
            results.append(compute())
        return results[0], results[1]

    return run


Both = Callable[[Callable[[], Any]], tuple[Any, Any]]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def random(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (1, 7), (33, 64), (2, 3, 5), (5, 1500)])
@pytest.mark.parametrize("weighted", [False, True])
def test_norms(shape: tuple[int, ...], weighted: bool, dtype: torch.dtype, both: Both, device: torch.device) -> None:
    x = random(*shape, device=device, dtype=dtype)
    weight = random(shape[-1], device=device, seed=1) if weighted else None
    close(*both(lambda: elementwise.rms_norm(x, weight, 1e-3)))


def test_norms_of_what_lies_inside_something_wider(both: Both, device: torch.device) -> None:
    heads, weight = random(6, 5, 12, device=device), random(12, device=device, seed=1)
    close(*both(lambda: elementwise.rms_norm(heads[:, 1:3], weight, 1e-3)))
    close(*both(lambda: elementwise.rms_norm(heads.flatten(1)[:, 12:36], None, 1e-3)))


def test_norms_in_place(both: Both, device: torch.device) -> None:
    heads, weight = random(6, 5, 12, device=device), random(12, device=device, seed=1)

    def normed() -> torch.Tensor:
        changed = heads.clone()
        elementwise.rms_norm_(changed[:, 1:3], weight, 1e-3)
        elementwise.rms_norm_(changed[:, 3:].view(6, 24), None, 1e-3)
        return changed

    ours, theirs = both(normed)
    close(ours, theirs)
    assert torch.equal(ours[:, 0], heads[:, 0])


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_norms_of_groups(groups: int, weighted: bool, both: Both, device: torch.device) -> None:
    x = random(7, 30, device=device)
    weight = random(30, device=device, seed=1) if weighted else None
    close(*both(lambda: elementwise.rms_norm(x, weight, 1e-3, groups)))


@pytest.mark.parametrize(
    ("dtype", "of_added"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)],
)
@pytest.mark.parametrize("alpha", [1.0, 0.22])
def test_norms_of_a_sum(
    dtype: torch.dtype, of_added: torch.dtype, alpha: float, both: Both, device: torch.device
) -> None:
    x, added = random(9, 20, device=device, dtype=dtype), random(9, 20, device=device, dtype=of_added, seed=1)
    weight = random(20, device=device, seed=2)
    ours, theirs = both(lambda: elementwise.add_rms_norm(x, added, alpha, weight, 1e-3))
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        close(mine, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("count", "half"), [(1, 1), (3, 4), (5, 3)])
def test_rotation(
    count: int, half: int, interleaved: bool, dtype: torch.dtype, both: Both, device: torch.device
) -> None:
    heads, angles = random(6, 5, 9, device=device, dtype=dtype), random(6, half, device=device, seed=1)

    def rotated() -> torch.Tensor:
        turned = heads.clone()
        elementwise.rotate(turned, count, angles.cos().to(dtype), angles.sin().to(dtype), interleaved)
        return turned

    ours, theirs = both(rotated)
    tolerance = 3 * TOLERANCE[dtype]  # torch rounds products of values as large as 9
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert torch.equal(ours[:, count:], heads[:, count:])
    assert torch.equal(ours[..., 2 * half :], heads[..., 2 * half :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu2"])
@pytest.mark.parametrize("shape", [(0, 4), (1, 2), (5, 66), (2, 2050)])
def test_activations(
    kind: Activation, shape: tuple[int, int], dtype: torch.dtype, both: Both, device: torch.device
) -> None:
    x = random(*shape, device=device, dtype=dtype) / 2
    close(*both(lambda: elementwise.activate_and_multiply(kind, x)))
