"""GGUFFile: metadata and tensors of a GGUF file (versions 2 and 3), llama.cpp's format. Knows no architecture.

Source: the format's specification (ggml, docs/gguf.md). Values are dequantised by the `gguf` package; its own reader
takes seconds for a vocabulary and stumbles over files that end early, so the header is read here.
"""

from collections.abc import Iterator
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from typing import Any

import gguf
import numpy as np
import torch

from .blueprint.config_reader import one_line
from .tensor_files import TensorEntry, read_plain, scratch

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_HEADER = 64 << 20  # bytes; as numbers and strings of Python they take several times as many
SLAB = 1 << 21  # values that are dequantised at a time; the packages's own temporaries are a few times as large
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
_STRING, _ARRAY, _FLOAT32 = 8, 9, 6
# Scalar kinds of metadata, by number.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", _FLOAT32: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U32, _U64 = Struct("<I"), Struct("<Q")


class GGUFFile:
    """`metadata` by key; `tensors` by GGUF's names, shapes as torch has them (GGUF's backwards)."""

    def __init__(self, path: Path) -> None:
        """Reads the header. Raises ValueError for anything that is no complete GGUF file."""
        self.path = path
        try:
            with path.open("rb") as file:
                if not (size := file.seek(0, 2)):
                    raise ValueError(f"{path} is not a GGUF file: it is empty")
                with mmap(file.fileno(), size, access=ACCESS_READ) as data:
                    header = _Header(path, data)
                    self.metadata, self.tensors = header.metadata, header.tensors
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None

    def read(self, name: str) -> torch.Tensor:
        """A tensor: F32, F16 and BF16 as they are, float32 of what is quantised. Raises ValueError, OSError."""
        entry = self.tensors[name]
        if entry.dtype in PLAIN:
            return read_plain(entry, PLAIN[entry.dtype])
        tensor = scratch(entry.shape, torch.float32)
        rows = tensor.view(-1, entry.shape[-1]).numpy()
        row_bytes = entry.num_bytes // len(rows)
        kind = gguf.GGMLQuantizationType[entry.dtype]
        step = max(1, SLAB // entry.shape[-1])
        with entry.path.open("rb") as file, np.errstate(all="ignore"):  # what is not finite is found by the caller
            file.seek(entry.offset)
            for begin in range(0, len(rows), step):
                target = rows[begin : begin + step]
                packed = np.fromfile(file, np.uint8, len(target) * row_bytes)
                if len(packed) != len(target) * row_bytes:
                    raise ValueError(f"{entry.path} ends early: it has changed since it was opened")
                target[:] = gguf.quants.dequantize(packed.reshape(len(target), row_bytes), kind)
        return tensor


class _Header:
    """Reads from the start of the file to the end of its list of tensors."""

    def __init__(self, path: Path, data: mmap) -> None:
        self._path = path
        self._data = data
        self._at = 0
        if self._take(4) != MAGIC:
            raise self._wrong(f"it begins with {data[:4]!r}")
        version = self._u32()
        if version not in VERSIONS:
            swapped = " (its numbers are big-endian)" if version & 0xFFFF == 0 and version else ""
            raise ValueError(f"{path} is a GGUF file of version {version}, which is not supported{swapped}")
        num_tensors, num_keys = self._u64(), self._u64()
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in self.metadata:
                raise self._wrong(f"its metadata names {key} twice")
            self.metadata[key] = self._value(self._u32(), key)
        listed = [self._tensor() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._wrong(f"general.alignment is {alignment!r}, which is no power of 2")
        start = -(-self._at // alignment) * alignment
        self.tensors = dict(self._entries(listed, start, alignment))
        if len(self.tensors) != num_tensors:
            raise self._wrong("it names a tensor twice")

    def _entries(
        self, listed: list[tuple[str, list[int], int, int]], start: int, alignment: int
    ) -> Iterator[tuple[str, TensorEntry]]:
        for name, shape, number, offset in listed:
            try:
                kind = gguf.GGMLQuantizationType(number)
            except ValueError:
                raise self._wrong(f"tensor {name} has the unknown type {number}") from None
            block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            if shape[-1] % block_values:
                raise self._wrong(f"a row of tensor {name} has {shape[-1]} values, no multiple of {kind.name}'s block")
            size = prod(shape) // block_values * block_bytes
            if offset % alignment:
                raise self._wrong(f"tensor {name} does not lie at a multiple of {alignment} bytes")
            if start + offset + size > len(self._data):
                raise self._wrong(f"it ends early, within tensor {name}")
            yield name, TensorEntry(self._path, kind.name, tuple(shape), start + offset, size)

    def _tensor(self) -> tuple[str, list[int], int, int]:
        """(name, shape, number of its type, offset)."""
        name, dimensions = self._string(), self._u32()
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._wrong(f"tensor {name} has {dimensions} dimensions")
        shape = [self._u64() for _ in range(dimensions)][::-1]
        if min(shape) < 1:
            raise self._wrong(f"tensor {name} has shape {shape}")
        return name, shape, self._u32(), self._u64()

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._scalars(kind, 1)[0]
        if kind != _ARRAY:
            raise self._wrong(f"its metadata {key} is of the unknown kind {kind}")
        kind, length = self._u32(), self._u64()
        if kind in _SCALARS:
            return self._scalars(kind, length)
        if kind != _STRING:
            raise self._wrong(f"its metadata {key} is a list of the unknown kind {kind}")
        return [self._string() for _ in range(length)]

    def _scalars(self, kind: int, count: int) -> list[Any]:
        """Numbers; those of 32 bits as the decimals that they were written from."""
        size = Struct("<" + _SCALARS[kind]).size
        values = np.frombuffer(self._take(count * size), np.dtype(_SCALARS[kind]).newbyteorder("<"))
        return [float(str(value)) for value in values] if kind == _FLOAT32 else values.tolist()

    def _string(self) -> str:
        return self._take(self._u64()).decode("utf-8", errors="replace")

    def _u32(self) -> int:
        value: int = _U32.unpack(self._take(4))[0]
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack(self._take(8))[0]
        return value

    def _take(self, count: int) -> bytes:
        """Mutates: the next bytes. Raises ValueError where there are fewer."""
        if count > len(self._data) - self._at:
            raise self._wrong("it ends early, within its header")
        if count > MAX_HEADER - self._at:
            raise self._wrong(f"its header is larger than {MAX_HEADER:,} bytes")
        self._at += count
        return self._data[self._at - count : self._at]

    def _wrong(self, why: str) -> ValueError:
        return ValueError(f"{self._path} is not a readable GGUF file: {one_line(why)}")
