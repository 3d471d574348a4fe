"""Cases of truncation: the threshold of top-k and of top-p over vocabularies, each row with a number of its own."""

from functools import partial

import torch

from hybrid.models.ops.triton.sampling import threshold
from hybrid.runner.truncation import truncate

from .gpu_case import Case, Tensors, Work

SHORT = ((1, 257), (3, 1030))  # rows and logits of each: a tile is 256, a program's part 1024
FULL = ((1, 128256), (32, 32000), (32, 128256), (32, 262144), (256, 128256))
SPREAD = 4.0  # of logits
MOST_KEPT = 200  # by top-k


def cases(device: torch.device, dtype: torch.dtype, short: bool) -> list[Case]:
    """Logits are float32, but as a model of `dtype` makes them: of bfloat16, many are equal."""
    return [
        Case(f"{kind}: {rows} x {size}", f"{rows} x {size}", dtype, not short, partial(work, rows, size, device, dtype))
        for kind, work in (("top-k", _top_k), ("top-p", _top_p))
        for rows, size in (SHORT if short else FULL)
    ]


def _top_k(rows: int, size: int, device: torch.device, dtype: torch.dtype) -> Work:
    kept = torch.randint(1, MOST_KEPT, (rows,), device=device)
    return _work(_logits(rows, size, device, dtype), kept, torch.ones(rows, device=device))


def _top_p(rows: int, size: int, device: torch.device, dtype: torch.dtype) -> Work:
    share = 0.5 + 0.49 * torch.rand(rows, device=device)
    return _work(_logits(rows, size, device, dtype), None, share)


def _logits(rows: int, size: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return (SPREAD * torch.randn(rows, size, device=device)).to(dtype).float()


def _work(logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor) -> Work:
    """top_k: None for top-p alone. A threshold is the least logit that is kept."""
    by_weight = top_k is None
    kept = torch.zeros(len(logits), dtype=torch.int64, device=logits.device) if top_k is None else top_k
    wanted = (top_p if by_weight else kept).double()

    def kernel() -> Tensors:
        return [threshold(logits, wanted, by_weight)]

    def reference() -> Tensors:
        left = logits.clone()
        truncate(left, kept, top_p, torch.zeros_like(top_p))
        return [torch.where(left == float("-inf"), float("inf"), left).amin(dim=-1)]

    # all logits have to be read once; kernels that find one digit after the other read them once per digit
    return Work(kernel, reference, kernel, logits.numel() * logits.element_size())
