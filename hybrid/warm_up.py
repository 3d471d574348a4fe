"""Warm-up: a short request, so that no user's waits for kernels that are compiled on first use: seconds when they were
compiled before on this machine, up to a minute else.

It goes through an engine of its own over the same runner: the real one's counters, cache and estimates stay untouched.
"""

import logging

import numpy as np
from tqdm import tqdm

from hybrid.frontend.prompt import Prompt

from .driver import Driver
from .engine_setup import Setup
from .sampling_params import SamplingParams

logger = logging.getLogger(__name__)

PROMPT_TOKENS = 4
NEW_TOKENS = 3  # one sampled at the end of a chunk, the others by decode steps


def warm_up(setup: Setup) -> None:
    """Mutates nothing that shows later. To be called before the engine runs; a request that fails is only logged."""
    length = min(PROMPT_TOKENS, setup.sizes.max_model_len - 1)
    tokens = min(NEW_TOKENS, setup.sizes.max_model_len - length)
    with tqdm(total=tokens, desc="warming up", unit="step", dynamic_ncols=True) as bar:
        if setup.runner.lora is not None:
            setup.runner.lora.warm_up()
        driver = Driver(setup.new_engine(), setup.processor, seed=0)
        prompt = Prompt(None, np.zeros(length, dtype=np.int32))
        [collector] = driver.submit([prompt], [SamplingParams(max_tokens=tokens, ignore_eos=True)], [0])
        while not collector.finished:
            bar.update(sum(len(update.token_ids) for updates in driver.step().values() for update in updates))
    if (error := collector.output().error) is not None:
        logger.warning("the request that was to warm up the engine failed: %s", error)
