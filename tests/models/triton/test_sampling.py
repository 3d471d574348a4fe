"""Truncation by Triton's kernels keeps the tokens that plain torch keeps, ties and all."""

import pytest
import torch

from hybrid.runner.truncation import truncate

INFINITY = float("inf")
SIZES = (1, 256, 257, 1025)  # a tile is 256, a program's part 1024


def logits(kind: str, rows: int, size: int, device: torch.device) -> torch.Tensor:
    """Of both signs; `ties`: few different values, zeros of both signs among them; `masked`: most tokens are out."""
    made = 4 * torch.randn(rows, size, generator=torch.Generator().manual_seed(size))
    if kind == "ties":
        made = made.round() / 2
    if kind == "masked":
        out = torch.rand(rows, size, generator=torch.Generator().manual_seed(1)) < 0.9
        made[out & (made < made.amax(dim=-1, keepdim=True))] = -INFINITY
    return made.to(device)


@pytest.mark.parametrize("kind", ["spread", "ties", "masked"])
@pytest.mark.parametrize("size", SIZES)
def test_truncation(size: int, kind: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 6
    top_k = torch.tensor([0, 1, 0, size - 1, size + 1, max(1, size // 3)], device=device)
    top_p = torch.tensor([1.0, 1.0, 0.5, 0.9, 0.999, 0.7], device=device)
    min_p = torch.tensor([0.1, 0.0, 0.0, 0.01, 0.0, 0.0], device=device)
    kept = []
    for name in ("triton", "torch"):
        monkeypatch.setenv("HYBRID_OPS", name)
        result = logits(kind, rows, size, device)
        truncate(result, top_k, top_p, min_p)
        kept.append(result)
    assert torch.equal(kept[0], kept[1])
    assert (kept[0] > -INFINITY).any(dim=1).all()
    assert size == 1 or (kept[0] == -INFINITY).any()
