"""Old spellings of a configuration mean what transformers reads in them; what is not supported is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from hybrid.models.families import read_model
from hybrid.runner.loading import load
from tests.models.forward import chunked_logits

from .oracle import Oracle, all_cases, rewrite, saved_tensors

Config = dict[str, Any]
SIZES: Config = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 52,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 1.2}
COHERE2: Config = {
    "use_qk_norm": False,
    "use_parallel_block": True,
    "use_gated_activation": True,
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "order_of_interleaved_layers": "local_attn_first",
}
GPT_OSS: Config = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "experts_per_token": 2,
    "swiglu_limit": 7.0,
    "hidden_act": "silu",
    "rope_theta": 150000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 40},
}
# model_type and why -> keys beside `SIZES` as published files have them
OLD: dict[tuple[str, str], Config] = {
    ("llama", "plain"): {"rope_theta": 500000.0, "rope_scaling": None, "head_dim": 8},
    ("llama", "scaled"): {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ("qwen2", "window off"): {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 2},
    ("qwen2", "window on"): {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    ("qwen2", "window on, of default size"): {"use_sliding_window": True, "max_window_layers": 0},
    ("qwen2", "window on, no size"): {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 2},
    ("qwen2", "yarn"): {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    ("qwen2", "yarn, context of the whole"): {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    ("qwen3", "head_dim of default size"): {"rope_theta": 1000000, "sliding_window": None},
    ("smollm3", "interval"): {"no_rope_layer_interval": 3, "rope_theta": 5000000.0},
    ("smollm3", "all by default"): {},
    ("smollm3", "list longer than the model"): {"no_rope_layers": [1, 0] * 5, "use_sliding_window": False},
    ("smollm3", "windows"): {"no_rope_layers": [1, 0] * 5, "use_sliding_window": True, "sliding_window": 16},
    ("granite", "all by default"): {"rope_theta": 10000000.0},
    ("mistral", "window"): {"sliding_window": 16},
    ("mistral", "no window"): {"sliding_window": None},
    ("mistral", "window by default"): {},
    ("gemma2", "all by default"): {"hidden_act": "gelu_pytorch_tanh"},
    ("gemma2", "no caps"): {"attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 8},
    ("gemma3_text", "all by default"): {},
    ("gemma3_text", "pattern"): {"sliding_window_pattern": 3, "rope_local_base_freq": 77.0, "rope_theta": 555.0},
    ("gemma3_text", "scaled"): {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 16},
    ("cohere2", "all by default"): COHERE2,
    ("cohere2", "pattern"): {"sliding_window_pattern": 2, "rope_theta": 50000, "sliding_window": 16, "head_dim": 10},
    ("olmo3", "all by default"): {},
    ("olmo3", "yarn"): {"rope_theta": 500000, "rope_scaling": YARN, "sliding_window": 16},
    ("gpt_oss", "yarn"): GPT_OSS,
}
REFUSED: list[tuple[str, Config, str]] = [
    ("gpt_oss", GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}}, "quant_method 'mxfp4'"),
    ("gpt_oss", GPT_OSS | {"swiglu_limit": 5.0}, "swiglu_limit is 5.0"),
    ("gpt_oss", GPT_OSS | {"experts_per_token": 3}, "experts_per_token is 3"),
    ("gpt_oss", GPT_OSS | {"rope_scaling": None}, "rope_parameters is missing"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 7, "sliding_window": 9}, "use_sliding_window must be true"),
    ("qwen2", {"layer_types": ["full_attention", "linear_attention"] * 3}, "layer_types must be a list of 7 entries"),
    ("qwen2", {"layer_types": ["linear_attention"] * 7}, r"layer_types\[0\] must be one of"),
    ("qwen2", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type must be one of"),
    ("qwen2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1, got 0.5"),
    ("qwen2", {"is_causal": False}, "is_causal is False"),
    ("qwen3", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "has an entry 'full_attention'"),
    ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers must be at least 7"),
    ("mistral", {"layer_types": ["full_attention"] * 7}, "layer_types is"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ("gemma2", {"sliding_window": None}, "sliding_window must be an integer"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    ("gemma3_text", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters.full_attention is missing"),
    ("cohere2", {"use_qk_norm": True}, "use_qk_norm is True"),
    ("olmo3", {"rope_theta": 10000.0}, "rope_theta is 10000.0"),
    ("llama", {"hidden_act": "mish"}, "hidden_act must be one of"),
]


@pytest.mark.parametrize(("model_type", "case"), OLD)
def test_old_spellings(model_type: str, case: str) -> None:
    """The blueprint of the old file is that of the file which transformers saves after reading the old one."""
    old = {"model_type": model_type, **SIZES, **OLD[model_type, case]}
    saved = json.loads(AutoConfig.for_model(**json.loads(json.dumps(old))).to_json_string())
    assert read_model(old) == read_model(saved)


@pytest.mark.parametrize(("model_type", "keys", "why"), REFUSED)
def test_refused(model_type: str, keys: Config, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        read_model({"model_type": model_type, **SIZES, **keys})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("case", ["qwen3: tied", "lfm2: conv, conv, attention, conv", "zamba2: two blocks"])
def test_a_tied_checkpoint_with_a_head(tmp_path: Path, case: str, copied: bool) -> None:
    """A copy of the embedding is no second table; anything else counts, as in transformers. In every family."""
    oracle = Oracle(all_cases()[case], tmp_path)
    tensors = saved_tensors(tmp_path)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.clone() if copied else embedding.flip(0).contiguous()
    rewrite(tmp_path, tensors)
    loaded = load(tmp_path, torch.float32)
    assert (loaded.model.decoder.head is None) == copied
    model = type(oracle.model).from_pretrained(tmp_path, dtype=torch.float32)
    tokens = list(range(2, 22))
    with torch.no_grad():
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0]
    torch.testing.assert_close(chunked_logits(loaded.decoder, [tokens], [[20]])[0], expected, rtol=1e-4, atol=1e-4)
