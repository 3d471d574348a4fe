"""A workload served for real: arrivals by the clock, through AsyncEngine, as a server has it but for HTTP.

What the engine hands out is noted in its own thread, at the end of each step. Later turns bring the answers that the
model really gave.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from hybrid.async_engine import AsyncEngine, Submission
from hybrid.calibration.timed_runner import Executed, TimedRunner
from hybrid.capacity.workload.segments import token_ids
from hybrid.capacity.workload.workload import Workload
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import Setup, set_up
from hybrid.frontend.generation import Update
from hybrid.frontend.prompt import Prompt
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams

WARM_UP_REQUESTS = 24


@dataclass(frozen=True, slots=True)
class Served:
    """ttft [requests], gaps [tokens but the first ones]: seconds. seconds: from the first arrival to the last token.
    executed: its steps."""

    ttft: NDArray[np.float64]
    gaps: NDArray[np.float64]
    num_tokens: int
    seconds: float
    executed: list[Executed]


@dataclass(slots=True)
class _Notes:
    """When each request's tokens were handed out, by its id. An EngineObserver."""

    times: dict[str, list[float]] = field(default_factory=dict)

    def arrived(self, request_id: str) -> None:
        self.times[request_id] = []

    def stepped(self, updates: Iterable[Update], idle: bool = False) -> None:
        now = perf_counter()
        for update in updates:
            self.times[update.request_id] += [now] * len(update.token_ids)


def serve(args: EngineArgs, workload: Workload, warm_up: Workload, params: SamplingParams) -> Served:
    """Every request gives as many tokens as the workload says. Shows a progress bar. warm_up: its first requests are
    answered before, so that what is compiled is compiled."""
    watched: list[TimedRunner] = []

    def wrap(runner: ModelRunner) -> TimedRunner:
        watched.append(TimedRunner(runner))
        return watched[0]

    setup = set_up(args, wrap)
    asyncio.run(_serve_all(setup, warm_up.first(WARM_UP_REQUESTS), params, _Notes(), hurry=True))
    setup.engine.scheduler.reset_prefix_cache()  # drawn texts are the same for every seed, where they are as long
    notes, [timed] = _Notes(), watched
    timed.executed.clear()
    arrivals, begin = asyncio.run(_serve_all(setup, workload, params, notes))
    handed_out = [np.array(notes.times[str(index)]) for index in range(len(workload))]
    last = max(times[-1] for times in handed_out)
    return Served(
        ttft=np.array([times[0] - arrival for times, arrival in zip(handed_out, arrivals)]),
        gaps=np.concatenate([np.diff(times) for times in handed_out]),
        num_tokens=sum(map(len, handed_out)),
        seconds=last - begin,
        executed=timed.executed,
    )


async def _serve_all(
    setup: Setup, workload: Workload, params: SamplingParams, notes: _Notes, hurry: bool = False
) -> tuple[list[float], float]:
    """When each request arrived, and when the first could have. hurry: all arrive at once."""
    engine = AsyncEngine(setup.engine, setup.processor, observer=notes)
    engine.start()
    arrivals = [0.0] * len(workload)
    followers: dict[int, list[int]] = {}
    for index in np.flatnonzero(workload.after >= 0).tolist():
        followers.setdefault(int(workload.after[index]), []).append(index)

    async def session(index: int, time: float, earlier: NDArray[np.int32] | None, bar: "tqdm[Any]") -> None:
        """A request that arrives at `time`, and what follows it. earlier: the conversation up to its new message."""
        await asyncio.sleep(time - perf_counter())
        arrival = workload[index]
        new = arrival.prompt if earlier is None else arrival.prompt[-1:]  # a later turn brings one message
        tokens = token_ids(new, vocab_size=setup.processor.vocab_size)
        prompt = tokens if earlier is None else np.concatenate((earlier, tokens))
        one = Submission(
            request_id=str(index),
            prompt=Prompt(None, prompt, resume_hints=arrival.hints),
            params=replace(params, max_tokens=arrival.output.length, ignore_eos=True),
        )
        arrivals[index] = perf_counter()
        stream = await engine.submit([one])
        [output] = await stream.outputs()
        bar.update()
        if output.outputs[0].finish_reason != "length":
            raise RuntimeError(f"request {index} ended by {output.outputs[0].finish_reason}")
        said = np.concatenate((prompt, np.array(output.outputs[0].token_ids, dtype=np.int32)))
        answered = notes.times[str(index)][-1]
        async with asyncio.TaskGroup() as later:
            for follower in followers.get(index, ()):
                wait = 0.0 if hurry else float(workload.times[follower])
                later.create_task(session(follower, answered + wait, said, bar))

    begin = perf_counter() + 0.1
    try:
        with tqdm(total=len(workload), desc="warm-up" if hurry else "served", unit="request", leave=False) as bar:
            async with asyncio.TaskGroup() as sessions:
                for index in np.flatnonzero(workload.after < 0).tolist():
                    at = begin if hurry else begin + float(workload.times[index])
                    sessions.create_task(session(index, at, None, bar))
    finally:
        await engine.stop()
    return arrivals, begin


def percentiles(values: Sequence[float] | NDArray[np.floating]) -> tuple[float, float]:
    """(p50, p95)."""
    p50, p95 = np.percentile(np.asarray(values), (50, 95)).tolist()
    return p50, p95
