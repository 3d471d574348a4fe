"""Memory sizes as people write them, and how much memory the pools get when nobody says.

Knows numbers and the operating system; a device is asked by `engine_setup`.
"""

import os
import re

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}

DEFAULT_CPU_BYTES = 2 * 1024**3
CPU_FRACTION = 0.25  # of the machine's memory, where that is less than the default


def parse_memory(value: int | str) -> int:
    """Bytes: a number, or a string such as "512MiB", "2 GB", "1.5g". Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"memory must be a number of bytes or a string such as '512MiB', got {value!r}")
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"memory must be a number of bytes or a string such as '512MiB', got {value!r}")
        size = float(match[1]) * _UNITS[match[2]]
        if size == float("inf"):
            raise ValueError(f"memory must be less than that, got {value[:40]!r}...")
        value = int(size)
    if value < 1:
        raise ValueError(f"memory must be positive, got {value!r}")
    return value


def machine_memory() -> int:
    """Bytes of main memory; where the system does not say, as many as the pools get by default take a fraction of."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return int(DEFAULT_CPU_BYTES / CPU_FRACTION)


def default_cpu_memory() -> int:
    """Bytes for the pools on a CPU. They are only touched as they are used."""
    return min(DEFAULT_CPU_BYTES, int(machine_memory() * CPU_FRACTION))
