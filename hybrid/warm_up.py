"""Warm-up: steps before the first request, so that no user's waits for kernels that are compiled on first use: seconds
when they were compiled before on this machine, up to minutes else.

They go to the runner, past the scheduler, on rows and blocks that nobody owns yet, and leave no trace there.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from tqdm import tqdm

from hybrid.calibration.plans import Plans, request_id
from hybrid.calibration.shapes import Shape
from hybrid.models.context import AttentionCache
from hybrid.models.ops.choice import choose
from hybrid.pools.sizing import Kinds
from hybrid.runner.model_runner import ModelRunner
from hybrid.runner.row_mirror import RowMirror
from hybrid.scheduler.plan import StepPlan

from .engine_setup import Setup
from .sampling_params import SamplingParams
from .warm_up_shapes import all_shapes, short_shapes

logger = logging.getLogger(__name__)

LORA_ID = 1  # of nobody's adapter
TRUNCATED = SamplingParams(temperature=1.0, top_k=2, top_p=0.5)  # what compiles everything that draws tokens


def warm_up(setup: Setup) -> None:
    """Mutates nothing that shows later. To be called before the engine runs.

    A step that fails is only logged; ValueError where the device's memory does not hold one.
    """
    runner, kinds, config = setup.runner, Kinds.of(setup.limits.spec), setup.engine.scheduler.config
    shapes, says = short_shapes(runner.sizes, kinds), "warming up"
    if runner.device.type != "cpu" or choose(runner.device) == "triton":
        lora_id = LORA_ID if runner.lora is not None else 0
        shapes, says = all_shapes(runner.sizes, kinds, config.max_num_batched_tokens, lora_id), "compiling kernels"
    if runner.lora is not None:
        runner.lora.warm_up()
    try:
        run_shapes(runner, kinds, setup.processor.vocab_size, shapes, says)
    except torch.OutOfMemoryError:
        raise ValueError(
            f"the device's memory does not hold a step of {config.max_num_batched_tokens} tokens beside the pools; "
            "lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs"
        ) from None
    except Exception as error:
        logger.warning("a step that was to warm up the engine failed: %s: %s", type(error).__name__, error)


def run_shapes(runner: ModelRunner, kinds: Kinds, vocab_size: int, shapes: Sequence[Shape], says: str) -> None:
    """Shows a progress bar that says so. Nothing of it is left in the runner, whatever it raises."""
    plans = Plans(runner.sizes, kinds, vocab_size)
    with _aside(runner, max(len(shape.rows) for shape in shapes)):
        for shape in tqdm(shapes, desc=says, unit="step", dynamic_ncols=True):
            enter, step = plans.enter(shape), plans.step(shape)
            try:
                runner.execute(enter)
                runner.execute(step)
            finally:
                _clear(runner, enter, step)


@contextmanager
def _aside(runner: ModelRunner, rows: int) -> Iterator[None]:
    """Inside, steps know so many rows of their own, and no graphs: their kernels are compiled when they are captured.
    An adapter may take part that changes nothing."""
    mirror, graphs = runner.mirror, runner.graphs
    runner.mirror, runner.graphs = RowMirror(runner.sizes), None
    for row in range(rows):
        runner.add_request(request_id(row), TRUNCATED, seed=row)
    try:
        if runner.lora is None:
            yield
        else:
            with runner.lora.pretending(LORA_ID):
                yield
    finally:
        for row in range(rows):
            runner.remove_request(request_id(row))
        runner.mirror, runner.graphs = mirror, graphs


def _clear(runner: ModelRunner, enter: StepPlan, step: StepPlan) -> None:
    """Mutates the caches: the plans' blocks and slots are zero, as they were."""
    blocks = 1 + max(int(delta.blocks.max(initial=-1)) for delta in (enter.full_blocks, enter.window_blocks))
    slots = len(step.rows) + len(step.snapshots)
    for cache in runner.caches.layers:
        if isinstance(cache, AttentionCache):
            cache.kv[:blocks].zero_()
        else:
            cache.conv[:slots].zero_()
            cache.ssm[:slots].zero_()
