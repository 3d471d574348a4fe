"""oneDNN's caches of compiled kernels are bounded by default, also where torch was imported before us."""

import os
import subprocess
import sys

import pytest

VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")

# Matrices of four shapes meet 256 numbers of rows each.
PROGRAM = """
import torch
import hybrid
import psutil
from hybrid.models.layers.linear import Linear

torch.set_num_threads(1)
layers = [(Linear([torch.ones(outs, ins)]), ins) for outs, ins in ((96, 64), (64, 64), (128, 64), (64, 128))]
before = 0
for rows in range(1, 257):
    for layer, ins in layers:
        layer(torch.ones(rows, ins))
    before = before or psutil.Process().memory_info().rss
print(psutil.Process().memory_info().rss - before)
"""


def run(program: str, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment = {**kept, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_memory_does_not_grow_with_every_number_of_rows() -> None:
    assert int(run(PROGRAM)) < 200 * 2**20  # 560 MiB where nothing bounds them


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_has_set_stays(name: str) -> None:
    shown = f"import os, hybrid; print(os.environ[{name!r}])"
    assert run(shown, **{name: "7"}) == "7"
    assert run(shown).isdecimal()
