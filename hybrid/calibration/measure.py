"""Measure: a whole calibration: an engine built as a server builds it, its runner and its loop timed, all fitted."""

import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

from hybrid.capacity.calibration import Calibrated, Conditions, fingerprint
from hybrid.capacity.fitting import fit_execution, fit_overhead, residuals
from hybrid.capacity.tally import Window
from hybrid.checkpoints import find_checkpoint
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import set_up
from hybrid.models.blueprint.model import Model
from hybrid.models.loading import read_config
from hybrid.pools.sizing import Kinds
from hybrid.pools.specs import FullAttentionSpec, SlidingWindowSpec
from hybrid.sampling_params import SamplingParams

from .execution import Execution
from .overhead import measure_overhead
from .shapes import design
from .timed_runner import TimedRunner

OVERHEAD_SHARE = 0.25  # of the time
BATCHES = (1, 4, 16, 64)  # requests at once while the loop is measured
MIN_SECONDS = 1.0


def calibrate(args: EngineArgs, seconds: float, temperature: float) -> Calibrated:
    """Measures for about so many seconds beside loading and compiling. Raises ValueError.

    temperature: of all requests, as drawing takes time; 0: the most likely token.
    """
    if not MIN_SECONDS <= seconds < float("inf"):
        raise ValueError(f"seconds must be at least {MIN_SECONDS:g}, got {seconds:g}")
    params = SamplingParams(temperature=temperature)
    watched: list[TimedRunner] = []

    def wrap(runner: ModelRunner) -> TimedRunner:
        watched.append(TimedRunner(runner))
        return watched[0]

    setup = set_up(args, wrap)
    timed, model = watched[0], read_config(find_checkpoint(args.model))
    runner, vision = timed.runner, model.vision
    spec = model.spec(str(runner.dtype).removeprefix("torch."))
    kinds, windows = Kinds.of(spec), model_windows(model)
    image_tokens = vision.num_image_tokens if vision is not None else 0
    shapes = design(runner.sizes, kinds, args.max_num_batched_tokens, image_tokens)
    side = vision.image_size if vision is not None else 0
    execution = Execution(runner, kinds, setup.processor.vocab_size, params, image_tokens, side)
    measured = execution.measure(shapes, seconds * (1 - OVERHEAD_SHARE))
    execution.leave()
    fitted = fit_execution(measured, windows)
    made = Calibrated(...)
