"""Cases of the kernels between products: norms, rotation, activations."""

from collections.abc import Callable
from functools import partial
from typing import get_args

import torch

from hybrid.models.blueprint.parts import Activation
from hybrid.models.ops import elementwise
from hybrid.models.ops.triton import activation, norm, rotation

from .gpu_case import Case, Tensors, Work

EPS = 1e-5
HEAD = 128


def cases(device: torch.device, dtype: torch.dtype, short: bool) -> list[Case]:
    """tokens by hidden size; heads of 128 where sizes are real ones."""
    tokens, size, inner, heads, head = (5, 72, 66, 3, 10) if short else (8192, 4096, 14336, 40, HEAD)
    item = dtype.itemsize

    def random(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=kind)

    def weight(n: int) -> torch.Tensor:
        return random(n, kind=torch.float32)

    def plain(kernel: Callable[[], Tensors], reference: Callable[[], Tensors], moved: float) -> Work:
        return Work(kernel, reference, kernel, moved)

    def rms_norm(groups: int) -> Work:
        x, w = random(tokens, size), weight(size)
        return plain(
            lambda: [norm.rms_norm(x, w, EPS, groups)],
            lambda: [elementwise.rms_norm(x.float(), w, EPS, groups)],
            2 * x.numel() * item,
        )

    def add_rms_norm() -> Work:
        x, added, w = random(tokens, size), random(tokens, size), weight(size)

        def reference() -> Tensors:
            total = torch.add(x.float(), added.float(), alpha=0.22)
            return total, elementwise.rms_norm(total, w, EPS)

        return plain(lambda: norm.add_rms_norm(x, added, 0.22, w, EPS), reference, 4 * x.numel() * item)

    def heads_norm() -> Work:
        """In place, of heads between others."""
        x, w = random(tokens, heads + 2, head), weight(head)

        def kernel() -> Tensors:
            changed = x.clone()
            norm.rms_norm_(changed[:, 1 : 1 + heads], w, EPS)
            return [changed]

        def reference() -> Tensors:
            changed = x.float()
            elementwise.rms_norm_(changed[:, 1 : 1 + heads], w, EPS)
            return [changed]

        timed = x.clone()
        moved = 2 * tokens * heads * head * item
        return Work(kernel, reference, lambda: norm.rms_norm_(timed[:, 1 : 1 + heads], w, EPS), moved)

    def rotate(interleaved: bool) -> Work:
        x, angles = random(tokens, heads + 2, head), random(tokens, head // 2, kind=torch.float32)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

        def kernel() -> Tensors:
            turned = x.clone()
            rotation.rotate(turned, heads, cos, sin, interleaved)
            return [turned]

        def reference() -> Tensors:
            turned = x.float()
            elementwise.rotate(turned, heads, cos.float(), sin.float(), interleaved)
            return [turned]

        timed = x.clone()
        moved = (2 * tokens * heads * head + 2 * cos.numel()) * item
        return Work(kernel, reference, lambda: rotation.rotate(timed, heads, cos, sin, interleaved), moved)

    def activate(kind: Activation) -> Work:
        x = random(tokens, 2 * inner)
        return plain(
            lambda: [activation.activate_and_multiply(kind, x)],
            lambda: [elementwise.activate_and_multiply(kind, x.float())],
            1.5 * x.numel() * item,
        )

    rows, of_heads = f"{tokens} x {size}", f"{tokens} x {heads} x {head}"
    return [
        Case("rms_norm", rows, dtype, not short, partial(rms_norm, 1)),
        Case("rms_norm, 8 groups", rows, dtype, not short, partial(rms_norm, 8)),
        Case("add_rms_norm", rows, dtype, not short, add_rms_norm),
        Case("rms_norm_ of heads", of_heads, dtype, not short, heads_norm),
        Case("rotate, halves", of_heads, dtype, not short, partial(rotate, False)),
        Case("rotate, pairs", of_heads, dtype, not short, partial(rotate, True)),
        *(
            Case(f"{kind} and mul", f"{tokens} x 2 x {inner}", dtype, not short, partial(activate, kind))
            for kind in get_args(Activation)
        ),
    ]
