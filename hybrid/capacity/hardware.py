"""Hardware: memory, bandwidth and dense FLOP rates of accelerators as their makers state them.

Knows no model. Names are what `hybrid plan --gpu` takes. Rates "with sparsity" of a datasheet are halved here. A rate
that no source confirmed is absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hybrid.memory_size import default_cpu_memory

GIB = 2**30
CPU = "cpu"
_WEB = "https://www.nvidia.com/en-us/data-center"


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device.

    memory_bytes: nominal, GB of the datasheet read as GiB; a driver reports a few percent less. bandwidth: bytes per
    second; None where nobody said. flops: dtype -> dense operations per second, of the matrix units with float32
    accumulation; float32 is without TF32. source: the maker's document.
    """

    name: str
    memory_bytes: int
    bandwidth: float | None
    flops: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


def _rates(bfloat16: float, float8: float | None = None, float32: float | None = None) -> dict[str, float]:
    """In 1e12 per second; float16 is as fast as bfloat16 on all of these."""
    known = {"bfloat16": bfloat16, "float16": bfloat16, "float8_e4m3fn": float8, "float32": float32}
    return {dtype: rate * 1e12 for dtype, rate in known.items() if rate is not None}


HARDWARE = {
    hardware.name: hardware
    for hardware in (
        Hardware("a100-40", 40 * GIB, 1.555e12, _rates(312, None, 19.5), f"{_WEB}/a100/ and datasheet 1758950, 40GB"),
        Hardware("a100-80", 80 * GIB, 2.039e12, _rates(312, None, 19.5), f"{_WEB}/a100/, 80GB SXM"),
        Hardware("h100", 80 * GIB, 3.35e12, _rates(989.4, 1978.9, 66.9), f"{_WEB}/h100/, SXM"),
        Hardware("h200", 141 * GIB, 4.8e12, _rates(989.4, 1978.9, 66.9), f"{_WEB}/h200/, SXM"),
        Hardware(
            "b200", 180 * GIB, 8e12, _rates(2250, 4500),
            "https://resources.nvidia.com/en-us-blackwell-architecture, HGX B200 at 1000 W, per GPU",
        ),
        Hardware("l4", 24 * GIB, 300e9, _rates(121, 242, 30.3), f"{_WEB}/l4/"),
        Hardware("l40s", 48 * GIB, 864e9, _rates(362.05, 733, 91.6), f"{_WEB}/l40s/"),
        Hardware(
            "a10", 24 * GIB, 600e9, _rates(125, None, 31.2),
            "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf",
        ),
        Hardware(
            "rtx4090", 24 * GIB, 1.008e12, _rates(165.2, 330.3, 82.6),
            "NVIDIA Ada GPU Architecture whitepaper v2.1, GeForce RTX 4090",
        ),
        Hardware(
            "rtx5090", 32 * GIB, 1.792e12, _rates(209.5, 419),
            "NVIDIA RTX Blackwell GPU Architecture whitepaper, GeForce RTX 5090",
        ),
        Hardware(
            "mi300x", 192 * GIB, 5.3e12, _rates(1307.4, 2614.9, 163.4),
            "AMD Instinct MI300X data sheet",
        ),
    )
}  # fmt: skip


def find_hardware(
    name: str, *, memory_bytes: int | None = None, bandwidth: float | None = None, flops: float | None = None
) -> Hardware:
    """A device of the table, or "cpu": this machine, whose rates nobody states. Raises ValueError for another name.

    memory_bytes, bandwidth, flops: replace the table's; flops for every dtype.
    """
    key = name.lower()
    if key == CPU:
        found = Hardware(CPU, default_cpu_memory(), None, source="this machine: what the engine gives its pools")
    elif key in HARDWARE:
        found = HARDWARE[key]
    else:
        raise ValueError(f"gpu {name!r} is not one of {', '.join((*HARDWARE, CPU))}")
    for what, value in (("memory", memory_bytes), ("bandwidth", bandwidth), ("flops", flops)):
        if value is not None and not 1 <= value < float("inf"):  # less of anything makes steps that never end
            raise ValueError(f"{what} must be a positive number of at least 1, got {value}")
    if memory_bytes is not None:
        found = replace(found, memory_bytes=memory_bytes)
    if bandwidth is not None:
        found = replace(found, bandwidth=bandwidth)
    if flops is not None:
        found = replace(found, flops=dict.fromkeys(("bfloat16", "float16", "float8_e4m3fn", "float32"), flops))
    return found
