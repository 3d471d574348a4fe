"""Memory sizes as people write them, and how much memory the pools get when nobody says.

Knows numbers and the operating system; a device is asked by `engine_setup`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

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
    """Bytes of main memory that this process may use: the machine's, or what its control groups allow; where the system
    does not say, as many as the pools get by default take a fraction of."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        there = int(DEFAULT_CPU_BYTES / CPU_FRACTION)
    return min((there, *cgroup_limits()))


def cgroup_limits(root: Path = Path("/")) -> Iterator[int]:
    """Bytes that the control groups of this process, versions 1 and 2, and those around them allow. A container may
    see its own group as the root while the process is listed under the path that it has outside.

    Source: the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            try:
                limit = (mount / folder / file).read_text().strip()
            except OSError:  # not here, or without a limit: the root of version 2 has no such file
                continue
            if limit.isdecimal():  # otherwise "max"
                yield int(limit)


def default_cpu_memory() -> int:
    """Bytes for the pools on a CPU. They are only touched as they are used."""
    return min(DEFAULT_CPU_BYTES, int(machine_memory() * CPU_FRACTION))
