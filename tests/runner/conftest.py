"""The sanitizer over launches of kernels, as in tests/models/triton."""

from importlib.util import find_spec

if find_spec("triton") is not None:  # it is not installed everywhere
    from tests.models.triton.conftest import sanitize as sanitize
