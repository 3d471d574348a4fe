"""Safetensors: the weights of a checkpoint folder, in one file or in shards that an index lists."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .blueprint.config_reader import one_line
from .blueprint.json_object import read_json
from .blueprint.model import Prefixes
from .tensor_files import TensorEntry, TensorFiles, read_plain

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# 8-bit floats mean nothing without their scales.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class SafetensorsFiles(TensorFiles):
    """All tensors of a folder."""

    def __init__(self, folder: Path, prefixes: Prefixes = ()) -> None:
        """Reads names, dtypes and shapes. Raises ValueError for files that are missing or wrong, a name found twice.

        prefixes: (of a name in the files, what stands for it here); the first that fits a name counts.
        """
        entries: dict[str, TensorEntry] = {}
        self._spelled: dict[str, str] = {}
        for path in _weight_files(folder):
            for spelled, entry in _entries(path).items():
                name = _renamed(spelled, prefixes)
                if name in entries:
                    raise ValueError(f"{path}: tensor {one_line(spelled)} is also in {entries[name].path.name}")
                entries[name] = entry
                self._spelled[name] = spelled
        super().__init__(folder, entries)

    def read(self, name: str) -> torch.Tensor:
        entry = self.entries[name]
        return read_plain(entry, DTYPES[entry.dtype])

    def refuse_dtype(self, name: str) -> None:
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise ValueError(f"{entry.path}: tensor {name} holds {entry.dtype} values, expected {', '.join(DTYPES)}")

    def spelled(self, name: str) -> str:
        return self._spelled.get(name, name)


def _renamed(spelled: str, prefixes: Prefixes) -> str:
    for prefix, replacement in prefixes:
        if spelled.startswith(prefix):
            return replacement + spelled.removeprefix(prefix)
    return spelled


def _entries(path: Path) -> dict[str, TensorEntry]:
    """Everything in one file, as its header says; safetensors itself has checked that header before. ValueError."""
    try:
        with safe_open(path, framework="pt"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {one_line(error)}") from None
    return {
        name: TensorEntry(
            path,
            tensor["dtype"],
            tuple(tensor["shape"]),
            8 + length + tensor["data_offsets"][0],
            tensor["data_offsets"][1] - tensor["data_offsets"][0],
        )
        for name, tensor in header.items()
        if name != "__metadata__"
    }


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """All shards. Raises ValueError where there are none, or where one is missing."""
    if (folder / INDEX).is_file():
        names = (read_json(folder / INDEX) or {}).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"{folder / INDEX} holds no weight_map from tensors to files")
        return tuple(_shard(folder, name) for name in sorted(set(names.values())))
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
    if pickles:
        raise ValueError(
            f"{folder} holds pickle weights ({pickles[0]}), which can run code when read; convert them to {WEIGHTS}"
        )
    raise ValueError(f"{folder} holds no {WEIGHTS}")


def _shard(folder: Path, name: str) -> Path:
    """A file that an index names. Raises ValueError unless it lies in the folder itself."""
    if Path(name).name != name or name == "..":
        raise ValueError(f"{folder / INDEX} names the file {name[:200]!r}, which is not in its folder")
    try:
        there = (folder / name).is_file()
    except OSError:  # a name that is too long
        there = False
    if not there:
        raise ValueError(f"{folder / INDEX} names the file {name[:200]}, which is not there")
    return folder / name
