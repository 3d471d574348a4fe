"""WindowPool: blocks of the sliding-window layers, with a promise of `quota` blocks to every admitted request.

A window is bounded, so a request is charged once, for its life: `max(quota, blocks it uses now)`. The sum of charges
stays below the capacity, and as distinct blocks in use never exceed the sum of charges, a running request always finds
the blocks of its quota. What a prefill chunk uses beyond the quota is charged while the step lasts.
"""

from .ledger import Ints, UnitPool


def window_quota(sliding_window: int, block_size: int, lookahead: int, max_tokens: int) -> int:
    """Blocks one request can ever use outside a prefill chunk. Pure; the planner reads it too.

    lookahead: tokens beyond the next one that may be in flight before blocks behind the window are given back
    (plans in flight - 1, or draft tokens). max_tokens: the request's length limit.
    """
    span = min(sliding_window + lookahead, max_tokens)
    worst_alignment = (span + block_size - 2) // block_size + 1
    return min(worst_alignment, -(-max_tokens // block_size))


def unsplit_window(sliding_window: int, block_size: int, image_tokens: int, max_tokens: int) -> int:
    """Blocks in use while an image is computed as one chunk: its own tokens and those its first token sees. Pure."""
    span = min(sliding_window - 1 + image_tokens, max_tokens)
    return min((span + block_size - 2) // block_size + 1, -(-max_tokens // block_size))


class WindowPool(UnitPool):
    """UnitPool plus `charged`, the blocks promised to running requests (in use or not)."""

    def __init__(self, name: str, unit: str, capacity: int) -> None:
        super().__init__(name, unit, capacity)
        self.charged = 0
        self._charge_reserved = 0

    def available(self) -> int:
        busy_cached = self._cached - self.evictable()
        return self.capacity - self._num_pending - busy_cached - self.charged - self._charge_reserved

    def claim(self, charge: int, take: int) -> None:
        super().claim(charge, take)
        self._charge_reserved += charge

    def unclaim(self, charge: int, take: int) -> None:
        super().unclaim(charge, take)
        self._charge_reserved -= charge

    def settle_claim(self, charge: int, take: int) -> Ints:
        self.charged += charge
        return super().settle_claim(charge, take)

    def uncharge(self, blocks: int) -> None:
        """Mutates: running requests give back `blocks` of their promises."""
        self.charged -= blocks
        assert self.charged >= 0, f"{self.name}: {self.charged} blocks charged"
