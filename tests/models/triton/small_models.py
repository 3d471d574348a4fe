"""Models of every kind of layer, with random weights and few layers, and engines over them; no checkpoint is read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hybrid.adapters.weights import AdapterWeights, LoraMatrices
from hybrid.engine import Engine
from hybrid.models.blueprint.model import Model
from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.weights import Weights
from hybrid.pools.sizing import Kinds, size_pools
from hybrid.runner.model_runner import ModelRunner
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.scheduler import Scheduler
from tests.runner.plans import small_config

CONFIGS = Path(__file__).parents[1] / "families/model_configs"
VOCAB = 61
SMALL: Mapping[str, Mapping[str, Any]] = {
    "Jamba-v0.1": {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4, "mamba_d_state": 8,
    },
    "Qwen3-Next-80B-A3B-Instruct": {
        "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4,
        "linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 16,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
        "intermediate_size": 48,
    },
    "gpt-oss-20b": {
        "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "num_hidden_layers": 2, "num_local_experts": 8,
    },
}  # fmt: skip
NATIVE = "hybrid_native"
NAMES = (NATIVE, *SMALL)


def small_model(name: str) -> Model:
    """The blueprint."""
    if name == NATIVE:
        return read_model(small_config("fsmM", max_position_embeddings=4096, sliding_window=600).to_dict())
    config = {**json.loads((CONFIGS / f"{name}.json").read_text()), **SMALL[name]}
    config |= {"vocab_size": VOCAB, "max_position_embeddings": 4096, "eos_token_id": 1, "pad_token_id": 0}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][: config["num_hidden_layers"]]
    config.pop("quantization_config", None)
    return replace(read_model(config), vision=None)


@dataclass(frozen=True, slots=True)
class Sources:
    """Adapters by number: rank 8 for the first and 24 for others, at every target."""

    targets: Mapping[str, tuple[int, ...]]
    max_lora_rank: int = 24

    def weights(self, lora_id: int) -> AdapterWeights:
        rank = rank_of(lora_id)
        modules = {
            name: LoraMatrices(torch.zeros(*stack, rank, inputs), torch.zeros(*stack, outputs, rank))
            for name, (*stack, outputs, inputs) in self.targets.items()
        }
        return AdapterWeights(rank, modules)


def rank_of(lora_id: int) -> int:
    return 8 if lora_id == 1 else 24


@dataclass(frozen=True, slots=True)
class Small:
    """An engine and what it is made of."""

    runner: ModelRunner
    engine: Engine
    kinds: Kinds
    budget: int


def small(
    name: str, adapters: bool = False, dtype: torch.dtype = torch.bfloat16, decode_graphs: bool | None = None
) -> Small:
    model = small_model(name)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: (torch.randn(shape, generator=generator) / 8).to(dtype) for name, shape in model.tensors().items()}
    decoder = Decoder(model, Weights(tensors, dtype, torch.device("cpu")))
    config = SchedulerConfig(max_num_batched_tokens=512)
    sizes = size_pools(
        decoder.spec,
        16 * 2**20,
        block_size=16,
        max_num_seqs=48,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=3000,
        lora_units=16 if adapters else 0,
    )
    targets = model.lora_targets() if adapters else {}
    sources = Sources(targets) if adapters else None
    runner = ModelRunner(decoder, sizes, "cpu", None, sources, targets, decode_graphs)
    kinds = Kinds.of(decoder.spec)
    return Small(runner, Engine(Scheduler(config, sizes, kinds), runner, None), kinds, config.max_num_batched_tokens)
