"""Loading: config.json + model.safetensors -> configuration and checked tensors.

Everything that can be wrong with a folder is one ValueError sentence that names the key, the tensor and the shapes.
Pickle files are never opened.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .native_config import MODEL_TYPE, NativeConfig
from .native_tensors import Shape, tensor_shapes

WEIGHTS = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
NAMED_AT_MOST = 3  # tensors that one error sentence lists


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder that was read and checked: every tensor of the architecture, of the right shape, finite."""

    config: NativeConfig
    tensors: Mapping[str, torch.Tensor]

    @property
    def dtype(self) -> torch.dtype:
        """`torch_dtype` of the configuration."""
        dtype = getattr(torch, self.config.torch_dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


def read_checkpoint(directory: str | Path) -> Checkpoint:
    """Read and check a folder. Raises ValueError with one sentence for whatever is wrong with it."""
    folder = Path(directory)
    config = read_config(folder)
    return Checkpoint(config, _read_tensors(_weights_file(folder), tensor_shapes(config)))


def read_config(directory: str | Path) -> NativeConfig:
    """`config.json` alone, without touching weights. Raises ValueError."""
    path = Path(directory) / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} holds no config.json") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a JSON {type(data).__name__}, not an object")
    if data.get("model_type") != MODEL_TYPE:
        raise ValueError(f"{path}: model_type {data.get('model_type')!r} is not supported; supported is {MODEL_TYPE!r}")
    try:
        return NativeConfig.from_dict(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _weights_file(folder: Path) -> Path:
    path = folder / WEIGHTS
    if path.is_file():
        return path
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
    if pickles:
        raise ValueError(
            f"{folder} holds pickle weights ({pickles[0]}), which can run code when read; convert them to {WEIGHTS}"
        )
    raise ValueError(f"{folder} holds no {WEIGHTS}")


def _read_tensors(path: Path, expected: Mapping[str, Shape]) -> dict[str, torch.Tensor]:
    """Tensor by tensor, names and shapes first, so that a wrong file fails before its gigabytes are read."""
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            _refuse_names("lacks", set(expected) - names, path)
            _refuse_names("holds unknown", names - set(expected), path)
            for name, shape in expected.items():
                found = tuple(file.get_slice(name).get_shape())
                if found != shape:
                    raise ValueError(f"{path}: tensor {name} has shape {list(found)}, expected {list(shape)}")
            return {name: _checked(name, file.get_tensor(name), path) for name in expected}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from None


def _refuse_names(what: str, names: set[str], path: Path) -> None:
    if not names:
        return
    listed = ", ".join(sorted(names)[:NAMED_AT_MOST])
    more = f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else ""
    raise ValueError(f"{path} {what} tensor{'s' if len(names) > 1 else ''} {listed}{more}")


def _checked(name: str, tensor: torch.Tensor, path: Path) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.itemsize < 2:  # 8-bit floats mean nothing without their scales
        found = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"{path}: tensor {name} holds {found} values, expected floating point of 16 bits or more")
    wrong = tensor.numel() - int(torch.isfinite(tensor).sum())
    if wrong:
        raise ValueError(f"{path}: tensor {name} holds {wrong} values that are NaN or infinite")
    return tensor
