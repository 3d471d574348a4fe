"""Compilation in the background: shared, kept, given up on; failures are not remembered."""

from collections.abc import Iterator

import pytest

from hybrid.checkpoints import find_checkpoint
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.grammar.compiler import Compilation, GrammarCompiler
from hybrid.grammar.llguidance_backend import LLGuidanceBackend
from hybrid.scheduler.request import GateStatus
from hybrid.structured_outputs import StructuredOutputsParams

from .held import HeldBackend


def regex(text: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=text)


def wait_for(compilation: Compilation) -> GateStatus:
    """Once its worker is done."""
    compilation._future.exception(timeout=60)
    return compilation.status()


@pytest.fixture
def backend() -> Iterator[HeldBackend]:
    backend = HeldBackend(LLGuidanceBackend(Tokenizer(find_checkpoint("tiny")).to_json, 820, (2,)))
    yield backend
    backend.release()


def test_a_grammar_compiles_in_the_background(backend: HeldBackend) -> None:
    backend.hold("a")
    compilation = GrammarCompiler(backend).submit(regex("a"))
    assert compilation.status() is GateStatus.PENDING
    backend.release("a")
    assert wait_for(compilation) is GateStatus.READY
    assert not compilation.grammar().matcher().is_accepting


def test_equal_texts_compile_once(backend: HeldBackend) -> None:
    compiler = GrammarCompiler(backend)
    backend.hold("a")
    both = [compiler.submit(regex("a")), compiler.submit(regex("a"))]
    backend.release("a")
    assert [wait_for(compilation) for compilation in both] == [GateStatus.READY] * 2
    assert compiler.submit(regex("a")).status() is GateStatus.READY
    assert backend.compiled == ["a"]
    assert wait_for(compiler.submit(StructuredOutputsParams(choice=["a"]))) is GateStatus.READY  # another kind of text
    assert len(backend.compiled) == 2


def test_the_latest_used_are_kept(backend: HeldBackend) -> None:
    compiler = GrammarCompiler(backend, max_kept=2)
    for text in ("a", "b", "a", "c"):
        wait_for(compiler.submit(regex(text)))
    assert compiler.submit(regex("a")).status() is GateStatus.READY
    wait_for(compiler.submit(regex("b")))
    assert backend.compiled == ["a", "b", "c", "b"]


def test_an_error_is_not_remembered(backend: HeldBackend) -> None:
    backend.errors["a"] = ValueError("no such thing")
    compiler = GrammarCompiler(backend)
    first = compiler.submit(regex("a"))
    assert wait_for(first) is GateStatus.FAILED
    assert first.error() == "no such thing"
    del backend.errors["a"]
    assert wait_for(compiler.submit(regex("a"))) is GateStatus.READY
    assert first.status() is GateStatus.FAILED


def test_what_is_wrong_at_once_is_said_at_once(backend: HeldBackend) -> None:
    with pytest.raises(ValueError, match="uniqueItems"):
        GrammarCompiler(backend).submit(StructuredOutputsParams(json={"uniqueItems": True}))
    assert backend.compiled == []


def test_a_time_out_is_not_remembered_and_blocks_nobody(backend: HeldBackend) -> None:
    now = 0.0
    compiler = GrammarCompiler(backend, num_workers=1, timeout=5.0, clock=lambda: now)
    backend.hold("a")
    slow = compiler.submit(regex("a"))
    now = 5.0
    assert slow.status() is GateStatus.PENDING
    assert backend.started["a"].wait(60)
    now = 5.5
    assert slow.status() is GateStatus.FAILED
    assert slow.error() == "not compiled within 5 seconds"
    assert wait_for(compiler.submit(regex("b"))) is GateStatus.READY  # although the only worker is still busy
    again = compiler.submit(regex("a"))
    assert again.status() is GateStatus.PENDING  # with all its time before it
    backend.release("a")
    assert wait_for(again) is GateStatus.READY


def test_who_is_queued_behind_one_without_end_is_served(backend: HeldBackend) -> None:
    now = 0.0
    compiler = GrammarCompiler(backend, num_workers=1, timeout=5.0, clock=lambda: now)
    backend.hold("a")
    endless = compiler.submit(regex("a"))
    assert backend.started["a"].wait(60)
    now = 4.0
    queued = [compiler.submit(regex(text)) for text in "bcd"]
    now = 5.5
    assert endless.status() is GateStatus.FAILED
    assert [wait_for(compilation) for compilation in queued] == [GateStatus.READY] * 3
    backend.release("a")
    assert backend.compiled[:3] == ["b", "c", "d"]


def test_equal_texts_are_checked_once(backend: HeldBackend) -> None:
    """The n sequences of a request bring one text, which may be long."""
    compiler = GrammarCompiler(backend)
    backend.hold("a")
    for _ in range(3):
        compiler.submit(regex("a"))
    backend.release("a")
    wait_for(compiler.submit(regex("a")))
    assert compiler.submit(regex("a")).status() is GateStatus.READY
    assert backend.checked == ["a"]
