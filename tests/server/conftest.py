"""One server per test module."""

from collections.abc import Iterator

import pytest

from tests.server.serving import Running, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running
