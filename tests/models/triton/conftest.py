"""Where the kernels run: on a GPU where there is one, else in Triton's interpreter (see tests/conftest.py)."""

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
