"""GrammarBackend: what a grammar engine must do for us. Knows neither requests nor any engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybrid.structured_outputs import StructuredOutputsParams

Bitmask = NDArray[np.int32]  # [ceil(vocab_size / 32)]: token t is bit t % 32 of word t // 32
Masks = Callable[[], Mapping[int, Bitmask]]  # by row id; called once they are needed


class GrammarError(ValueError):
    """A matcher cannot go on: a limit was reached, or a token came that the grammar does not allow."""


class Matcher(Protocol):
    """One sequence's place in its grammar. Used by one thread at a time."""

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""

    @property
    def is_stopped(self) -> bool:
        """Whether the output must end here: it is complete and nothing may follow."""

    def fill_bitmask(self, bitmask: Bitmask) -> None:
        """Mutates `bitmask`: the tokens that may come next, those that end a text among them where it may end.

        Raises GrammarError.
        """

    def consume(self, token_ids: Sequence[int]) -> None:
        """Mutates: these tokens follow. Raises GrammarError."""


class Grammar(Protocol):
    """A compiled grammar. Never changes; any thread may ask it for matchers."""

    def matcher(self) -> Matcher: ...


class GrammarBackend(Protocol):
    """Compiles for one tokenizer. Thread-safe."""

    def check(self, params: StructuredOutputsParams) -> None:
        """Raises ValueError for what will surely not compile, where that is found quickly."""

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """May take long. Raises ValueError, one sentence that says what is wrong."""
