"""Measure: a whole calibration: an engine built as a server builds it, its runner and its loop timed, all fitted."""

import platform
from datetime import UTC, datetime

import numpy as np
import torch
from PIL import Image

from hybrid.capacity.model_file import open_model
from hybrid.capacity.step_time.calibrated import Calibrated, Conditions, fingerprint
from hybrid.capacity.step_time.fitting import Measured, fit_execution, fit_overhead, residuals, variation
from hybrid.capacity.step_time.layer_costs import LayerCosts
from hybrid.encoders.checked import ImageTooLargeError
from hybrid.encoders.inputs import EncoderInput, ImageProcessor
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import set_up
from hybrid.pools.sizing import Kinds
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams

from .execution import Execution
from .served_steps import serve_some
from .shapes import IMAGES, design
from .timed_runner import TimedRunner

LOOP_SHARE = 0.25  # of the time
BATCHES = (1, 4, 16, 64)  # requests at once while the loop is measured
MIN_SECONDS = 1.0
SIDE = 448  # of a picture, pixels


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

    # 1. the engine
    model = open_model(args.model)
    setup = set_up(args, wrap)
    timed, runner, sizes = watched[0], setup.runner, setup.sizes
    dtype = str(runner.dtype).removeprefix("torch.")
    spec = model.spec(dtype)
    kinds, windows = Kinds.of(spec), LayerCosts.of(model, spec).windows
    # 2. its runner
    images = pictures(setup.processor.images, sizes.encoder_tokens)
    execution = Execution(runner, kinds, setup.processor.vocab_size, params, images)
    shapes = design(sizes, kinds, args.max_num_batched_tokens, images[0].runs[0] if images else 0)
    measured = execution.measure(shapes, seconds * (1 - LOOP_SHARE))
    execution.close()
    # 3. its loop
    batches = [batch for batch in BATCHES if batch <= sizes.num_rows]
    served = serve_some(setup, timed, params, batches, seconds * LOOP_SHARE)
    executed = [Measured(step.work, step.execution, "served") for step in served]
    counts = [(step.work.num_sampled, step.entering) for step in served]
    execution_time = fit_execution(measured, windows, executed)
    return Calibrated(
        model=str(args.model),
        fingerprint=fingerprint(model),
        dtype=dtype,
        conditions=_conditions(runner.device, temperature),
        execution=execution_time,
        overhead=fit_overhead(counts, [step.beside for step in served]),
        variation=variation(execution_time, executed),
        residuals=residuals(execution_time, [*measured, *executed]),
    )


def pictures(processor: ImageProcessor | None, room: int) -> list[EncoderInput]:
    """Random ones of one size, as the encoder gets them: as many as shapes have at most, if the pool has room."""
    found: list[EncoderInput] = []
    if processor is None:
        return found
    for seed in range(max(IMAGES)):
        pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        try:
            [image, *_] = processor(Image.fromarray(pixels)).inputs
        except ImageTooLargeError:  # for the longest prompt
            break
        if len(image.runs) == 1 and (seed + 1) * image.runs[0] <= room:
            found.append(image)
    return found


def _conditions(device: torch.device, temperature: float) -> Conditions:
    machine = platform.processor() or platform.machine()
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return Conditions(
        machine=machine, device=device.type, threads=torch.get_num_threads(), temperature=temperature, date=date
    )
