"""Residual: the stream that branches read through a norm and add to.

What was added last waits for the next norm, as a kernel does the sum and the norm in one pass.
"""

import torch

from .norm import Norm


class Residual:
    """[num_tokens, hidden_size]. `x` itself is never written."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x = x
        self._added: tuple[torch.Tensor, float] | None = None

    def value(self) -> torch.Tensor:
        """The stream with all that was added to it."""
        if self._added is not None:
            added, multiplier = self._added
            self._x, self._added = torch.add(self._x, added, alpha=multiplier), None
        return self._x

    def normed(self, norm: Norm | None) -> torch.Tensor:
        """The norm of `value`; None: the value as it is."""
        if norm is None or self._added is None:
            return self.value() if norm is None else norm(self._x)
        self._x, normed = norm.of_sum(self._x, *self._added)
        self._added = None
        return normed

    def add(self, added: torch.Tensor, multiplier: float) -> None:
        """Mutates: value + multiplier * added."""
        self._x = self.value()
        self._added = (added, multiplier)

    def add_rows(self, indices: torch.Tensor, added: torch.Tensor) -> None:
        """Mutates: value, with `added` [n, hidden_size] added at n rows."""
        x = self.value()
        self._x = x.index_add(0, indices, added.to(x.dtype))

    def scale(self, factor: torch.Tensor) -> None:
        """Mutates: value * factor."""
        self._x = self.value() * factor
