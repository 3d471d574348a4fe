"""Real PEFT adapters of tiny transformers models, and the change of every weight that PEFT itself computes."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hybrid.adapters.weights import LoraMatrices

OTHERS = re.compile(r"vision|visual|multi_modal|connector")  # modules of what sees images


def tiny_llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    untyped: Any = LlamaForCausalLM
    model: LlamaForCausalLM = untyped(LlamaConfig(**(sizes | changes)))
    return model


LLAMA_TARGETS: dict[str, tuple[int, ...]] = {
    **{
        f"model.layers.{layer}.{name}": shape
        for layer in range(3)
        for name, shape in (
            ("self_attn.q_proj", (16, 16)),
            ("self_attn.k_proj", (8, 16)),
            ("self_attn.v_proj", (8, 16)),
            ("self_attn.o_proj", (16, 16)),
            ("mlp.gate_proj", (24, 16)),
            ("mlp.up_proj", (24, 16)),
            ("mlp.down_proj", (16, 24)),
        )
    },
    "model.embed_tokens": (16, 40),
    "lm_head": (40, 16),
}


def decoder_modules(model: PreTrainedModel) -> list[str]:
    """Names of all modules of the text decoder that PEFT can adapt."""
    kinds = (nn.Linear, nn.Embedding)
    return [name for name, part in model.named_modules() if isinstance(part, kinds) and not OTHERS.search(name)]


def expert_parameters(model: PreTrainedModel) -> list[str]:
    """Stacked experts, as `target_parameters` names them."""
    found = {
        name.rpartition(".")[2] for name, entry in model.named_parameters() if entry.ndim == 3 and ".experts." in name
    }
    return [f"experts.{name}" for name in sorted(found)]


@contextmanager
def _any_module() -> Iterator[None]:
    """PEFT refuses out_proj of some models with Mamba, whose training it breaks; other ways of training do not."""
    with patch("peft.tuners.tuners_utils._check_lora_target_modules_mamba"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save_adapter(model: PreTrainedModel, folder: Path, **options: Any) -> PeftModel:
    """An adapter with random matrices, saved in `folder`; the model is changed. options: of LoraConfig."""
    torch.manual_seed(1)
    with _any_module():
        adapted = get_peft_model(model, LoraConfig(**({"init_lora_weights": False} | options)))
        adapted.save_pretrained(str(folder))
    assert isinstance(adapted, PeftModel)
    return adapted


def deltas(adapted: PeftModel, adapter: str = "default") -> dict[str, torch.Tensor]:
    """Module (or parameter) -> what PEFT adds to its weight, in the weight's own orientation."""
    found = {}
    for name, part in adapted.get_base_model().named_modules():
        if hasattr(part, "get_delta_weight") and adapter in part.scaling:
            plain = name.replace(".base_layer", "")
            parameter = getattr(part, "parameter_name", "weight")
            found[plain if parameter == "weight" else f"{plain}.{parameter}"] = part.get_delta_weight(adapter).detach()
    return found


def product(matrices: LoraMatrices) -> torch.Tensor:
    """[out, in] or [E, out, in]."""
    return matrices.b @ matrices.a
