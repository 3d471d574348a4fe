"""Settings of all tests: in CI hypothesis looks at the same examples every time, elsewhere at new ones; one process of
several runs whole files, or whole cases of the model families. Without a GPU, Triton's kernels are interpreted."""

import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.models.families.summary import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]  # a hook of pytest: the process that sums up loads this file only

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything, such as transformers, imports triton

SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("local", deadline=None, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `--dist loadgroup`: tests that share their fixtures belong to one process."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        params = callspec.params if callspec is not None else {}
        case = params.get("oracle") or params.get("adapted") or ""
        item.add_marker(pytest.mark.xdist_group(f"{item.path}: {case}"))


def pytest_configure() -> None:
    """Ctrl-C means Ctrl-C, also where a shell runs the tests in the background, with the signal ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
