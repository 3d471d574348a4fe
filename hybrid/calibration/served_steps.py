"""Served steps: how long they take where a server has them: in AsyncEngine's thread, with as many readers of streams in
the event loop as requests; and what the engine does beside executing them."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from time import perf_counter

import numpy as np
from tqdm import tqdm

from hybrid.async_engine import AsyncEngine, RequestStream, Submission
from hybrid.capacity.step_work import StepWork
from hybrid.engine_setup import Setup
from hybrid.frontend.generation import Update
from hybrid.frontend.prompt import Prompt
from hybrid.sampling_params import SamplingParams

from .timed_runner import Executed, TimedRunner

PROMPT_TOKENS = (4, 48)
OUTPUT_TOKENS = (4, 32)


class _Pauses:
    """Steps after which the engine had nothing to do. An EngineObserver."""

    def __init__(self, timed: TimedRunner) -> None:
        self.after: set[int] = set()
        self._timed = timed

    def arrived(self, request_id: str) -> None:
        pass

    def stepped(self, updates: Iterable[Update], idle: bool = False) -> None:
        if idle:
            self.after.add(len(self._timed.executed) - 1)


@dataclass(frozen=True, slots=True)
class ServedStep:
    """execution: of the step; beside: from its end to the begin of the next, whose planning is a part of it; `entering`
    requests enter with that one. Seconds."""

    work: StepWork
    entering: int
    execution: float
    beside: float


def serve_some(
    setup: Setup, timed: TimedRunner, params: SamplingParams, batches: Sequence[int], seconds: float
) -> list[ServedStep]:
    """Serves random requests, as many at once as `batches` say one after the other, for so many seconds in all; shows a
    progress bar."""
    pauses = _Pauses(timed)
    begin = len(timed.executed)
    asyncio.run(_serve(setup, pauses, params, batches, seconds))
    return list(_steps(timed.executed[begin:], {index - begin for index in pauses.after}))


async def _serve(setup: Setup, pauses: _Pauses, params: SamplingParams, batches: Sequence[int], seconds: float) -> None:
    engine = AsyncEngine(setup.engine, setup.processor, observer=pauses)
    random, numbers = np.random.default_rng(0), count()
    vocab_size, longest = setup.processor.vocab_size, setup.sizes.max_model_len

    async def client(until: float) -> None:
        """One request after the other, at least one."""
        while True:
            output = min(int(random.integers(*OUTPUT_TOKENS)), longest // 2)
            length = min(int(random.integers(*PROMPT_TOKENS)), longest - output)
            tokens = random.integers(0, vocab_size, length, dtype=np.int32)
            one = Submission(
                request_id=f"overhead-{next(numbers)}",
                prompt=Prompt(None, tokens),
                params=replace(params, max_tokens=output, ignore_eos=True),
            )
            stream: RequestStream = await engine.submit([one])
            async for _ in stream.updates():
                pass
            if perf_counter() >= until:
                return

    engine.start()
    try:
        for batch in tqdm(batches, desc="engine", unit="batch"):
            until = perf_counter() + seconds / len(batches)
            await asyncio.gather(*(client(until) for _ in range(batch)))
    finally:
        await engine.stop()


def _steps(executed: Sequence[Executed], pauses: set[int]) -> Iterator[ServedStep]:
    for index, (one, following) in enumerate(pairwise(executed)):
        if index not in pauses:
            yield ServedStep(one.work, following.work.new_rows, one.end - one.begin, following.begin - one.end)
