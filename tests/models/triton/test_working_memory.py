"""What steps hold on a GPU, as it is counted from the blueprint, beside the tensors of steps of the published models:
tensors without values, kernels that are not run, so that everything allocates what it would."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from hybrid.capacity.sizing.working_memory import (
    BLOCK,
    GRAPH_BYTES,
    LEAST_SPLITS,
    MOST_GRAPH_ROWS,
    PROGRAMS,
    SAMPLING,
    WorkingMemory,
    encoder_bytes,
    layer_bytes,
    working_memory,
)
from hybrid.checkpoints import find_checkpoint
from hybrid.encoders.transformers_encoder import TransformersEncoder
from hybrid.models.context import DecodeContext
from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.ops.triton import decode_attention
from hybrid.models.ops.triton.recurrent_tables import LONG_BLOCK
from hybrid.models.weights import Weights
from hybrid.runner import decode_graphs
from hybrid.runner.loading import load
from hybrid.runner.row_mirror import RowMirror
from hybrid.runner.sampler import sample
from hybrid.runner.sampling_columns import token_bias
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.config import SchedulerConfig
from tests.models.forward import caches_for, context_for
from tests.models.triton.launches import launches
from tests.models.triton.live_bytes import LiveBytes
from tests.models.triton.test_without_values import CONFIGS, META
from tests.runner.plans import runner_sizes

# Every kind of layer; and of float32 streams, gates, shared blocks, experts with and without a latent width.
MODELS = (
    "Falcon-H1-7B", "Falcon-Mamba-7B", "Jamba-v0.1", "LFM2-1.2B", "Llama-3.1-8B", "Nemotron-3-Nano-30B-A3B",
    "Nemotron-H-8B-Base-8K", "Qwen3-Next-80B-A3B-Instruct", "Qwen3.5-27B", "SmolVLM-256M-Instruct", "Zamba2-2.7B",
    "gemma-3-4b-it", "gemma-4-26B-A4B", "gpt-oss-20b",
)  # fmt: skip
BATCHES: dict[str, Sequence[int]] = {
    "a chunk beside decodes": (*[1] * 48, 2000),
    "many short chunks": (*[2] * 63, 900),
    "decodes": [1] * 128,
}
FIRST = 8  # layers, among which are some of every kind
MAX_BLOCKS = 512  # of a row
GRIFFIN = {
    "model_type": "recurrent_gemma", "vocab_size": 97, "hidden_size": 640, "intermediate_size": 1920,
    "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1, "attention_window_size": 512,
    "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 2, "lru_width": 1920, "conv1d_width": 4, "head_dim": 128,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "block_types": ["recurrent"] * 3,
    "hidden_activation": "gelu_pytorch_tanh", "logits_soft_cap": 30.0, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_OPS", "triton")


def read(name: str) -> Any:
    config: dict[str, Any] = dict(GRIFFIN) if name == "griffin" else json.loads((CONFIGS / f"{name}.json").read_text())
    config.pop("quantization_config", None)
    model = read_model(config)
    return replace(model, vision=None, decoder=replace(model.decoder, layers=model.decoder.layers[:FIRST]))


def built(model: Any, dtype: torch.dtype) -> Decoder:
    tensors = {name: torch.empty(shape, dtype=dtype, device=META) for name, shape in model.tensors().items()}
    return Decoder(model, Weights(tensors, dtype, META))


def held(decoder: Decoder, counts: Sequence[int]) -> int:
    """Most bytes at one time in a forward pass over chunks of so many tokens, behind one computed token where it is
    one."""
    computed = [9 if count == 1 else 0 for count in counts]
    with META:
        caches = caches_for(decoder, len(counts))
    rows = [[0] * (before + count) for before, count in zip(computed, counts)]
    context = context_for([row[:64] + [0] * max(0, len(row) - 64) for row in rows], computed, list(counts), caches)
    context = replace(context, token_ids=context.token_ids.to(META), positions=context.positions.to(META))
    with torch.inference_mode(), launches():
        decoder.forward(context)  # keeps what is kept
        with LiveBytes() as live:
            decoder.forward(context)
    peak: int = live.peak
    return peak


@pytest.mark.parametrize("name", [*MODELS, "griffin"])
def test_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never too little, and at most a quarter too much."""
    monkeypatch.setattr("tests.models.forward.MAX_BLOCKS", MAX_BLOCKS)
    model = read(name)
    decoder = built(model, torch.bfloat16)
    num_tables = bool(decoder.spec.full_bytes_per_token) + bool(decoder.spec.sliding_window)
    for says, counts in BATCHES.items():
        counted = layer_bytes(model, sum(counts), sum(count > 1 for count in counts), 2)
        measured = held(decoder, counts)
        measured -= len(counts) * MAX_BLOCKS * 4 * num_tables  # tables, counted by themselves
        assert measured < counted < 1.25 * measured, (says, measured, counted)


