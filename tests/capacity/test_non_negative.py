"""Non-negative least squares."""

import numpy as np
import pytest

from hybrid.capacity.non_negative import non_negative_least_squares


@pytest.mark.parametrize("seed", range(20))
def test_no_other_point_is_nearer(seed: int) -> None:
    """The conditions of Karush, Kuhn and Tucker: they hold at the minimum and nowhere else."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(30, 8)) * 10.0 ** rng.integers(-6, 7, 8)
    target = rng.normal(size=30)
    x = non_negative_least_squares(matrix, target)
    gradient = (matrix / np.linalg.norm(matrix, axis=0)).T @ (matrix @ x - target)
    assert (x >= 0).all()
    assert (gradient > -1e-8).all()
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-8


def test_what_was_planted_is_found() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((40, 6))
    planted = np.array([3.0, 0.0, 1e-3, 0.0, 7.0, 0.5])
    assert non_negative_least_squares(matrix, matrix @ planted) == pytest.approx(planted, abs=1e-9)


def test_columns_that_say_the_same_or_nothing() -> None:
    column = np.arange(1.0, 6.0)
    matrix = np.stack([column, column, np.zeros(5)], axis=1)
    x = non_negative_least_squares(matrix, 2 * column)
    assert x[0] + x[1] == pytest.approx(2)
    assert x[2] == 0
    assert non_negative_least_squares(matrix, -column).tolist() == [0, 0, 0]
