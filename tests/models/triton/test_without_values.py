"""Steps of real models on tensors that have no values, with kernels that are not run: nobody on the way asks the device
for anything, waits for a copy to it, mixes devices, or launches a grid that no GPU takes.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from hybrid.models.context import DecodeContext, Snapshots
from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.ops.decode_lora import DecodeLora
from hybrid.models.ops.lora import LoraBatch
from hybrid.models.ops.triton import norm, sampling
from hybrid.models.weights import Weights
from tests.models.forward import caches_for, context_for

CONFIGS = Path(__file__).parents[1] / "families/model_configs"
MODELS = ("Falcon-H1-3B", "Jamba-v0.1", "Qwen3.5-27B", "gemma-4-26B-A4B", "Nemotron-3-Nano-30B-A3B")
META = torch.device("meta")
MOST = 65535  # programs along a grid's second and third axis
UNITS = 3  # of adapters


class Copies(TorchFunctionMode):
    """Fails where the host waits for a copy to the device; with `none`, at any copy: a graph would repeat it."""

    def __init__(self, none: bool = False) -> None:
        super().__init__()
        self._none = none

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        if func is torch.tensor and result.device == META:
            raise AssertionError("the host waits for values of its own on the device")
        if func is torch.Tensor.to and result.device != args[0].device:
            assert options.get("non_blocking") and not self._none, "the host waits for a copy to the device"
        return result


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that would have run."""
    names: list[str] = []

    def run(self: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
        tensors = [value for value in (*args, *options.values()) if isinstance(value, torch.Tensor)]
        assert tensors and all(tensor.device == META for tensor in tensors), self.fn.__name__
        assert all(size <= MOST for size in grid[1:]), (self.fn.__name__, grid)
        names.append(self.fn.__name__)

    monkeypatch.setattr(type(norm._rms_norm), "run", run)
    monkeypatch.setenv("HYBRID_OPS", "triton")
    return names


def decoder(name: str) -> Decoder:
    model = replace(read_model(json.loads((CONFIGS / f"{name}.json").read_text())), vision=None)
    tensors = {name: torch.empty(shape, dtype=torch.bfloat16, device=META) for name, shape in model.tensors().items()}
    return Decoder(model, Weights(tensors, torch.bfloat16, META))


def step(model: Decoder, computed: list[int], counts: list[int], lora: LoraBatch | None = None) -> torch.Tensor:
    """Hidden states of a batch whose first and last row leave a snapshot."""
    with META:
        caches = caches_for(model, len(counts) + 2)
    rows = [list(range(before + count)) for before, count in zip(computed, counts)]
    context = context_for(rows, computed, counts, caches)
    last = len(counts) - 1
    context = replace(
        context,
        token_ids=context.token_ids.to(META),
        positions=context.positions.to(META),
        snapshots=Snapshots(np.array([0, last]), np.array([1, counts[last]]), np.array([last + 1, last + 2])),
        lora=lora,
    )
    with torch.inference_mode():
        model.forward(replace(context, lora=None))  # may upload what is kept
        with Copies():
            return model.forward(context)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_asks_the_device_for_nothing(name: str, launched: list[str]) -> None:
    model = decoder(name)
    hidden = step(model, [9, 40, 0, 3], [1, 1, 70, 20])
    assert hidden.device == META and len(hidden) == 92
    assert 0 < launched.count("attend") == 2 * launched.count("write")  # decodes and chunks


def with_room(model: Decoder) -> Decoder:
    """Adapters lie in all rank units and change everything."""
    for site in model.lora_sites:
        site.allocate(UNITS, torch.bfloat16, META)
        site.filled[:] = True
    return model


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_can_hold_a_decode_step(name: str, adapted: bool, launched: list[str]) -> None:
    """Of rows behind images, where ropes know three positions; with adapters of any row, and without."""
    model, rows = decoder(name), 5
    with META:
        caches = caches_for(model, rows)
        token_ids, positions, lines, turned = torch.zeros(4, rows, dtype=torch.int64)
        table = torch.zeros((rows + 1, 100), dtype=torch.int32)
        slots = torch.zeros(rows + 1, dtype=torch.int64)
    lora = DecodeLora(rows, UNITS, 2, META) if adapted else None
    if adapted:
        with_room(model)
    context = DecodeContext(token_ids, positions, lines, table, table, slots, caches, turned, lora)
    with torch.inference_mode():
        model.forward(context)  # may upload what is kept
        with Copies(none=True):
            assert model.forward(context).device == META
    assert launched.count("cut") in (2, 4)
    for kernel, beside in (("lora_shrink", "attend"), ("shrink_choices", "into_experts")):
        assert launched.count(kernel) >= launched.count(beside) if adapted else kernel not in launched


@pytest.mark.parametrize("name", ["Falcon-H1-3B", "gemma-4-26B-A4B"])
def test_nor_does_one_with_adapters(name: str, launched: list[str]) -> None:
    """The second one changes experts, and tables that are looked up."""
    model = with_room(decoder(name))
    units = np.array([[2, -1]] + [[-1, -1]] * 5 + [[1, 0]] * 20)
    step(model, [9, 0, 3], [1, 5, 20], LoraBatch(units))
    assert launched.count("lora_shrink") > len(model.spec.layers)
    assert launched.count("shrink_choices") == launched.count("into_experts")
    assert ("shrink_choices" in launched) == (name != "Falcon-H1-3B")


def test_tables_are_filled_without_waiting() -> None:
    with Copies():
        DecodeLora(8, UNITS, 2, META).fill(LoraBatch(np.array([[2, -1], [-1, -1], [1, 0]])))


@pytest.mark.parametrize("by_weight", [False, True])
def test_nor_does_truncation(by_weight: bool, launched: list[str]) -> None:
    logits, wanted = torch.empty(300, 262144, device=META), torch.empty(300, dtype=torch.float64, device=META)
    with Copies():
        assert sampling.threshold(logits, wanted, by_weight).shape == (300,)
    assert launched == ["measure"] * sampling.DIGITS
