"""What a user names as a model -> its blueprint, from `config.json` alone: no weights, no torch.

Knows files; a GGUF header is read by `hybrid.models.loading`, which needs torch, so it is refused here.
"""

import json
from math import prod
from pathlib import Path

from hybrid.checkpoints import find_checkpoint
from hybrid.models.blueprint.model import Model
from hybrid.models.families import read_model
from hybrid.pools.specs import dtype_bytes


def open_model(name: str | Path) -> Model:
    """name: a config.json, a folder, or whatever else `find_checkpoint` takes. Raises ValueError: one sentence."""
    path = Path(name)
    if path.suffix != ".json":
        path = find_checkpoint(name)
        if path.is_file():
            raise ValueError(f"{path} is no folder with a config.json, from which alone capacity is planned")
        path /= "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object")
    try:
        return read_model({key: value for key, value in config.items() if key != "quantization_config"})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def num_parameters(model: Model) -> int:
    """Elements of everything that a checkpoint must hold."""
    return sum(prod(shape) for shape in model.tensors().values())


def weight_bytes(model: Model, dtype: str) -> int:
    """Bytes of the weights in `dtype`. Raises ValueError for an unknown dtype."""
    return num_parameters(model) * dtype_bytes(dtype)
