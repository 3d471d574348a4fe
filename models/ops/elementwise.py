"""What lies between the products of a layer: norms and rotation, in torch or, on a CPU, by a compiled kernel.

A kernel does in one pass what torch does in several; it needs float32 and contiguous memory.
"""

import torch
import torch.nn.functional as F

from . import cpu


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """x [..., size] / sqrt(mean(x ** 2) + eps) * weight [size]."""
    if weight is not None and _kernel_fits(x):
        out = torch.empty_like(x)
        size = x.shape[-1]
        cpu.kernels().rms_norm(x.view(-1, size).numpy(), weight.numpy(), cpu.float32(eps), out.view(-1, size).numpy())
        return out
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def rotate(heads: torch.Tensor, count: int, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    """Mutates heads [T, all heads, size]: of the first `count`, the first elements turn by cos and sin [T, n]."""
    size = cos.shape[-1]
    if not interleaved and _kernel_fits(heads):
        cpu.kernels().rotate_halves(heads.numpy(), count, cos.numpy(), sin.numpy())
        return
    turned = heads[:, :count, : 2 * size]
    cos, sin = cos[:, None], sin[:, None]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.split(size, dim=-1)
    rotated = torch.addcmul(second * cos, first, sin)
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.copy_(rotated)


def _kernel_fits(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() and cpu.is_available()
