"""Writes GGUF files of the llama architecture as llama.cpp's conversion does, for tests: any part can be made wrong."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models.families.oracle import randomise

ARCH = "llama"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Array = np.ndarray[Any, Any]


def kind_of(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


def rope_of(config: LlamaConfig) -> dict[str, Any]:
    return cast(dict[str, Any], config.rope_parameters)


def random_llama(config: LlamaConfig, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model: LlamaForCausalLM = cast(Any, LlamaForCausalLM)(config).eval()
    randomise(model, seed)
    return model


def tensors_of(model: LlamaForCausalLM) -> dict[str, Array]:
    """Under GGUF's names, rows of q and k in neighbouring pairs."""
    found = {}
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        stem, _, kind = name.rpartition(".")
        at = ""
        if stem.startswith("model.layers."):
            _, _, layer, stem = stem.split(".", 3)
            at = f"blk.{layer}."
        array = tensor.float().numpy()
        if NAMES[stem] in heads:
            halves = array.reshape(heads[NAMES[stem]], 2, -1, *array.shape[1:])
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        found[f"{at}{NAMES[stem]}.{kind}"] = array
    return found


def metadata_of(config: LlamaConfig) -> dict[str, Any]:
    """Keys of the architecture, without its name in front."""
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(rope_of(config)["rope_theta"]),
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }


def write(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Array],
    *,
    kind: str = "F32",
    tokens: Mapping[str, Any] | None = None,
    others: Mapping[str, Any] | None = None,
    arch: str = ARCH,
) -> Path:
    """metadata: of the architecture; tokens: under `tokenizer.`; others: whole keys. kind: of all matrices."""
    writer = gguf.GGUFWriter(path, arch)
    keys = {f"{arch}.{key}": value for key, value in metadata.items()}
    keys |= {f"tokenizer.{key}": value for key, value in (tokens or {}).items()} | dict(others or {})
    for key, value in keys.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, array in tensors.items():
        if array.dtype == np.float32 and array.ndim > 1 and kind != "F32":
            writer.add_tensor(name, gguf.quants.quantize(array, kind_of(kind)), raw_dtype=kind_of(kind))
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_tokens(merges: Sequence[str] = (), special: Sequence[str] = (), pre: str = "gpt-2") -> dict[str, Any]:
    """A byte-level vocabulary: 256 bytes, what the merges make, special tokens. Keys as `write` takes them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    words = [characters[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in merges]
    return {
        "ggml.model": "gpt2",
        "ggml.pre": pre,
        "ggml.tokens": [*words, *special],
        "ggml.token_type": [1] * len(words) + [3] * len(special),
        "ggml.merges": list(merges) or ["a b"],
    }
