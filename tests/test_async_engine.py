"""AsyncEngine over engines without a model: errors, aborts, and an end that everybody hears of."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from hybrid.async_engine import AsyncEngine, EngineDeadError, RequestStream, Submission
from hybrid.engine import Engine
from hybrid.frontend.processor import Processor
from hybrid.grammar.backend import Masks
from hybrid.runner.launched import RunnerOutput
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.outcome import FinishedRequest
from hybrid.scheduler.plan import StepPlan
from tests.scripted import ScriptedRunner, prompt, scripted_engine

PATIENCE = 60.0


class HeldRunner(ScriptedRunner):
    """Executes nothing before `go` is set."""

    def __init__(self, scripts: Mapping[str, Sequence[int]]) -> None:
        super().__init__(scripts)
        self.go = threading.Event()

    def launch(self, plan: StepPlan, grammar: Masks | None = None) -> Callable[[], RunnerOutput]:
        assert self.go.wait(PATIENCE)
        return super().launch(plan, grammar)


def run(engine: Engine, work: Callable[[AsyncEngine], Coroutine[Any, Any, None]]) -> None:
    """`work` with the engine started, which is stopped afterwards."""

    async def body() -> None:
        running = AsyncEngine(engine, Processor(None, vocab_size=300, max_model_len=64))
        running.start()
        try:
            await asyncio.wait_for(work(running), PATIENCE)
        finally:
            await running.stop()
        assert running.error is not None
        with pytest.raises(EngineDeadError):
            await submit(running, "late")

    asyncio.run(body())


async def submit(engine: AsyncEngine, *names: str, text: str = "ab", **params: Any) -> RequestStream:
    return await engine.submit(
        [
            Submission(request_id=name, prompt=prompt(text), params=SamplingParams(max_tokens=8, **params))
            for name in names
        ]
    )


def test_updates_and_outputs() -> None:
    async def work(engine: AsyncEngine) -> None:
        streams = [await submit(engine, "a"), await submit(engine, "b", "c", n=2)]
        texts = [update.text async for news in streams[0].updates() for update in news]
        assert "".join(texts) == "hey"
        outputs = await streams[1].outputs()
        assert [[one.text for one in output.outputs] for output in outputs] == [["x", ""], ["", ""]]
        assert streams[1].sequences == {"b-0": 0, "b-1": 1, "c-0": 2, "c-1": 3}

    run(scripted_engine(ScriptedRunner({"a": b"hey", "b-0": b"x"})), work)


def test_a_refused_request_leaves_nothing_and_others_go_on() -> None:
    async def work(engine: AsyncEngine) -> None:
        stream = await submit(engine, "a")
        with pytest.raises(ValueError, match="prompt 1: request 'b' exists already"):
            await submit(engine, "b", "b")
        with pytest.raises(ValueError, match="max_model_len"):
            await submit(engine, "c", text="x" * 64)
        [output] = await stream.outputs()
        assert output.outputs[0].text == "hey!"
        assert await engine.inspect(lambda inner: inner.has_unfinished) is False

    run(scripted_engine(ScriptedRunner({"a": b"hey!"})), work)


def test_an_abort_ends_its_request_only() -> None:
    runner = HeldRunner({"one": b"abcdef", "two": b"abcdef", "three": b"ok"})

    async def work(engine: AsyncEngine) -> None:
        one = await submit(engine, "one", "two")
        third = asyncio.create_task(submit(engine, "three"))  # answered after the step that waits
        engine.abort(one)
        runner.go.set()
        two = await third
        assert [output.outputs[0].finish_reason for output in await one.outputs()] == ["abort", "abort"]
        assert (await two.outputs())[0].outputs[0].text == "ok"
        engine.abort(one)  # finished: nothing happens
        again = await submit(engine, "one")  # the name is free again
        assert (await again.outputs())[0].outputs[0].text == "abcdef"

    run(scripted_engine(runner), work)


def test_a_caller_that_is_cancelled_leaves_no_request() -> None:
    async def work(engine: AsyncEngine) -> None:
        task = asyncio.create_task(submit(engine, "a", ignore_eos=True))
        await asyncio.sleep(0)  # it has posted its command
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while await engine.inspect(lambda inner: inner.has_unfinished):
            pass

    run(scripted_engine(ScriptedRunner()), work)


def test_a_step_that_fails_ends_its_requests() -> None:
    async def work(engine: AsyncEngine) -> None:
        [output] = await (await submit(engine, "a")).outputs()
        assert output.error is not None and "the device is on fire" in output.error
        assert engine.error is None

    run(scripted_engine(ScriptedRunner(always_broken=True)), work)


def test_a_defect_of_the_engine_is_heard_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_engine(ScriptedRunner())

    def broken() -> list[FinishedRequest]:
        raise AssertionError("ledgers do not add up")

    async def work(running: AsyncEngine) -> None:
        monkeypatch.setattr(engine.scheduler, "pop_finished", broken)
        with pytest.raises(EngineDeadError, match="ledgers do not add up"):
            await (await submit(running, "a")).outputs()
        with pytest.raises(EngineDeadError):
            await running.inspect(lambda inner: inner.has_unfinished)
        assert running.error is not None

    run(engine, work)


def test_stopping_ends_what_runs() -> None:
    runner = HeldRunner({"a": b"abcdef"})

    async def body() -> None:
        running = AsyncEngine(scripted_engine(runner), Processor(None, vocab_size=300, max_model_len=64))
        running.start()
        stream = await submit(running, "a")
        stopping = asyncio.create_task(running.stop())
        await asyncio.sleep(0)  # it has told the thread
        runner.go.set()
        await stopping
        with pytest.raises(EngineDeadError, match="stopped"):
            await asyncio.wait_for(stream.outputs(), PATIENCE)

    asyncio.run(body())


def test_the_collector_passes_over_the_engine_while_it_runs() -> None:
    before = gc.get_freeze_count()

    async def work(engine: AsyncEngine) -> None:
        assert gc.get_freeze_count() > before + 1000

    run(scripted_engine(ScriptedRunner({})), work)
    assert gc.get_freeze_count() == 0
