"""Steps of whole models of real shapes: a runner with random weights that are drawn on the device, nobody's files.

A step is what an engine's is without its scheduler: the batch is built and uploaded, the model runs, tokens are sampled
and come back. Its roofline counts every weight, key, value and state once.
"""

import gc
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from hybrid.adapters.weights import AdapterWeights, LoraMatrices
from hybrid.calibration.plans import Plans, request_id
from hybrid.calibration.shapes import Row, Shape
from hybrid.capacity.step_time.layer_costs import LayerCosts
from hybrid.capacity.step_time.roofline import Assumptions, Roofline
from hybrid.capacity.step_time.step_work import StepWork
from hybrid.models.blueprint.model import Model
from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.weights import Weights
from hybrid.pools.sizing import Kinds, PoolSizes, blocks_for, lora_units
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import LoadAdapter, StepPlan

from .gpu_case import Rates

CONFIGS = Path(__file__).parent.parent / "tests/models/families/model_configs"
REAL = ("Llama-3.1-8B", "gemma-3-4b-it", "Nemotron-H-8B-Base-8K", "granite-4.0-h-tiny", "Falcon-H1-7B")
BATCHES = (1, 8, 32)
CONTEXT = 2048  # of each row that decodes
CHUNK_TOKENS = 8192  # of a step that fills rows, all together, but at most CONTEXT of each
RUNS, WARM_UPS = 20, 3
ADAPTERS, RANK = 8, 16
BLOCK_SIZE = 16
TINY: dict[str, object] = {
    "model_type": "bamba",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "attn_layer_indices": [1],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, slots=True)
class StepTime:
    """seconds: median of a step; least: by the roofline, None without rates."""

    kind: str
    batch: int
    tokens: int
    seconds: float
    least: float | None

    def values(self) -> dict[str, object]:
        """For JSON; times are nobody's business in the interpreter."""
        found: dict[str, object] = {"kind": self.kind, "batch": self.batch, "tokens": self.tokens}
        if self.least is not None:
            found |= {"seconds": self.seconds, "roofline_seconds": self.least}
        return found


class RandomTensors:
    """A TensorSource of about unit gain; speed does not depend on values, but they stay finite."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self._shapes = model.tensors()
        self._device = device

    def __getitem__(self, name: str, /) -> torch.Tensor:
        shape = self._shapes[name]
        if len(shape) > 1:
            return torch.randn(shape, device=self._device, dtype=torch.bfloat16).mul_(1 / math.sqrt(shape[-1]))
        values = torch.rand(shape, device=self._device)
        return 1 + values / 10 if "norm" in name else values


class RandomAdapters:
    """An AdapterSource, which draws every adapter on the device. All of a model's targets change a little."""

    max_lora_rank = RANK

    def __init__(self, targets: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        self._targets = targets
        self._device = device

    def weights(self, lora_id: int) -> AdapterWeights:
        """Another one every time."""
        del lora_id
        modules = {}
        for name, (*experts, outputs, inputs) in self._targets.items():
            a = torch.randn(*experts, RANK, inputs, device=self._device).mul_(inputs**-0.5)
            b = torch.randn(*experts, outputs, RANK, device=self._device).mul_(0.1 * RANK**-0.5)
            modules[name] = LoraMatrices(a, b)
        return AdapterWeights(RANK, modules)


def with_adapters(plan: StepPlan) -> StepPlan:
    """The new rows have ADAPTERS adapters in turn, which the plan loads."""
    units = np.arange(ADAPTERS * lora_units(RANK)).reshape(ADAPTERS, -1)
    new_rows = tuple(replace(new, lora_id=1 + index % ADAPTERS) for index, new in enumerate(plan.new_rows))
    loaded = tuple(LoadAdapter(lora_id, held) for lora_id, held in enumerate(units, start=1))
    return replace(plan, new_rows=new_rows, load_adapters=loaded)


def real_model(name: str) -> Model:
    """By its configuration; what sees images is left out."""
    return replace(read_model(json.loads((CONFIGS / f"{name}.json").read_text())), vision=None)


def tiny_model() -> Model:
    """A hybrid for the interpreter."""
    config: dict[str, Any] = dict(TINY)
    return read_model(config)


def steps(
    model: Model,
    device: torch.device,
    rates: Rates | None,
    batches: tuple[int, ...] = BATCHES,
    context: int = CONTEXT,
    chunk_tokens: int = CHUNK_TOKENS,
    runs: int = RUNS,
    warm_ups: int = WARM_UPS,
) -> Iterator[StepTime]:
    """Decoding and prefill of each batch, one after the other. Logits that are not finite are an error. The roofline of
    steps with adapters is that of steps without."""
    decoder = Decoder(model, Weights(RandomTensors(model, device), torch.bfloat16, device))
    spec, rows = decoder.spec, max(batches)
    sizes = PoolSizes(
        num_rows=rows,
        num_full_blocks=rows * blocks_for(context + 1, BLOCK_SIZE),
        num_window_blocks=rows * blocks_for(context + 1, BLOCK_SIZE),
        num_state_slots=rows,
        encoder_tokens=0,
        lora_units=ADAPTERS * lora_units(RANK),
        block_size=BLOCK_SIZE,
        sliding_window=spec.sliding_window,
        max_model_len=context + 2,
    )
    kinds = Kinds.of(spec)
    targets = model.lora_targets()
    runner = ModelRunner(decoder, sizes, device, None, RandomAdapters(targets, device), targets)
    plans = Plans(sizes, kinds, decoder.vocab_size)
    for row in range(rows):
        runner.add_request(request_id(row), SamplingParams(temperature=0), seed=row)
    least = None if rates is None else roofline(model, rates)
    for batch in batches:
        chunk = min(context, chunk_tokens // batch)
        # prefill first: decoding then reads what it wrote
        steps = ("prefill", Row(0, chunk)), ("decode", Row(context - 1)), ("decode, adapters", Row(context - 1))
        for kind, each in steps:
            shape = Shape(kind, (each,) * batch)
            runner.execute(with_adapters(plans.enter(shape)) if kind.endswith("adapters") else plans.enter(shape))
            plan = plans.step(shape)
            median = sorted(_ends(runner, plan, warm_ups + runs)[-runs:])[runs // 2]
            yield StepTime(
                kind, batch, shape.num_tokens, median, None if least is None else least.seconds(StepWork.of(plan))
            )


def _ends(runner: ModelRunner, plan: StepPlan, runs: int) -> list[float]:
    """Seconds from the end of one step to that of the next, with two in flight, as an engine on a GPU has them."""
    earlier, ends = runner.launch(plan), [perf_counter()]
    for _ in range(runs):
        later = runner.launch(plan)
        earlier()
        ends.append(perf_counter())
        earlier = later
    earlier()
    return np.diff(ends).tolist()


def free(device: torch.device) -> None:
    """Give the memory of the model before to the next one."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def roofline(model: Model, rates: Rates) -> Roofline:
    """At the measured rates, with nothing for launches and planning."""
    spec = model.spec("bfloat16")
    return Roofline(
        costs=LayerCosts.of(model, spec),
        spec=spec,
        weight_bytes=2,
        computed_bytes=2,
        operations_per_second=rates.matrix,
        bytes_per_second=rates.bandwidth,
        block_size=BLOCK_SIZE,
        assumptions=Assumptions(compute_share=1, bandwidth_share=1, step_seconds=0, part_seconds=0),
    )
