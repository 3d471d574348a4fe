"""One server per test module, and the official client of it."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.server.serving import Running, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
