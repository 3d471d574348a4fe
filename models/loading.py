"""Loading: config.json + safetensors -> a blueprint and a source of checked tensors, read one by one.

Everything that can be wrong with a folder is one ValueError sentence that names the key, the tensor and the shapes.
Pickle files are never opened.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from .blueprint.model import Model
from .blueprint.parts import Shape
from .families import read_model

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
NAMED_AT_MOST = 3  # tensors that one error sentence lists
REOPEN_BYTES = 128 << 20  # a file is mapped into memory while it is open: after so many bytes it is opened anew
PROGRESS_BYTES = 256 << 20  # of a checkpoint; below, there is no progress bar


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose configuration, tensor names and shapes were checked. `tensors` reads on demand."""

    model: Model
    tensors: "SafetensorsSource"

    @property
    def dtype(self) -> torch.dtype:
        """The configuration's."""
        dtype = getattr(torch, self.model.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


def open_checkpoint(directory: str | Path) -> Checkpoint:
    """Read the configuration and the tensors' names and shapes. Raises ValueError: one sentence for what is wrong."""
    folder = Path(directory)
    model = read_config(folder)
    tensors = SafetensorsSource(folder, _weight_files(folder), model.prefixes)
    model = _with_own_head(model, tensors)
    model = model.as_stored(tensors.shapes)
    tensors.check(model.tensors(), model.ignored)
    return Checkpoint(model, tensors)


def read_config(directory: str | Path) -> Model:
    """`config.json` alone, without touching weights. Raises ValueError."""
    path = Path(directory) / "config.json"
    data = _read_object(path, f"{path.parent} holds no config.json")
    try:
        return read_model(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _with_own_head(model: Model, tensors: "SafetensorsSource") -> Model:
    """Some checkpoints hold a head although the configuration ties it. Where it is no copy of the embedding, it counts
    (as in transformers); a copy is ignored."""
    decoder, head = model.decoder, model.decoder.tied_head
    if head is None or head not in tensors.shapes or decoder.embedding not in tensors.shapes:
        return model
    if torch.equal(tensors[head], tensors[decoder.embedding]):
        return replace(model, ignored=(*model.ignored, re.escape(head)))
    return replace(model, decoder=replace(decoder, head=head))


def _read_object(path: Path, missing: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(missing) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a JSON {type(data).__name__}, not an object")
    return data


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """All shards. Raises ValueError where there are none, or where one is missing."""
    if (folder / INDEX).is_file():
        index = _read_object(folder / INDEX, "")
        names = index.get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"{folder / INDEX} holds no weight_map from tensors to files")
        files = tuple(folder / name for name in sorted(set(names.values())))
        for file in files:
            if file.parent != folder or not file.is_file():
                raise ValueError(f"{folder / INDEX} names the file {file.name}, which is not there")
        return files
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
    if pickles:
        raise ValueError(
            f"{folder} holds pickle weights ({pickles[0]}), which can run code when read; convert them to {WEIGHTS}"
        )
    raise ValueError(f"{folder} holds no {WEIGHTS}")


class SafetensorsSource:
    """Tensors of one or more safetensors files by name; nothing is read before it is asked for, and nothing kept."""

    def __init__(self, folder: Path, files: tuple[Path, ...], prefixes: tuple[tuple[str, str], ...] = ()) -> None:
        """Reads names and shapes. Raises ValueError for a file that is no safetensors file, or a name found twice.

        prefixes: (of a name in the files, what stands for it here); the first that fits a name counts.
        """
        self.folder = folder
        self.shapes: dict[str, Shape] = {}
        self._stored: dict[str, str] = {}  # name -> name in the file
        self._files: dict[str, Path] = {}
        self._open: tuple[Path, Any] | None = None
        self._read_since_opening = 0
        total = sum(file.stat().st_size for file in files)
        self._progress = tqdm(
            total=total, desc="loading", unit="B", unit_scale=True, disable=total < PROGRESS_BYTES, leave=False
        )
        for path in files:
            file = self._opened(path)
            for stored in file.keys():  # noqa: SIM118 - no mapping
                name = _renamed(stored, prefixes)
                if name in self._files:
                    raise ValueError(f"{path}: tensor {name} is also in {self._files[name].name}")
                self._files[name] = path
                self._stored[name] = stored
                self.shapes[name] = tuple(file.get_slice(stored).get_shape())

    def check(self, expected: Mapping[str, Shape], ignored: tuple[str, ...]) -> None:
        """Raise ValueError unless names and shapes are the expected ones. ignored: regular expressions of others."""
        unused = [re.compile(pattern) for pattern in ignored]
        others = {name for name in self.shapes.keys() - expected.keys() if not any(p.fullmatch(name) for p in unused)}
        self._refuse_names("lacks", expected.keys() - self.shapes.keys())
        self._refuse_names("holds unknown", others)
        for name, shape in expected.items():
            if self.shapes[name] != shape:
                found = list(self.shapes[name])
                raise ValueError(f"{self._files[name]}: tensor {name} has shape {found}, expected {list(shape)}")

    def _refuse_names(self, what: str, names: set[str]) -> None:
        if not names:
            return
        listed = ", ".join(sorted(names)[:NAMED_AT_MOST])
        more = f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else ""
        raise ValueError(f"{self.folder} {what} tensor{'s' if len(names) > 1 else ''} {listed}{more}")

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor, checked. Raises ValueError for values that are no numbers."""
        path = self._files[name]
        try:
            tensor = self._opened(path).get_tensor(self._stored[name])
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, error) from None
        assert isinstance(tensor, torch.Tensor)
        self._read_since_opening += tensor.nbytes
        self._progress.update(tensor.nbytes)
        if not tensor.is_floating_point() or tensor.itemsize < 2:  # 8-bit floats mean nothing without their scales
            found = str(tensor.dtype).removeprefix("torch.")
            raise ValueError(f"{path}: tensor {name} holds {found} values, expected floating point of 16 bits or more")
        wrong = tensor.numel() - int(torch.isfinite(tensor).sum())
        if wrong:
            raise ValueError(f"{path}: tensor {name} holds {wrong} values that are NaN or infinite")
        return tensor

    def close(self) -> None:
        """Mutates: lets go of the file that is mapped, and ends the progress bar."""
        self._open = None
        self._progress.close()

    def _opened(self, path: Path) -> Any:
        if self._open is None or self._open[0] != path or self._read_since_opening > REOPEN_BYTES:
            self._open = None
            self._read_since_opening = 0
            try:
                self._open = (path, safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise _unreadable(path, error) from None
        return self._open[1]


def _renamed(stored: str, prefixes: tuple[tuple[str, str], ...]) -> str:
    for prefix, replacement in prefixes:
        if stored.startswith(prefix):
            return replacement + stored.removeprefix(prefix)
    return stored


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is not a readable safetensors file: {error}")
