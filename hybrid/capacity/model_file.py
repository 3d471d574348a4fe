"""What a user names as a model -> its blueprint, from JSON files alone: no weights, no torch.

Knows files. A GGUF file is read through its header, for which torch is imported then.
"""

import json
from math import prod
from pathlib import Path
from typing import Any

from hybrid.checkpoints import find_checkpoint
from hybrid.models.blueprint.model import Model
from hybrid.models.blueprint.preprocessor import read_preprocessor
from hybrid.models.families import read_model
from hybrid.pools.specs import dtype_bytes

QUANTISED = "quantization_config"
FILES = ("config.json", "preprocessor_config.json", "processor_config.json")  # the first is required


def open_model(name: str | Path) -> Model:
    """name: a config.json, a folder, a GGUF file, or whatever else `find_checkpoint` takes. Raises ValueError.

    Of a model of the hub nothing but FILES is fetched. Weights may be quantised, which loading refuses: see
    `quant_method`.
    """
    path = _find(name)
    if path.suffix != ".json":
        from hybrid.models.loading import read_config

        return read_config(path)
    read = _read(path)
    try:
        config = {key: value for key, value in read.items() if key != QUANTISED}
        return read_model(config, preprocessor=read_preprocessor(path.parent) if path.name == FILES[0] else None)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def quant_method(name: str | Path) -> str | None:
    """How the weights of such a model are quantised, where the engine does not load them. Raises ValueError."""
    path = _find(name)
    quantised = _read(path).get(QUANTISED) if path.suffix == ".json" else None
    if quantised is None:
        return None
    return str(quantised.get("quant_method", "unknown")) if isinstance(quantised, dict) else str(quantised)


def _find(name: str | Path) -> Path:
    """Its config.json or GGUF file. Raises ValueError."""
    if Path(name).suffix == ".json":
        return Path(name)
    path = find_checkpoint(name, files=FILES)
    return path if path.is_file() else path / FILES[0]


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object")
    return config


def num_parameters(model: Model) -> int:
    """Elements of everything that a checkpoint must hold."""
    return sum(prod(shape) for shape in model.tensors().values())


def weight_bytes(model: Model, dtype: str) -> int:
    """Bytes of the weights in `dtype`. Raises ValueError for an unknown dtype."""
    return num_parameters(model) * dtype_bytes(dtype)
