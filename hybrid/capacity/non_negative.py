"""Non-negative least squares, by the active-set method of Lawson and Hanson (1974)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def non_negative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """x >= 0 that minimises |matrix x - target|. matrix [m, n], target [m] -> [n].

    Columns may depend on one another; then one of several minima is returned.
    """
    scale = np.sqrt((matrix**2).sum(axis=0))
    used = scale > 0
    scaled = matrix / np.where(used, scale, 1)
    x = np.zeros(matrix.shape[1])
    active = np.zeros(len(x), dtype=np.bool_)  # those that may differ from 0
    tolerance = 1e-10 * float(np.abs(scaled.T @ target).max(initial=0))
    for _ in range(3 * len(x)):
        gradient = scaled.T @ (target - scaled @ x)
        gradient[active | ~used] = -np.inf
        if gradient.max(initial=-np.inf) <= tolerance:
            break
        active[gradient.argmax()] = True
        while True:
            solved = np.zeros(len(x))
            solved[active] = np.linalg.lstsq(scaled[:, active], target, rcond=None)[0]
            below = active & (solved <= 0)
            if not below.any():
                break
            step = (x[below] / (x[below] - solved[below])).min()  # as far as all stay at 0 or above
            x += step * (solved - x)
            active &= x > 1e-14 * max(1.0, float(x.max(initial=0)))
            x[~active] = 0
        x = solved
    return x / np.where(used, scale, 1)
