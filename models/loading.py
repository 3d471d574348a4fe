"""Loading: a checkpoint folder or GGUF file -> a blueprint and a source of checked tensors, read one by one.

Everything that can be wrong with it is one ValueError sentence that names the key, the tensor and the shapes. Pickle
files are never opened.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .blueprint.config_reader import ConfigReader
from .blueprint.json_object import read_json
from .blueprint.model import Model
from .blueprint.preprocessor import read_preprocessor
from .families import read_model
from .gguf_file import GGUFFile
from .gguf_llama import LlamaTensors, config_of
from .safetensors_files import SafetensorsFiles
from .tensor_files import TensorFiles

GGUF = ".gguf"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was read: its configuration, tensor names and shapes were checked. `tensors` reads on demand.

    config: the `config.json` of a folder, for what is built from it beside the decoder.
    """

    model: Model
    config: Mapping[str, Any]
    tensors: TensorFiles

    @property
    def dtype(self) -> torch.dtype:
        """The configuration's."""
        dtype = getattr(torch, self.model.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


def open_checkpoint(checkpoint: str | Path) -> Checkpoint:
    """Read the configuration and the tensors' names and shapes. Raises ValueError: one sentence for what is wrong.

    checkpoint: a folder with `config.json` and safetensors, or a GGUF file.
    """
    path = Path(checkpoint)
    tensors: TensorFiles
    if path.suffix == GGUF:
        model, file, config = _read_gguf(path)
        tensors = LlamaTensors(file, config)
    else:
        config = _config(path)
        model = _of_folder(path, config)
        tensors = SafetensorsFiles(path, model.prefixes)
    model = _with_own_head(model, tensors).as_stored(tensors.shapes)
    tensors.check(model.tensors(), model.ignored)
    return Checkpoint(model, config, tensors)


def read_config(checkpoint: str | Path) -> Model:
    """The configuration alone, without touching weights. Raises ValueError."""
    folder = Path(checkpoint)
    if folder.suffix == GGUF:
        return _read_gguf(folder)[0]
    return _of_folder(folder, _config(folder))


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    if config is None:
        raise ValueError(f"{folder} holds no config.json")
    return config


def _of_folder(folder: Path, config: dict[str, Any]) -> Model:
    preprocessor = read_preprocessor(folder) if "vision_config" in config else None
    return _blueprint(folder / "config.json", config, preprocessor)


def _read_gguf(path: Path) -> tuple[Model, GGUFFile, dict[str, Any]]:
    file = GGUFFile(path)
    try:
        config = config_of(file)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: {error}") from None
    return _blueprint(path, config), file, config


def _blueprint(path: Path, config: dict[str, Any], preprocessor: ConfigReader | None = None) -> Model:
    try:
        return read_model(config, preprocessor=preprocessor)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _with_own_head(model: Model, tensors: TensorFiles) -> Model:
    """Some checkpoints hold a head although the configuration ties it. Where it is no copy of the embedding, it counts
    (as in transformers); a copy is ignored."""
    decoder, head = model.decoder, model.decoder.tied_head
    if head is None or head not in tensors.entries or decoder.embedding not in tensors.entries:
        return model
    if torch.equal(tensors[head], tensors[decoder.embedding]):
        return replace(model, ignored=(*model.ignored, re.escape(head)))
    return replace(model, decoder=replace(decoder, head=head))
