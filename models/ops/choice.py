"""Who computes on a device: plain torch, Triton's kernels, or those that numba compiles for a CPU; and whether kernels
of other packages take part.

HYBRID_OPS=torch|triton|cpu|packages in the environment decides, for tests and comparisons; without it the device does.
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch

from . import cpu

OLDEST = (8, 0)  # compute capability for whose shared memory and dtypes the kernels are made

Choice = Literal["torch", "triton", "cpu"]
When = Literal["never", "faster", "always"]


def choose(device: torch.device) -> Choice:
    """The implementation for `device`. ValueError: HYBRID_OPS names none, or one that cannot run there."""
    on_cpu = device.type == "cpu"
    match os.environ.get("HYBRID_OPS", ""):
        case "":
            if device.type == "cuda" and _is_installed("triton") and _is_recent(device):
                return "triton"
            return "cpu" if on_cpu and cpu.is_available() else "torch"
        case "torch":
            return "torch"
        case "triton" | "packages" as name:
            if not _is_installed("triton"):
                raise ValueError(f"HYBRID_OPS={name!r}: triton is not installed")
            from .triton.device import check

            if name == "packages":
                if device.type != "cuda":
                    raise ValueError(f"HYBRID_OPS='packages' needs a CUDA device; the device is {device.type!r}")
                if not (_is_installed("mamba_ssm") or _is_installed("causal_conv1d")):
                    raise ValueError("HYBRID_OPS='packages': neither mamba_ssm nor causal_conv1d is installed")
            check(device)
            return "triton"
        case "cpu":
            if not (on_cpu and cpu.is_available()):
                raise ValueError(f"HYBRID_OPS='cpu' needs a CPU and numba; the device is {device.type!r}")
            return "cpu"
        case other:
            raise ValueError(f"HYBRID_OPS={other!r}: expected torch, triton, cpu or packages")


def packages_take_part(device: torch.device) -> When:
    """When functions of `mamba_ssm` and `causal_conv1d` that are installed and right are used beside Triton's kernels,
    see `packages`: "always" with HYBRID_OPS=packages, "never" with any other."""
    named = os.environ.get("HYBRID_OPS", "")
    if named == "packages":
        return "always"
    return "faster" if named == "" and device.type == "cuda" else "never"


@cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


@cache
def _is_recent(device: torch.device) -> bool:
    """A device that is not there is taken for one that is."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= OLDEST
