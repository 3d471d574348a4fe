"""PEFT folders written by hand, for tests that need names and shapes and no model."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_adapter(folder: Path, modules: Mapping[str, tuple[int, ...]], rank: int = 4, seed: int = 0) -> Path:
    """An adapter of these plain modules, name -> (out, in)."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outputs, inputs) in modules.items():
        for which, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            tensors[f"base_model.model.{name}.lora_{which}.weight"] = torch.randn(shape, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": sorted(modules)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
