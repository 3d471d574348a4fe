"""A grammar backend whose compilations wait, fail and go wrong when a test says so."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from hybrid.grammar.backend import Bitmask, Grammar, GrammarBackend, GrammarError, Matcher
from hybrid.structured_outputs import StructuredOutputsParams


@dataclass
class HeldBackend:
    """`inner`, but a regular expression in `held` compiles once it is released, one in `errors` fails with the error,
    and the matchers of one in `breaks_at` fail at that token."""

    inner: GrammarBackend
    errors: dict[str, Exception] = field(default_factory=dict)
    breaks_at: dict[str, int] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)
    held: dict[str, threading.Event] = field(default_factory=dict)
    started: dict[str, threading.Event] = field(default_factory=dict)

    def check(self, params: StructuredOutputsParams) -> None:
        self.checked.append(str(params.regex))
        self.inner.check(params)

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        text = str(params.regex)
        if text in self.held:
            self.started[text].set()
            assert self.held[text].wait(60)
        self.compiled.append(text)
        if text in self.errors:
            raise self.errors[text]
        grammar = self.inner.compile(params)
        return _Breaking(grammar, self.breaks_at[text]) if text in self.breaks_at else grammar

    def hold(self, *texts: str) -> None:
        self.held |= {text: threading.Event() for text in texts}
        self.started |= {text: threading.Event() for text in texts}

    def release(self, *texts: str) -> None:
        for text in texts or self.held:
            self.held[text].set()


@dataclass
class _Breaking:
    grammar: Grammar
    breaks_at: int

    def matcher(self) -> Matcher:
        return _BreakingMatcher(self.grammar.matcher(), self.breaks_at)


@dataclass
class _BreakingMatcher:
    inner: Matcher
    breaks_at: int
    num_tokens: int = 0

    @property
    def is_accepting(self) -> bool:
        return self.inner.is_accepting

    @property
    def is_stopped(self) -> bool:
        return self.inner.is_stopped

    def fill_bitmask(self, bitmask: Bitmask) -> None:
        if self.num_tokens == self.breaks_at:
            raise GrammarError("the lexer has too many states")
        self.inner.fill_bitmask(bitmask)

    def consume(self, token_ids: Sequence[int]) -> None:
        self.num_tokens += len(token_ids)
        if self.num_tokens == -self.breaks_at:
            raise GrammarError("that was too much")
        self.inner.consume(token_ids)
