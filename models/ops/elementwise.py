"""What lies between the products of a layer: norms, rotation, activations. In torch, or by a kernel that does in one
pass what torch does in several: Triton's, or on a CPU, for contiguous float32, a compiled one; see `choice`.
"""

import torch
import torch.nn.functional as F

from ..blueprint.parts import Activation
from . import cpu
from .choice import choose


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, groups: int = 1) -> torch.Tensor:
    """x / sqrt(mean(x ** 2) + eps) * weight in float32; the mean is of each of the `groups` of the last dimension.

    x [..., size], weight [size] float32 -> the shape and dtype of x.
    """
    if choose(x.device) == "triton":
        from .triton import norm

        return norm.rms_norm(x, weight, eps, groups)
    wide = x.float()
    if groups > 1:
        normed = F.rms_norm(wide.unflatten(-1, (groups, -1)), (x.shape[-1] // groups,), None, eps).flatten(-2)
        return (normed if weight is None else normed * weight).to(x.dtype)
    if weight is not None and _kernel_fits(wide):
        out = torch.empty_like(wide)
        size = x.shape[-1]
        rows, normed_rows = wide.view(-1, size).numpy(), out.view(-1, size).numpy()
        cpu.kernels().rms_norm(rows, weight.numpy(), cpu.float32(eps), normed_rows)
        return out.to(x.dtype)
    return F.rms_norm(wide, x.shape[-1:], weight, eps).to(x.dtype)


def rms_norm_(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> None:
    """Mutates x [T, size] or [T, n, size], which may lie inside something wider: `rms_norm` in its place."""
    if choose(x.device) == "triton":
        from .triton import norm

        norm.rms_norm_(x, weight, eps)
        return
    x.copy_(rms_norm(x, weight, eps))


def add_rms_norm(
    x: torch.Tensor, added: torch.Tensor, alpha: float, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """total = x + alpha added, in the dtype of x, and its `rms_norm`. x and added [T, size], weight [size] float32."""
    if choose(x.device) == "triton":
        from .triton import norm

        return norm.add_rms_norm(x, added, alpha, weight, eps)
    total = torch.add(x, added, alpha=alpha)
    return total, rms_norm(total, weight, eps)


def rotate(heads: torch.Tensor, count: int, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    """Mutates heads [T, all heads, size]: of the first `count`, the first elements turn by cos and sin [T, n]."""
    if choose(heads.device) == "triton":
        from .triton import rotation

        rotation.rotate(heads, count, cos, sin, interleaved)
        return
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


def activate(kind: Activation, x: torch.Tensor) -> torch.Tensor:
    """The activation of a blueprint, elementwise."""
    if kind == "silu":
        return F.silu(x)
    if kind == "relu2":
        return F.relu(x).square_()
    return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def activate_and_multiply(kind: Activation, x: torch.Tensor) -> torch.Tensor:
    """x [T, 2 size] -> [T, size]: the activation of the first half times the second half."""
    if choose(x.device) == "triton":
        from .triton import activation

        return activation.activate_and_multiply(kind, x)
    gate, up = x.chunk(2, dim=-1)
    return activate(kind, gate).mul_(up)


def _kernel_fits(x: torch.Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_contiguous() and choose(x.device) == "cpu"
