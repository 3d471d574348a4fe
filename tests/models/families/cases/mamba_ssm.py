"""The authors' own format of Mamba-2 and Mamba-1: what transformers saved, with other names and keys."""

import json
from pathlib import Path
from typing import Any

from transformers import Mamba2Config, MambaConfig

from ..oracle import rewrite, saved_tensors

SMALL: dict[str, Any] = {"vocab_size": 96, "num_hidden_layers": 3, "eos_token_id": 1, "residual_in_fp32": True}
CASES = {
    "mamba2": Mamba2Config(
        **SMALL,
        hidden_size=20,
        expand=3,
        num_heads=5,
        head_dim=12,
        state_size=10,
        n_groups=1,
        conv_kernel=3,
        tie_word_embeddings=True,
    ),
    "mamba2, biases, untied": Mamba2Config(
        **SMALL, hidden_size=18, num_heads=3, head_dim=12, state_size=6, n_groups=1, use_bias=True, use_conv_bias=False
    ),
    "mamba1": MambaConfig(**SMALL, hidden_size=36, state_size=6, conv_kernel=3, tie_word_embeddings=True),
}


def export(folder: Path) -> None:
    """Rewrites the folder."""
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    ssm = {
        "d_state": saved["state_size"],
        "d_conv": saved["conv_kernel"],
        "expand": saved["expand"],
        "bias": saved["use_bias"],
        "conv_bias": saved["use_conv_bias"],
    }
    if saved["model_type"] == "mamba2":
        ssm |= {"layer": "Mamba2", "headdim": saved["head_dim"], "ngroups": saved["n_groups"]}
    config = {
        "d_model": saved["hidden_size"],
        "n_layer": saved["num_hidden_layers"],
        "vocab_size": saved["vocab_size"] - 3,
        "pad_vocab_size_multiple": 8,
        "ssm_cfg": ssm,
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "tie_embeddings": saved["tie_word_embeddings"],
    }
    tensors = saved_tensors(folder)
    embedding = tensors.pop("backbone.embeddings.weight")
    tensors["backbone.embedding.weight"] = embedding
    tensors.setdefault("lm_head.weight", embedding.clone())
    rewrite(folder, tensors)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
