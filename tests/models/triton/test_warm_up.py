"""Every variant of every kernel that serving launches was compiled while warming up."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hybrid.adapters.adapter import Adapter
from hybrid.calibration.shapes import Shape
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import set_up
from hybrid.frontend.prompt import Prompt
from hybrid.models.context import ImageTokens
from hybrid.models.decoder import Decoder
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams
from hybrid.warm_up import LORA_ID, run_shapes, warm_up
from hybrid.warm_up_shapes import all_shapes
from tests.models.forward import caches_for, context_for
from tests.models.triton.launches import Variant, launches
from tests.models.triton.small_models import NAMES, NATIVE, VOCAB, Small, rank_of, small
from tests.models.triton.test_without_values import META, decoder

CASES = [(name, False) for name in NAMES] + [(NATIVE, True), ("Qwen3-Next-80B-A3B-Instruct", True)]
REQUESTS = 40


@pytest.fixture(autouse=True)
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """They compute everything; but as they are not run, they leave nothing that could be sampled from."""
    monkeypatch.setenv("HYBRID_OPS", "triton")
    compute, forward = Decoder.compute_logits, Decoder.forward

    def made(self: Decoder, hidden: torch.Tensor, lora: Any = None) -> torch.Tensor:
        return torch.rand(compute(self, hidden, lora).shape)

    monkeypatch.setattr(Decoder, "compute_logits", made)
    monkeypatch.setattr(Decoder, "forward", lambda self, context: torch.zeros_like(forward(self, context)))


def warmed(made: Small, shapes: list[Shape]) -> set[Variant]:
    with launches() as variants:
        run_shapes(made.runner, made.kinds, VOCAB, shapes, "compiling kernels")
    return variants


def served(made: Small) -> set[Variant]:
    """Random requests, some of which share beginnings, arriving while others run."""
    rng = np.random.default_rng(0)
    longest = made.runner.sizes.max_model_len
    common = rng.integers(0, VOCAB, longest, dtype=np.int32)
    arrivals = np.sort(rng.integers(0, REQUESTS, REQUESTS))
    with launches() as variants:
        added = step = 0
        while added < REQUESTS or made.engine.is_busy:
            while added < REQUESTS and arrivals[added] <= step:
                length = int(rng.choice([1, 2, 3, 9, 17, 40, 100, 300, 700, 1500, longest - 20]))
                token_ids = rng.integers(0, VOCAB, length, dtype=np.int32)
                shared = int(rng.integers(0, length + 1)) if rng.random() < 0.5 else 0
                token_ids[:shared] = common[:shared]
                adapter = None
                if made.runner.lora is not None and rng.random() < 0.6:
                    lora_id = int(rng.integers(1, 3))
                    adapter = Adapter(f"adapter {lora_id}", lora_id, rank_of(lora_id))
                top_k, top_p = int(rng.choice([0, 5])), float(rng.choice([1, 0.9]))
                params = SamplingParams(temperature=float(rng.choice([0, 1])), top_k=top_k, top_p=top_p)
                made.engine.add_request(
                    str(added), Prompt(None, token_ids), params, max_tokens=int(rng.integers(1, 20)), adapter=adapter
                )
                added += 1
            for update in made.engine.step():
                assert update.error is None
            step += 1
    return variants


def told(variants: set[Variant]) -> str:
    return "\n".join(f"{name}: {key}" for name, key in sorted(variants))


@pytest.mark.parametrize(("name", "adapters"), CASES)
def test_requests_launch_nothing_new(name: str, adapters: bool) -> None:
    made = small(name, adapters)
    shapes = all_shapes(made.runner.sizes, made.kinds, made.budget, LORA_ID * adapters)
    known = warmed(made, shapes)
    used = served(made)
    assert not used - known, told(used - known)


# What serving would compile if a kind of shape were left out.
NEEDED = {
    "prefill": ("gpt-oss-20b", False, {"attend", "route", "into_experts", "out_of_experts"}),
    "decode": ("gpt-oss-20b", False, {"attend"}),
    "long": (NATIVE, False, {"attend", "combine"}),
    "snapshots": (NATIVE, False, {"ssd_snapshot"}),
    "adapters": (NATIVE, True, {"lora_shrink", "lora_expand"}),
}


@pytest.mark.parametrize("kind", NEEDED)
def test_no_kind_of_shape_can_be_left_out(kind: str) -> None:
    name, adapters, kernels = NEEDED[kind]
    made = small(name, adapters)
    shapes = all_shapes(made.runner.sizes, made.kinds, made.budget, LORA_ID * adapters)
    assert {shape.kind for shape in shapes} <= set(NEEDED)
    known = warmed(made, [shape for shape in shapes if shape.kind != kind])
    assert {kernel for kernel, _ in served(made) - known} == kernels


@pytest.mark.parametrize("name", ["Qwen3-VL-4B-Instruct", "gemma-3-4b-it"])
def test_images_change_no_variant(name: str) -> None:
    """So that none is needed: their levels, their positions, and that their tokens see each other."""
    model, count, place = decoder(name), 20, [4, 5, 6, 7]
    with META:
        caches = caches_for(model, 1)
        positions = torch.zeros(3, count, dtype=torch.int64) if name.startswith("Qwen") else None
        levels = 4 if name.startswith("Qwen") else 1
        embeddings = torch.zeros(len(place), levels * model._design.hidden_size, dtype=model.dtype)
    plain = context_for([list(range(count))], [0], [count], caches)
    plain = replace(plain, token_ids=plain.token_ids.to(META), positions=plain.positions.to(META))
    images = ImageTokens(torch.tensor(place).to(META), embeddings, np.array([[0, 4, 8]]))
    found = []
    for context in (plain, replace(plain, images=images, image_positions=positions)):
        with launches() as variants, torch.inference_mode():
            model.forward(context)
        found.append(variants)
    assert found[0] == found[1]


@pytest.mark.parametrize("max_model_len", [2, 3, 64])
def test_an_engine_compiles_them(
    max_model_len: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    setup = set_up(EngineArgs(model="tiny", max_model_len=max_model_len, memory="32MiB", enable_lora=True))
    with launches() as variants:
        warm_up(setup)
    assert {"attend", "write", "ssd_step", "measure", "lora_expand"} <= {kernel for kernel, _ in variants}
    assert "compiling kernels: 100%" in capsys.readouterr().err
    assert not caplog.records


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_OPS", "torch")
    made = small(NATIVE, adapters=True, dtype=torch.float32, decode_graphs=True)
    runner = made.runner
    before, pools = state_of(runner), [tensor.clone() for tensor in runner.caches.tensors()]
    run_shapes(runner, made.kinds, VOCAB, all_shapes(runner.sizes, made.kinds, made.budget, LORA_ID), "steps")
    assert state_of(runner) == before
    assert all(torch.equal(*pair) for pair in zip(runner.caches.tensors(), pools, strict=True))


def state_of(runner: ModelRunner) -> bytes:
    """Everything but pools and weights."""
    sites = [(site.filled, site.live) for site in runner._model.lora_sites]
    graphs = runner.graphs
    assert graphs is not None and runner.lora is not None
    held = (graphs.num_steps, vars(graphs.tables), vars(runner.lora)["_units"], sites)
    return pickle.dumps((runner.num_encoded_images, runner._requests, vars(runner.mirror), held))
