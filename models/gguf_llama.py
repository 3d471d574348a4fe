"""The llama architecture in GGUF: its metadata as a `config.json`, its tensors under the names of Hugging Face.

Source: llama.cpp's conversion (`convert_hf_to_gguf.py`, class LlamaModel) and key names (gguf-py, `constants.py`). It
stores the rows of query and key projections so that rope turns neighbouring pairs; here they go back to halves.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .blueprint.config_reader import ConfigReader, one_line, shown
from .blueprint.rope import read_rope
from .gguf_file import PLAIN, QUANTISED, GGUFFile
from .tensor_files import TensorEntry, TensorFiles

ARCHITECTURE = "llama"
ROPE_FACTORS = "rope_freqs.weight"  # what Llama 3 divides its frequencies by, [head_dim / 2]
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Everything of the architecture that is read below, or changes nothing.
_KEYS = frozenset(
    f"{ARCHITECTURE}.{key}"
    for key in (
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "expert_count",
        "expert_used_count",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "tensor_data_layout",
        "vocab_size",
    )
)
# Llama 3.1 to 3.3 differ in the factor only.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def config_of(file: GGUFFile) -> dict[str, Any]:
    """What a `config.json` would say. Raises ValueError naming the key and the value of what is not supported."""
    data = ConfigReader(file.metadata, "metadata")
    data.one_of("general.architecture", (ARCHITECTURE,))
    data.refuse("general.type", ("model",), "only whole models are read")
    data.refuse("split.count", (0, 1), "join its parts into one file first (llama-gguf-split --merge)")
    for name in data:
        if name.startswith(f"{ARCHITECTURE}.") and name not in _KEYS:
            raise ValueError(f"metadata.{one_line(name)} is {shown(data.get(name))}, which is not supported")

    def key(name: str) -> str:
        return f"{ARCHITECTURE}.{name}"

    data.refuse(key("expert_count"), (0,), "mixtures of experts are not read from GGUF")
    data.refuse(key("tensor_data_layout"), ("Meta AI original pth",), "only the usual order of rows is known")
    hidden, heads = data.integer(key("embedding_length")), data.integer(key("attention.head_count"))
    if key("attention.key_length") not in data:
        data.multiple(key("embedding_length"), hidden, key("attention.head_count"), heads)
    head_dim = data.integer(key("attention.key_length"), hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if (value := data.integer(key(name), head_dim)) != head_dim:
            raise data.error(key(name), value, f"the size of a head ({head_dim})")
    theta = data.positive(key("rope.freq_base"), 10000.0)
    vocabulary = data.entries("tokenizer.ggml.tokens", default=[])
    return {
        "model_type": "llama",
        "dtype": _dtype(file),
        "vocab_size": data.integer(key("vocab_size"), len(vocabulary) or None),
        "hidden_size": hidden,
        "intermediate_size": data.integer(key("feed_forward_length")),
        "num_hidden_layers": data.integer(key("block_count"), at_most=len(file.tensors)),
        "num_attention_heads": heads,
        "num_key_value_heads": data.integer(key("attention.head_count_kv"), heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": data.positive(key("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": data.integer(key("context_length")),
        "rope_parameters": {"rope_theta": theta, **_rope_scaling(file, data, theta, head_dim)},
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "eos_token_id": _eos_token_ids(data),
    }


def _dtype(file: GGUFFile) -> str:
    """Of the matrices. Quantised ones are those of models that were trained in bfloat16."""
    kinds = {entry.dtype for entry in file.tensors.values() if len(entry.shape) > 1}
    return "float32" if kinds <= {"F32"} else "float16" if kinds <= {"F32", "F16"} else "bfloat16"


def _eos_token_ids(data: ConfigReader) -> list[int]:
    """The tokens that end a text, a turn or a message."""
    names = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    return list(dict.fromkeys(data.integer(name, at_least=0) for name in names if name in data))


def _rope_scaling(file: GGUFFile, data: ConfigReader, theta: float, head_dim: int) -> Mapping[str, Any]:
    """How positions are stretched: not at all, all alike, or as Llama 3 does it, which is stored as factors."""
    kind_key, factor_key = (f"{ARCHITECTURE}.rope.scaling.{name}" for name in ("type", "factor"))
    kind = data.one_of(kind_key, ("none", "linear"), "linear" if factor_key in data else "none")
    old = f"{ARCHITECTURE}.rope.scale_linear"
    factor = data.positive(factor_key if factor_key in data else old, 1.0) if kind == "linear" or old in data else 1.0
    if ROPE_FACTORS not in file.tensors:
        return {"rope_type": "default"} if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    entry = file.tensors[ROPE_FACTORS]
    if entry.dtype != "F32" or entry.shape != (head_dim // 2,):
        raise ValueError(
            f"tensor {ROPE_FACTORS} has type {entry.dtype} and shape {list(entry.shape)}, "
            f"expected F32 and {[head_dim // 2]}"
        )
    factors = file.read(ROPE_FACTORS).double().numpy()
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA3}
    plain = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    if factor != 1.0 or not np.isfinite(factors).all() or factors.min() <= 0:
        raise ValueError(f"the rope scaling in tensor {ROPE_FACTORS} is not supported")
    rope = read_rope(ConfigReader({"rope_parameters": {"rope_theta": theta, **scaling}}), head_dim)
    if not np.allclose(rope.inverse_frequencies, plain / factors, rtol=1e-4, atol=0):
        raise ValueError(f"the rope scaling in tensor {ROPE_FACTORS} is not that of Llama 3, which alone is supported")
    return scaling


def hugging_face_name(name: str) -> str:
    """The name of a GGUF tensor on the hub; one that is not known keeps its name."""
    if name in _OUTER:
        return _OUTER[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _INNER:
        return f"model.layers.{parts[1]}.{_INNER[parts[2]]}.{parts[3]}"
    return name


class LlamaTensors(TensorFiles):
    """The tensors of a GGUF file of the llama architecture, by the names of Hugging Face. `config`: see `config_of`."""

    def __init__(self, file: GGUFFile, config: Mapping[str, Any]) -> None:
        self._file = file
        self._names = {hugging_face_name(name): name for name in file.tensors if name != ROPE_FACTORS}
        self._known = {theirs: ours for ours, theirs in _OUTER.items()}
        self._heads = {"q_proj": int(config["num_attention_heads"]), "k_proj": int(config["num_key_value_heads"])}
        entries: dict[str, TensorEntry] = {ours: file.tensors[name] for ours, name in self._names.items()}
        super().__init__(file.path, entries)

    def spelled(self, name: str) -> str:
        if name in self._names:
            return self._names[name]
        if not name.startswith("model.layers."):
            return self._known.get(name, name)
        _, _, layer, *inner, kind = name.split(".")
        ours = {theirs: ours for ours, theirs in _INNER.items()}[".".join(inner)]
        return f"blk.{layer}.{ours}.{kind}"

    def refuse_dtype(self, name: str) -> None:
        entry = self.entries[name]
        if entry.dtype not in PLAIN and entry.dtype not in QUANTISED:
            raise ValueError(
                f"{entry.path}: tensor {self.spelled(name)} has the quantisation {entry.dtype}, which is not "
                f"supported; supported are {', '.join((*PLAIN, *QUANTISED))}"
            )

    def read(self, name: str) -> torch.Tensor:
        tensor = self._file.read(self._names[name])
        heads = self._heads.get(name.split(".")[-2])
        return tensor if heads is None else halves(tensor, heads)


def halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k (a weight [heads * d, in] or a bias) from neighbouring pairs to rope's two halves of a head."""
    pairs: torch.Tensor = rows.unflatten(0, (heads, -1, 2))
    return pairs.transpose(1, 2).reshape(rows.shape)
