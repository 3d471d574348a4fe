"""How much memory there is: what control groups allow, as the kernel's files say it."""

from pathlib import Path

import pytest

from hybrid import memory_size
from hybrid.memory_size import cgroup_limits, default_cpu_memory, machine_memory

V2_GROUP = "sys/fs/cgroup"
V1_GROUP = "sys/fs/cgroup/memory"


def write(root: Path, groups: str, files: dict[str, str]) -> None:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text and f"{text}\n")


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/", {f"{V2_GROUP}/memory.max": "1000"}, [1000]),
        ("0::/", {f"{V2_GROUP}/memory.max": "max"}, []),
        (
            "0::/slice/unit",
            {f"{V2_GROUP}/slice/unit/memory.max": "max", f"{V2_GROUP}/slice/memory.max": "700"},
            [700],
        ),
        ("0::/outside/name", {f"{V2_GROUP}/memory.max": "600"}, [600]),  # a container
        (
            "3:cpu:/a\n2:memory,hugetlb:/a/b\n0::/",
            {
                f"{V1_GROUP}/a/b/memory.limit_in_bytes": "500",
                f"{V1_GROUP}/memory.limit_in_bytes": "9223372036854771712",
                f"{V1_GROUP.replace('memory', 'cpu')}/a/memory.limit_in_bytes": "1",
            },
            [500, 9223372036854771712],
        ),
        ("1:name=systemd:/a:b\n0::/a:b", {f"{V2_GROUP}/a:b/memory.max": "9"}, [9]),
        ("", {}, []),
    ],
)
def test_what_control_groups_allow(tmp_path: Path, groups: str, files: dict[str, str], limits: list[int]) -> None:
    write(tmp_path, groups, files)
    assert list(cgroup_limits(tmp_path)) == limits


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert list(cgroup_limits(tmp_path)) == []


def test_the_least_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    there = machine_memory()
    monkeypatch.setattr(memory_size, "cgroup_limits", lambda: iter((2**62, 2**20)))
    assert machine_memory() == 2**20 and default_cpu_memory() == 2**18
    monkeypatch.setattr(memory_size, "cgroup_limits", lambda: iter((2**62,)))
    assert machine_memory() >= there
