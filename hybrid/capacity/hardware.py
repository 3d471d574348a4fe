"""Hardware: memory, bandwidth and dense bf16 rates of accelerators as their makers' datasheets state them.

Knows no model. Names are what `hybrid plan --gpu` takes.
"""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. memory_bytes: nominal, GB of the datasheet read as GiB; what the driver keeps is not subtracted.
    bandwidth: bytes per second. flops: bf16 without sparsity, per second. source: the datasheet's title."""

    memory_bytes: int
    bandwidth: float
    flops: float
    source: str


HARDWARE = {
    "a100-40": Hardware(40 * GIB, 1.555e12, 312e12, "NVIDIA A100 Tensor Core GPU datasheet, 40GB PCIe"),
    "a100-80": Hardware(80 * GIB, 2.039e12, 312e12, "NVIDIA A100 Tensor Core GPU datasheet, 80GB SXM"),
    "h100": Hardware(80 * GIB, 3.35e12, 989e12, "NVIDIA H100 Tensor Core GPU datasheet, SXM"),
    "h200": Hardware(141 * GIB, 4.8e12, 989e12, "NVIDIA H200 Tensor Core GPU datasheet, SXM"),
    "b200": Hardware(180 * GIB, 8e12, 2250e12, "NVIDIA DGX B200 datasheet, per GPU"),
    "l4": Hardware(24 * GIB, 300e9, 121e12, "NVIDIA L4 Tensor Core GPU datasheet"),
    "l40s": Hardware(48 * GIB, 864e9, 362e12, "NVIDIA L40S datasheet"),
    "a10": Hardware(24 * GIB, 600e9, 125e12, "NVIDIA A10 Tensor Core GPU datasheet"),
    "rtx4090": Hardware(
        24 * GIB, 1.008e12, 165.2e12, "NVIDIA Ada GPU architecture whitepaper, table of GeForce RTX 4090"
    ),
    "rtx5090": Hardware(
        32 * GIB, 1.792e12, 209.5e12, "NVIDIA RTX Blackwell GPU architecture whitepaper, GeForce RTX 5090"
    ),
    "mi300x": Hardware(192 * GIB, 5.3e12, 1307.4e12, "AMD Instinct MI300X accelerator datasheet"),
}


def find_hardware(name: str) -> Hardware:
    """Raises ValueError for a name that is not in the table."""
    try:
        return HARDWARE[name.lower()]
    except KeyError:
        raise ValueError(f"gpu {name!r} is not one of {', '.join(HARDWARE)}") from None
