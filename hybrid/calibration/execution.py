"""Execution: what the runner takes for designed steps, one at a time. Plans go straight to it, past the scheduler."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import product
from math import gcd
from time import perf_counter

import torch
from tqdm import tqdm

from hybrid.capacity.step_time.fitting import Measured
from hybrid.capacity.step_time.step_work import RecentSizes, StepWork
from hybrid.encoders.inputs import EncoderInput
from hybrid.models.context import AttentionCache
from hybrid.pools.sizing import Kinds
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams

from .plans import Plans, request_id
from .shapes import Shape

FILL = 1e-2  # what caches hold: pages that nobody wrote are all one page of zeros, and faster than real ones
LARGEST_SHARE = 1 / 16  # of the time: steps that take longer than that are left out
MOST_RUNS = 9
COARSE = 16  # one shape in so many comes first, and in any case


class Execution:
    """Owns all rows of a runner that serves nobody."""

    def __init__(
        self, runner: ModelRunner, kinds: Kinds, vocab_size: int, params: SamplingParams, images: Sequence[EncoderInput]
    ) -> None:
        """params: of every row. images: see `Plans`. Mutates the runner: its requests enter."""
        self._runner = runner
        self._plans = Plans(runner.sizes, kinds, vocab_size, images)
        self._sizes = RecentSizes()
        for row in range(runner.sizes.num_rows):
            brought = {} if row else {image.mm_hash: image for image in images}
            runner.add_request(request_id(row), params, brought, seed=row)

    def close(self) -> None:
        """Mutates the runner: it knows none of these requests any more."""
        for row in range(self._runner.sizes.num_rows):
            self._runner.remove_request(request_id(row))

    def measure(self, shapes: list[Shape], seconds: float) -> list[Measured]:
        """Runs round after round over the shapes, for about so many seconds in all; chunks have another length in each.
        What comes again is measured apart from what is new. Shapes that take too long are left out. Mutates rows and
        caches, shows a progress bar."""
        self._fill(shapes)
        begin = perf_counter()
        sizes, durations = self._explore(shapes, seconds * LARGEST_SHARE)
        within = [shape for shape in shapes if shape.num_tokens < 2 * sizes[-1]]
        order = sorted(range(len(within)), key=lambda index: -_coarse(within, index))
        taken: dict[tuple[Shape, bool], list[Measured]] = {}
        whole = round(seconds)
        with tqdm(total=whole, desc="step times", unit="s") as bar:
            for turn, index in product(range(MOST_RUNS), order):
                shape = within[index]
                expected = sum(durations[min(bisect_left(sizes, shape.num_tokens), len(sizes) - 1)])
                anyway = turn == 0 and _coarse(within, index) == COARSE
                if anyway or perf_counter() - begin + expected <= seconds:
                    for one in self._run(shape.shortened(turn)):
                        taken.setdefault((shape, one.work.new_num_tokens), []).append(one)
                    bar.update(min(round(perf_counter() - begin), whole) - bar.n)
            bar.update(whole - bar.n)
        return [sorted(runs, key=lambda run: run.seconds)[len(runs) // 2] for runs in taken.values()]

    def _explore(self, shapes: list[Shape], most: float) -> tuple[list[int], list[list[float]]]:
        """Numbers of tokens, each at least twice the one before, and about how long steps of so many take, when they
        are new and again, up to the first that takes `most` seconds. What is compiled is compiled then. Mutates rows
        and caches."""
        sizes: list[int] = []
        durations: list[list[float]] = []
        for shape in shapes:
            if len(shape.rows) == 1 and (not sizes or shape.num_tokens >= 2 * sizes[-1]):
                self._run(shape)
                sizes.append(shape.num_tokens)
                durations.append([one.seconds for one in self._run(shape)])
                if max(durations[-1]) > most:
                    break
        return sizes, durations

    def _run(self, shape: Shape) -> list[Measured]:
        """Two executions. Of the first the number of tokens may be new to the runner."""
        self._runner.execute(self._plans.enter(shape))
        return [self._timed(shape), self._timed(shape)]

    def _timed(self, shape: Shape) -> Measured:
        plan = self._plans.step(shape)
        self._wait()
        begin = perf_counter()
        self._runner.execute(plan)
        self._wait()
        return Measured(StepWork.of(plan, self._sizes), perf_counter() - begin, shape.kind)

    def _wait(self) -> None:
        if self._runner.device.type == "cuda":
            torch.cuda.synchronize(self._runner.device)

    def _fill(self, shapes: list[Shape]) -> None:
        """Mutates caches: what the shapes' rows read is there; they have the first blocks of each pool."""
        deltas = [(plan.full_blocks, plan.window_blocks) for plan in map(self._plans.enter, shapes)]
        used = max(len(delta.blocks) for pair in deltas for delta in pair)
        for cache in self._runner.caches.layers:
            if isinstance(cache, AttentionCache):
                cache.kv[: min(used, len(cache.kv) - 1)].fill_(FILL)


def _coarse(shapes: list[Shape], index: int) -> int:
    """COARSE for one shape in so many, counted from the largest, half of it for those in the middle, and so on."""
    return gcd(len(shapes) - 1 - index, COARSE)
