"""Where the kernels run: on a GPU where there is one, else in Triton's interpreter (see tests/conftest.py), with the
sanitizer over every launch."""

from collections.abc import Iterator

import pytest
import torch

from hybrid.models.ops.triton.device import interpreted

from .sanitized import sanitized


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def sanitize() -> Iterator[None]:
    if not interpreted():
        yield
        return
    with sanitized() as sanitizer:
        yield
    assert not sanitizer.faults
