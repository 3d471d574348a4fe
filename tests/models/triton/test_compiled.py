"""Every kernel compiles for a GPU, on a machine that has none."""

import os
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import hybrid.models.ops.triton as folder


def kernels() -> set[str]:
    """The names of all kernels; their docstrings begin with their grids, those of functions that they call do not."""
    modules = [import_module(f"{folder.__name__}.{module.name}") for module in iter_modules(folder.__path__)]
    decorated = (value for module in modules for value in vars(module).values() if hasattr(value, "fn"))
    return {value.fn.__name__ for value in decorated if (value.fn.__doc__ or "").startswith("Grid (")}


def test_every_kernel_compiles() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    program = [sys.executable, "-m", "tests.models.triton.compile_only"]
    output = subprocess.run(program, check=True, capture_output=True, text=True, env=environment).stdout
    assert len(kernels()) >= 6
    assert set(output.split()) == kernels()
