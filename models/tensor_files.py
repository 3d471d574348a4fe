"""TensorFiles: the tensors of a checkpoint by name, read one by one into memory of their own, and checked.

What safetensors and GGUF have in common; knows neither format. Files are read, not mapped: mapped pages would count as
memory in use beside the tensors made from them.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path

import torch
from tqdm import tqdm

from .blueprint.config_reader import one_line, shown
from .blueprint.parts import Shape

NAMED_AT_MOST = 3  # tensors that one error sentence lists
MAPPED_BYTES = 1 << 20
PROGRESS_BYTES = 256 << 20  # of a checkpoint; below, there is no progress bar


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies. `dtype` is spelled as its file spells it."""

    path: Path
    dtype: str
    shape: Shape
    offset: int  # bytes from the start of the file
    num_bytes: int


class TensorFiles(ABC):
    """A checkpoint's tensors. Nothing is read before it is asked for, and nothing is kept.

    where: the folder or file that messages name. entries: by the names that the blueprint uses.
    """

    def __init__(self, where: Path, entries: Mapping[str, TensorEntry]) -> None:
        self.where = where
        self.entries = entries
        total = sum(entry.num_bytes for entry in entries.values())
        self._progress = tqdm(
            total=total, desc="loading", unit="B", unit_scale=True, disable=total < PROGRESS_BYTES, leave=False
        )

    @property
    def shapes(self) -> dict[str, Shape]:
        """Of all tensors, also those that nobody reads."""
        return {name: entry.shape for name, entry in self.entries.items()}

    @abstractmethod
    def read(self, name: str) -> torch.Tensor:
        """The tensor as floating point of 16 bits or more, its values unchecked. Raises ValueError, OSError."""

    @abstractmethod
    def refuse_dtype(self, name: str) -> None:
        """Raise ValueError for values that the engine does not read."""

    def spelled(self, name: str) -> str:
        """How the file calls the tensor that a blueprint calls `name`."""
        return name

    def check(self, expected: Mapping[str, Shape], ignored: tuple[str, ...]) -> None:
        """Raise ValueError unless names, shapes and dtypes are as expected. ignored: regular expressions of others."""
        unused = [re.compile(pattern) for pattern in ignored]
        others = {name for name in self.entries.keys() - expected.keys() if not any(p.fullmatch(name) for p in unused)}
        self._refuse_names("lacks", expected.keys() - self.entries.keys())
        self._refuse_names("holds unknown", others)
        for name, shape in expected.items():
            entry = self.entries[name]
            if entry.shape != shape:
                raise ValueError(
                    f"{entry.path}: tensor {self.spelled(name)} has shape {shown(list(entry.shape))}, "
                    f"expected {list(shape)}"
                )
            self.refuse_dtype(name)

    def _refuse_names(self, what: str, names: set[str]) -> None:
        if not names:
            return
        listed = ", ".join(one_line(self.spelled(name)) for name in sorted(names)[:NAMED_AT_MOST])
        more = f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else ""
        raise ValueError(f"{self.where} {what} tensor{'s' if len(names) > 1 else ''} {listed}{more}")

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor, checked. Raises ValueError for values that are no numbers, or a file that has changed."""
        entry = self.entries[name]
        try:
            tensor = self.read(name)
        except OSError as error:
            raise ValueError(f"{entry.path} cannot be read: {error.strerror or error}") from None
        self._progress.update(entry.num_bytes)
        if tensor.numel() and not all(bool(torch.isfinite(bound)) for bound in torch.aminmax(tensor)):  # NaN spreads
            wrong = tensor.numel() - int(torch.isfinite(tensor).sum())
            raise ValueError(f"{entry.path}: tensor {self.spelled(name)} holds {wrong} values that are NaN or infinite")
        return tensor

    def close(self) -> None:
        """Mutates: ends the progress bar."""
        self._progress.close()


def scratch(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a tensor that is to be read. Large ones are mapped by themselves: what is read goes as soon as weights
    are made of it, and would leave holes among them that the next tensors do not fit into."""
    size = torch.Size(shape).numel() * dtype.itemsize
    if size < MAPPED_BYTES:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype=dtype).view(shape)


def read_plain(entry: TensorEntry, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that lies in its file as torch has it in memory. Raises ValueError where the file ends early."""
    tensor = scratch(entry.shape, dtype)
    if tensor.numel() == 0:
        return tensor
    target = memoryview(tensor.view(-1).view(torch.uint8).numpy().data)
    with entry.path.open("rb", buffering=0) as file:
        file.seek(entry.offset)
        read = 0
        while read < len(target):  # one call reads at most 2 GiB
            more = file.readinto(target[read:])
            if not more:
                raise ValueError(f"{entry.path} ends early: it has changed since it was opened")
            read += more
    return tensor
