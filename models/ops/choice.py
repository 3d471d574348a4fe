"""Who computes on a device: plain torch, Triton's kernels, or those that numba compiles for a CPU.

HYBRID_OPS=torch|triton|cpu in the environment decides, for tests and comparisons; without it the device does.
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch

from . import cpu

Choice = Literal["torch", "triton", "cpu"]


def choose(device: torch.device) -> Choice:
    """The implementation for `device`. ValueError: HYBRID_OPS names none, or one that cannot run there."""
    on_cpu = device.type == "cpu"
    match os.environ.get("HYBRID_OPS", ""):
        case "":
            if device.type == "cuda" and _has_triton():
                return "triton"
            return "cpu" if on_cpu and cpu.is_available() else "torch"
        case "torch":
            return "torch"
        case "triton":
            if not _has_triton():
                raise ValueError("HYBRID_OPS='triton': triton is not installed")
            from .triton.device import check

            check(device)
            return "triton"
        case "cpu":
            if not (on_cpu and cpu.is_available()):
                raise ValueError(f"HYBRID_OPS='cpu' needs a CPU and numba; the device is {device.type!r}")
            return "cpu"
        case other:
            raise ValueError(f"HYBRID_OPS={other!r}: expected torch, triton or cpu")


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
