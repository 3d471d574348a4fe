"""The sanitizer over the launches of kernels, as in tests/models/triton."""

from tests.models.triton.conftest import sanitize

__all__ = ["sanitize"]
