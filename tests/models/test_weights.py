"""Weights are brought to the model's dtype, or refused where it cannot hold them."""

import pytest
import torch

from hybrid.models.weights import Weights

CPU = torch.device("cpu")


def test_a_multiplier_is_applied_in_float32() -> None:
    weights = Weights({"w": torch.tensor([257.0, -1.0])}, torch.bfloat16, CPU)
    assert weights("w", 0.5).tolist() == [128.0, -0.5]  # 257 itself is no bfloat16


@pytest.mark.parametrize(("value", "dtype"), [(1e10, torch.float32), (1e5, torch.float16)])
def test_a_product_that_overflows_is_refused(value: float, dtype: torch.dtype) -> None:
    weights = Weights({"w": torch.tensor([2.0, value])}, dtype, CPU)
    with pytest.raises(ValueError, match=r"tensor w .* too large for float"):
        weights("w", 1e30 if dtype is torch.float32 else 1.5)
