"""The oracle of a model family: a tiny random checkpoint made with transformers, and what transformers computes on it.

A family's cases lie in `cases/`, one file per model_type, each with `CASES: dict[str, Config]`: odd configurations by
name. Weights are large and random, so that every part of a layer matters and greedy tokens are decided clearly.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel

from . import cases

# Parameters whose distribution means something: their initial values are kept, with a little noise.
DYNAMICS = ("A_log", "dt_bias", "recurrent_param", "dt_proj.bias")
CORRECTIONS = ("e_score_correction_bias", "expert_bias", "layer_scalar")  # buffers that are part of a checkpoint


def all_cases() -> dict[str, PreTrainedConfig]:
    """`model_type: case` -> configuration, of all files in `cases/`."""
    found: dict[str, PreTrainedConfig] = {}
    for module in iter_modules(cases.__path__):
        for name, config in import_module(f"{cases.__name__}.{module.name}").CASES.items():
            found[f"{module.name}: {name}"] = config
    return found


def exporter(case: str) -> Callable[[Path], None] | None:
    """What brings a saved checkpoint into another format than transformers', where a file of cases says so."""
    export: Callable[[Path], None] | None = getattr(
        import_module(f"{cases.__name__}.{case.split(':')[0]}"), "export", None
    )
    return export


class Oracle:
    """transformers' model of a configuration, with random weights, saved as a checkpoint in `folder`."""

    def __init__(
        self, config: PreTrainedConfig, folder: Path, seed: int = 0, export: Callable[[Path], None] | None = None
    ) -> None:
        torch.manual_seed(seed)
        for text in (config, config.get_text_config()):
            text._attn_implementation = "eager"
            text._experts_implementation = "eager"
        auto: Any = AutoModelForImageTextToText if "vision_config" in config.sub_configs else AutoModelForCausalLM
        model: PreTrainedModel = auto.from_config(config, dtype=torch.float32).eval()
        randomise(model, seed, getattr(config, "weights_gain", 1.2))  # less where a case amplifies any rounding
        model.save_pretrained(folder, max_shard_size="60KB")
        if export is not None:
            export(folder)
        self.model = model
        self.folder = folder

    @cached_property
    def vocab_size(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    @torch.no_grad()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[tokens, vocab_size], without any cache."""
        output: Any = self.model(torch.tensor([list(token_ids)]), use_cache=False)
        logits: torch.Tensor = output.logits[0]
        return logits.float()

    def is_greedy(self, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
        """Whether at every position the best next token is the one that follows."""
        best = self.logits([*prompt, *tokens]).argmax(dim=-1)[len(prompt) - 1 : -1]
        return best.tolist() == list(tokens)


def saved_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, by their names in its files."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def rewrite(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """These tensors, in one file, instead of those that the folder holds."""
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", {"format": "pt"})


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int, gain: float = 1.2) -> None:
    """Mutates: large random weights of about unit gain."""
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in model.named_buffers():
        if name.endswith(CORRECTIONS):
            buffer.add_(0.2 * torch.randn(buffer.shape, generator=generator))
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("linear_attn.A_log"):
            parameter.copy_(0.7 * noise - 2)  # transformers' own forget nearly everything at once
        elif name.endswith(DYNAMICS) or (parameter.ndim == 1 and "norm" in name):
            parameter.add_(0.2 * noise)
        elif "embed" in name:
            parameter.copy_(noise)
        elif parameter.ndim > 1:
            fan_in = parameter.shape[-1] if parameter.ndim == 2 else parameter[0].numel() / parameter.shape[-2]
            parameter.copy_(gain * noise / max(1.0, fan_in) ** 0.5)
        else:
            parameter.add_(0.3 * noise)
