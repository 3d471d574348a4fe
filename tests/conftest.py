"""Settings of all tests: in CI hypothesis looks at the same examples every time, elsewhere at new ones; one process of
several runs whole files, or whole cases of the model families."""

import os

import pytest
from hypothesis import HealthCheck, settings

SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("local", deadline=None, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `--dist loadgroup`: tests that share their fixtures belong to one process."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        case = callspec.params.get("oracle", "") if callspec is not None else ""
        item.add_marker(pytest.mark.xdist_group(f"{item.path}: {case}"))
