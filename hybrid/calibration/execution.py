"""Execution: what the runner takes for designed steps, one at a time. Plans go straight to it, past the scheduler."""

from statistics import median
from time import perf_counter

import numpy as np
import torch
from tqdm import tqdm

from hybrid.capacity.fitting import Measured
from hybrid.capacity.step_work import StepWork
from hybrid.models.context import AttentionCache
from hybrid.pools.sizing import Kinds
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams

from .plans import Plans, image_hash, request_id
from .shapes import IMAGES, Shape

FILL = 1e-2  # what caches hold: pages that nobody wrote are all one page of zeros, and faster than real ones
FIRST_SHARE = 0.5  # of the time for the first run of every shape; larger shapes are left out
MOST_RUNS = 9
WARM_UPS = 2


class Execution:
    """Owns all rows of a runner that serves nobody."""

    def __init__(
        self, runner: ModelRunner, kinds: Kinds, vocab_size: int, params: SamplingParams, image_tokens: int, side: int
    ) -> None:
        """params: of every row. side: of an image, pixels. Mutates the runner: its requests enter."""
        self._runner = runner
        self._plans = Plans(runner.sizes, kinds, vocab_size, image_tokens)
        random = np.random.default_rng(0)
        pictures = {image_hash(i): random.random((3, side, side), np.float32) for i in range(max(IMAGES))}
        for row in range(runner.sizes.num_rows):
            images = pictures if row == 0 and image_tokens else None
            runner.add_request(request_id(row), params, images, seed=row)

    def close(self) -> None:
        """Mutates the runner: it knows none of these requests any more."""
        for row in range(self._runner.sizes.num_rows):
            self._runner.remove_request(request_id(row))

    def measure(self, shapes: list[Shape], seconds: float) -> list[Measured]:
        """About so many seconds of runs, round after round over the shapes, the smallest first; each at least once
        but for those that would take too long. Mutates rows and caches, shows a progress bar."""
        for shape in shapes:
            self._fill(shape)
        for shape in shapes[:: max(1, len(shapes) // 8)][:8]:
            for _ in range(WARM_UPS):
                self._run(shape)
        taken: dict[Shape, list[float]] = {}
        begin = perf_counter()
        whole = round(seconds)
        with tqdm(total=whole, desc="step times", unit="s") as bar:
            for turn in range(MOST_RUNS):
                for shape in shapes if turn == 0 else list(taken):
                    share = FIRST_SHARE if turn == 0 else 1.0
                    expected = taken[shape][-1] if turn else _expected(taken, shape)
                    spent = perf_counter() - begin
                    if taken and spent + expected > share * seconds:
                        continue  # smaller ones may still have room
                    taken.setdefault(shape, []).append(self._run(shape))
                    bar.update(min(round(perf_counter() - begin), whole) - bar.n)
            bar.update(whole - bar.n)
        return [
            Measured(StepWork.of(self._plans.step(shape)), median(runs[1:] or runs), shape.kind)
            for shape, runs in taken.items()
        ]

    def _run(self, shape: Shape) -> float:
        """Seconds of one execution."""
        self._runner.execute(self._plans.enter(shape))
        plan = self._plans.step(shape)
        self._wait()
        begin = perf_counter()
        self._runner.execute(plan)
        self._wait()
        return perf_counter() - begin

    def _wait(self) -> None:
        if self._runner.device.type == "cuda":
            torch.cuda.synchronize(self._runner.device)

    def _fill(self, shape: Shape) -> None:
        """Mutates caches: what the shape's rows read is there; they have the first blocks of each pool."""
        blocks = self._plans.enter(shape)
        used = max(len(blocks.full_blocks.blocks), len(blocks.window_blocks.blocks))
        for cache in self._runner.caches.layers:
            if isinstance(cache, AttentionCache):
                cache.kv[: min(used, len(cache.kv) - 1)].fill_(FILL)


def _expected(taken: dict[Shape, list[float]], shape: Shape) -> float:
    """Seconds of a shape that has not run yet, from the largest that has."""
    if not taken:
        return 0.0
    largest = max(taken, key=lambda done: done.num_tokens)
    return taken[largest][-1] * shape.num_tokens / largest.num_tokens
