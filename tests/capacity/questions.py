"""Questions about the public configurations, for tests of the planner; and the real scheduler driven as planned."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.adapters.adapter import Adapter
from hybrid.capacity.model_file import open_model
from hybrid.capacity.question import Question
from hybrid.capacity.sizing.planning import Plan, plan
from hybrid.capacity.sizing.split import Split
from hybrid.pools.sizing import Kinds
from hybrid.scheduler.plan import StepResult
from hybrid.scheduler.request import ImageInput, NewRequest
from hybrid.scheduler.scheduler import Scheduler

CONFIGS = sorted((Path(__file__).parent.parent / "models" / "families" / "model_configs").glob("*.json"))
BY_NAME = {path.stem: path for path in CONFIGS}
MIB, GIB = 2**20, 2**30


def question(name: str, **more: Any) -> Question:
    """name: of a public configuration, or anything that `open_model` takes. 40 GiB and 512 tokens unless said."""
    defaults = {"memory_bytes": 40 * GIB, "context": 1536, "output": 512}
    return Question(name=name, model=open_model(BY_NAME.get(name, name)), **{**defaults, **more})


def planned(name: str, **more: Any) -> Plan:
    return plan(question(name, **more))


def longer(asked: Question, positions: int) -> Question:
    """The same shape where the model's positions end later."""
    decoder = replace(asked.model.decoder, max_positions=max(positions, asked.model.decoder.max_positions))
    return replace(asked, model=replace(asked.model, decoder=decoder))


def running(scheduler: Scheduler) -> Iterator[int]:
    """How many requests run, step after step, until nothing is left to run."""
    while (step := scheduler.schedule()) is not None:
        yield scheduler.stats().num_running
        scheduler.commit(StepResult.one_each(step.step_id, np.ones(int(step.samples.sum()), dtype=np.int32)))


def peak_running(made: Plan, extra: int = 3) -> int:
    """Most requests at once when the real scheduler serves more of them than were planned, to their last tokens.

    A runner that samples token 1 stands for the model. Nothing was retracted, or this fails.
    """
    asked = made.question
    scheduler = Scheduler(Split(asked).config, made.sizes, Kinds.of(made.spec))
    tokens = asked.context + asked.images * asked.image_tokens
    entries = asked.image_cost.entries
    for index in range(made.concurrency + extra):
        prompt = np.full(tokens, 2 + index, dtype=np.int32)
        prompt[: asked.shared_prefix] = 1
        starts = range(tokens - asked.images * asked.image_tokens, tokens, asked.image_tokens or 1)
        images = tuple(
            ImageInput(f"{index} at {first}", first, count)
            for start in starts
            for first, count in zip(accumulate(entries, initial=start), entries)
        )
        which = 1 + index % max(1, asked.adapters)
        adapter = Adapter(f"adapter {which}", which, asked.rank) if asked.adapters else None
        scheduler.add(NewRequest(f"r{index}", prompt, max_tokens=asked.output, images=images, adapter=adapter))
    peak = max(running(scheduler))
    assert scheduler.num_unfinished == 0
    assert scheduler.stats().retractions == 0
    return peak