def test_a_graph() -> None:
    """The decode steps that it holds allocate no more than what is counted for its layers and for split keys."""
    model, rows = read("Falcon-H1-7B"), 64
    decoder = built(model, torch.bfloat16)
    with META:
        caches = caches_for(decoder, rows)
        token_ids, positions, lines = torch.zeros(3, rows, dtype=torch.int64)
        table = torch.zeros((rows + 1, 4000), dtype=torch.int32)
        slots = torch.zeros(rows + 1, dtype=torch.int64)
        context = DecodeContext(token_ids, positions, lines, table, table, slots, caches)
    with torch.inference_mode(), launches():
        decoder.forward(context)
        with LiveBytes() as live:
            decoder.forward(context)
    count = partial(
        working_memory, model, "bfloat16", SchedulerConfig(), max_num_seqs=rows, max_model_len=4000, block_size=16
    )
    counted, without = count(), count(graphs=False)
    own = counted.graphs - (4 + rows // 8) * (GRAPH_BYTES + rows * model.decoder.hidden_size * 4)
    assert without.graphs == 0 and counted.layers == without.layers
    # the largest GPU runs more programs than the one that the interpreter stands for
    assert live.peak < own < 12 * live.peak


@pytest.mark.parametrize("everything", [False, True])
def test_sampling(everything: bool) -> None:
    rows, vocab = 12, 50000
    params = SamplingParams(temperature=1.0)
    if everything:
        params = SamplingParams(
            temperature=1.0, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.1,
            frequency_penalty=0.2, logprobs=5, logit_bias={3: 1.0},
        )  # fmt: skip
    mirror = RowMirror(runner_sizes())
    for row in range(rows):
        mirror.sampling.set(row, params, row, token_bias(params, [1], vocab))
        mirror.num_tokens[row], mirror.num_prompt_tokens[row] = 20, 10
    with launches(), torch.inference_mode(), LiveBytes() as live:
        sample(torch.zeros(rows, vocab), np.arange(rows), np.full(rows, 20), mirror)
    counted = SAMPLING * rows * vocab
    assert live.peak <= counted
    assert not everything or counted < 1.1 * live.peak


@pytest.mark.parametrize("count", [1, 7])
def test_images(count: int) -> None:
    """The bundled tower, on the CPU that there is."""
    loaded = load(find_checkpoint("tiny"), torch.float32)
    assert loaded.encoder is not None and loaded.model.vision is not None
    tower: Any = loaded.encoder
    side = tower.tower.sizes.image_size
    pixels = torch.zeros(count, 3, side, side)
    with torch.inference_mode(), LiveBytes() as live:
        tower.tower(pixels)
    counted = encoder_bytes(loaded.model, count * loaded.model.vision.tokens.most, 4)
    assert live.peak < counted < 3 * live.peak


def test_images_of_a_published_tower() -> None:
    config = json.loads((CONFIGS / "gemma-3-4b-it.json").read_text())
    config["vision_config"]["num_hidden_layers"] = 2
    model = read_model(config)
    assert model.vision is not None
    shapes = model.vision.tensors
    encoder = TransformersEncoder(config, lambda name: torch.empty(shapes[name], dtype=torch.bfloat16, device=META))
    tower: Any = encoder.model
    with torch.inference_mode(), LiveBytes() as live:
        pixels = torch.empty(4, 3, 896, 896, device=META).to(torch.bfloat16)
        tower.get_image_features(pixels, return_dict=True)
    assert live.peak < encoder_bytes(model, 4 * model.vision.tokens.most, 2) < 1.6 * live.peak


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "gemma-3-4b-it"])
def test_split_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that runs as many programs as any."""
    monkeypatch.setattr("tests.models.forward.MAX_BLOCKS", 2000)
    monkeypatch.setattr("hybrid.models.ops.triton.attention.num_programs", lambda device: PROGRAMS)
    model = read(name)
    decoder = built(model, torch.bfloat16)
    for computed, counts in (([7000] * 200, [1] * 200), ([7000], [900]), ([7000, 6000, 3000], [700, 80, 40])):
        with META:
            caches = caches_for(decoder, len(counts))
        rows = [[0] * sum(both) for both in zip(computed, counts)]
        context = context_for(rows, computed, counts, caches)
        context = replace(context, token_ids=context.token_ids.to(META), positions=context.positions.to(META))
        with torch.inference_mode(), launches():
            decoder.forward(context)
    ops: Any = decoder._ops
    most = sum(buffer.nbytes for buffer in ops._workspace._buffers.values())
    config = SchedulerConfig()
    counted = working_memory(model, "bfloat16", config, max_num_seqs=256, max_model_len=8000, block_size=4)
    assert most < counted.scratch < 8 * most  # tiles are smaller where shared memory is, as it is here


def test_numbers_of_the_kernels() -> None:
    assert (BLOCK, MOST_GRAPH_ROWS, LEAST_SPLITS) == (LONG_BLOCK, decode_graphs.MOST_ROWS, decode_attention.SPLITS)
    assert len(decode_graphs.batch_sizes(512)) <= 4 + 512 // 8


def test_what_comes_one_after_the_other_uses_the_same_memory() -> None:
    made = WorkingMemory(layers=1000, sampling=3000, encoder=2000, scratch=40, tables=5, graphs=0)
    assert made.total == 3045
    assert str(made) == ("3,045 bytes (layers 1,000, sampling 3,000, images 2,000, split keys 40, block tables 5)")
