"""Draws: uniform numbers that depend on (seed, position) only, so a token depends on nothing else but its logits.

Counter-based, after splitmix64 (Steele, Lea and Flood 2014): no generator state, hence the same draw whatever the
batch, the chunking or a retraction. Host integers, so the same on every device.
"""

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.plan import Ints

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_BITS = 40  # enough for any vocabulary, and far from rounding to 1


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64; arithmetic modulo 2 ** 64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(seeds: NDArray[np.uint64], positions: Ints) -> NDArray[np.float64]:
    """One number strictly between 0 and 1 per (seed, position), [n]."""
    streams = _mix(seeds + _GAMMA)
    bits = _mix(streams + (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA) >> np.uint64(64 - _BITS)
    return (bits.astype(np.float64) + 0.5) * 2.0**-_BITS
