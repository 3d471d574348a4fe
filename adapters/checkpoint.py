"""AdapterCheckpoint: a PEFT folder whose names, shapes and ranks were checked, and whose matrices are read later.

Knows the model's targets, and no registry. Pickles are never opened. Layout of stacked experts as peft 0.21 has it
(`ParamWrapper`): A [E * r, in] holds an expert's rows side by side, B [out, r * E] a rank's columns.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from . import files
from .config import AdapterConfig, read_config
from .naming import DOWN, GATE, STACKED_DOWN, STACKED_UP, UP, ExpertTargets, ModuleNames, Shape
from .patterns import check_speed
from .weights import AdapterWeights, LoraMatrices

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
DTYPES = ("F64", "F32", "F16", "BF16")
NAMED_AT_MOST = 5  # modules that one error sentence lists
_PREFIX = "base_model.model."
_BASE_LAYER = ".base_layer"
# Behind A or B an adapter's name may stand. An embedding's matrices are parameters themselves.
_MATRIX = re.compile(
    r"(?P<module>.+)\.lora_(?:(?P<which>[AB])(?:\.[^.]+)?\.weight|embedding_(?P<table>[AB])(?:\.[^.]+)?)"
)
_EXPERT = re.compile(r"(?P<experts>.+)\.(?P<index>\d+)\.(?P<projection>[^.]+)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A pair of matrices in the file, and the part of a target that it changes: all, or some rows of one expert."""

    module: str  # as the file calls it
    a: str
    b: str
    rank: int
    scale: float
    expert: int | None = None
    rows: int | None = None  # of the target's output, from `row`; None: all
    row: int = 0
    column: int = 0  # among the target's ranks


@dataclass(frozen=True, slots=True)
class AdapterCheckpoint:
    """Everything but the values. `rank` is the largest of all targets."""

    folder: Path
    rank: int
    pieces: Mapping[str, tuple[Piece, ...]]  # by target
    targets: Mapping[str, Shape]
    stamp: files.Stamp

    def read(self) -> AdapterWeights:
        """The matrices, scaled. Raises ValueError for values that are no numbers, or a file that has changed."""
        path = self.folder / WEIGHTS
        try:
            unchanged = files.stamp(path) == self.stamp  # before, too: it may be a pipe by now
            data = path.read_bytes() if unchanged else b""
            unchanged = unchanged and files.stamp(path) == self.stamp and len(data) == self.stamp.size
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or 'it is not there'}") from None
        if not unchanged:
            raise ValueError(f"{path} has changed since the adapter was loaded; load it again")
        try:
            tensors = safetensors.torch.load(data)
        except SafetensorError as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from None
        del data
        modules = {name: self._matrices(name, pieces, tensors) for name, pieces in self.pieces.items()}
        return AdapterWeights(self.rank, modules)

    def _matrices(self, name: str, pieces: tuple[Piece, ...], tensors: Mapping[str, torch.Tensor]) -> LoraMatrices:
        pairs = [(piece, *self._pair(piece, tensors)) for piece in pieces]
        shape = self.targets[name]
        piece, a, b = pairs[0]
        if len(shape) == 2:
            return LoraMatrices(a, b)
        num_experts, outputs, inputs = shape
        if piece.expert is None:
            stacked = a.view(num_experts, piece.rank, inputs)
            return LoraMatrices(stacked, b.view(outputs, piece.rank, num_experts).permute(2, 0, 1).contiguous())
        rank = _rank(pieces)
        whole_a, whole_b = a.new_zeros(num_experts, rank, inputs), b.new_zeros(num_experts, outputs, rank)
        for piece, a, b in pairs:
            columns = slice(piece.column, piece.column + piece.rank)
            whole_a[piece.expert, columns] = a
            whole_b[piece.expert, piece.row : piece.row + len(b), columns] = b
        return LoraMatrices(whole_a, whole_b)

    def _pair(self, piece: Piece, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = tensors[piece.a], tensors[piece.b]
        scaled = b * piece.scale
        for key, tensor, how in ((piece.a, a, ""), (piece.b, b, ""), (piece.b, scaled, f", times {piece.scale:g},")):
            if not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"{self.folder / WEIGHTS}: tensor {key}{how} holds values that are NaN or infinite")
        return a, scaled


def open_adapter(folder: str | Path, names: ModuleNames, max_rank: int) -> AdapterCheckpoint:
    """Read the configuration and the tensors' names and shapes. Raises ValueError: one sentence for what is wrong."""
    folder = files.folder(folder)
    config = read_config(folder)
    path = folder / WEIGHTS
    shapes, stamp = _headers(path)
    try:
        pairs = _pairs(shapes, names)
        check_speed(config.expressions(), [spelled for module in pairs for spelled in _spellings(module)])
        pieces = _resolve(pairs, shapes, config, names)
        rank = max(map(_rank, pieces.values()))
        if rank > max_rank:
            fused = "" if rank <= config.rank else " (where gate and up are one, their ranks add up)"
            raise ValueError(f"rank {rank}{fused} is more than max_lora_rank {max_rank}")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return AdapterCheckpoint(folder, rank, pieces, names.targets, stamp)


def _rank(pieces: Iterable[Piece]) -> int:
    return max(piece.column + piece.rank for piece in pieces)


def _spellings(module: str) -> list[str]:
    """The names with which `_resolve` may ask the configuration about a module of the file."""
    name = module.replace(_BASE_LAYER, "")
    return [name, *(f"{name}.{last}" for last in ("weight", *STACKED_UP, *STACKED_DOWN))]


def _headers(path: Path) -> tuple[dict[str, Shape], files.Stamp]:
    """Name -> shape. Raises ValueError for a file that is missing or wrong, or for values of an unknown kind."""
    try:
        stamp = files.stamp(path)
    except FileNotFoundError:
        if (path.parent / PICKLE).exists():
            raise ValueError(
                f"{path.parent} holds a pickle ({PICKLE}), which can run code when read; convert it to {WEIGHTS}"
            ) from None
        raise ValueError(f"{path.parent} holds no {WEIGHTS}") from None
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: tuple(entry.get_shape()) for name, entry in slices.items()}
            dtypes = {name: entry.get_dtype() for name, entry in slices.items()}
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from None
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise ValueError(f"{path}: tensor {name} holds {dtype} values, expected {', '.join(DTYPES)}")
    return shapes, stamp


def _pairs(shapes: Mapping[str, Shape], names: ModuleNames) -> dict[str, dict[str, str]]:
    """Module -> "A" and "B" -> the tensor's name. Raises ValueError for what is no matrix of LoRA, or stands alone."""
    pairs: dict[str, dict[str, str]] = defaultdict(dict)
    for key, shape in shapes.items():
        name = key.removeprefix(_PREFIX)
        if _is_base_table(name, shape, names):
            continue
        match = _MATRIX.fullmatch(name)
        if match is None:
            raise ValueError(f"tensor {key} is no matrix of LoRA, and nothing else is supported")
        pair, which = pairs[match["module"]], match["which"] or match["table"]
        if which in pair:
            raise ValueError(f"tensors {pair[which]} and {key} belong to one module; only one adapter per file")
        pair[which] = key
    for pair in pairs.values():
        if len(pair) == 1:
            [key] = pair.values()
            raise ValueError(f"tensor {key} stands alone: its other matrix is missing")
    if not pairs:
        raise ValueError("there is no matrix of LoRA in it")
    return pairs


def _is_base_table(name: str, shape: Shape, names: ModuleNames) -> bool:
    """PEFT saves the base model's own table beside an adapted embedding or head; unless it was resized, it is equal."""
    target = names.module(name.removesuffix(".weight").removesuffix(_BASE_LAYER))
    if target is None or not name.endswith(f"{_BASE_LAYER}.weight"):
        return False
    return sorted(shape) == sorted(names.targets[target])


def _resolve(
    pairs: Mapping[str, Mapping[str, str]], shapes: Mapping[str, Shape], config: AdapterConfig, names: ModuleNames
) -> dict[str, tuple[Piece, ...]]:
    """Target -> its pieces. Raises ValueError listing modules that are no targets, or naming a wrong tensor."""
    found: dict[str, list[Piece]] = defaultdict(list)
    unknown = []
    for module, pair in pairs.items():
        name = module.replace(_BASE_LAYER, "")
        listed = _EXPERT.fullmatch(name)
        if (target := names.module(module)) is not None:
            piece = _plain(name, pair, config)
        elif (experts := names.experts(name)) is not None:
            target, piece = _stacked(module, pair, config, experts)
        elif listed is not None and (experts := names.experts(listed["experts"])) is not None:
            target, piece = _listed(listed, pair, config, names, experts)
        else:
            unknown.append(name)
            continue
        if any(other.expert == piece.expert and other.row == piece.row for other in found[target]):
            raise ValueError(f"module {name} and module {found[target][0].module} are the same")
        _check(piece, shapes, names.targets[target])
        found[target].append(piece)
    if unknown:
        raise _unknown(unknown)
    return {target: tuple(_beside(pieces)) for target, pieces in found.items()}


def _plain(name: str, pair: Mapping[str, str], config: AdapterConfig) -> Piece:
    spelled = name  # as PEFT matches patterns with it
    if not config.selects_module(name):
        spelled = f"{name}.weight"
        if not config.selects_parameter(spelled):
            raise _not_selected(name)
    return Piece(name, pair["A"], pair["B"], config.rank_of(spelled), config.scale_of(spelled))


def _stacked(module: str, pair: Mapping[str, str], config: AdapterConfig, experts: ExpertTargets) -> tuple[str, Piece]:
    """Parameters of one module wrap each other in the order in which the module has them: the outermost is the last."""
    depth = module.count(_BASE_LAYER)
    name = module.replace(_BASE_LAYER, "")
    wrapped = [
        (target, parameter)
        for target, parameters in ((experts.up, STACKED_UP), (experts.down, STACKED_DOWN))
        if (parameter := next((p for p in parameters if config.selects_parameter(f"{name}.{p}")), None)) is not None
    ]
    if depth >= len(wrapped) or module != name + depth * _BASE_LAYER:
        raise _not_selected(module)
    target, parameter = wrapped[len(wrapped) - 1 - depth]
    spelled = f"{name}.{parameter}"
    return target, Piece(spelled, pair["A"], pair["B"], config.rank_of(spelled), config.scale_of(spelled))


def _listed(
    listed: re.Match[str],
    pair: Mapping[str, str],
    config: AdapterConfig,
    names: ModuleNames,
    experts: ExpertTargets,
) -> tuple[str, Piece]:
    """One projection of one expert, as files had them before experts were stacked."""
    name = listed[0]
    if not config.selects_module(name):
        raise _not_selected(name)
    projection, index = listed["projection"], int(listed["index"])
    target = experts.down if projection in DOWN else experts.up
    num_experts, outputs, _ = names.targets[target]
    known = (*UP, *DOWN, *GATE) if experts.gated else (*UP, *DOWN)
    if projection not in known or index >= num_experts:
        raise _unknown([name])
    rows = outputs // 2 if experts.gated and projection not in DOWN else outputs
    row = rows if experts.gated and projection in UP else 0  # gate first, then up
    piece = Piece(name, pair["A"], pair["B"], config.rank_of(name), config.scale_of(name), index, rows, row)
    return target, piece


def _beside(pieces: list[Piece]) -> list[Piece]:
    """Gate and up of one expert get ranks of their own."""
    placed = []
    for piece in pieces:
        before = sum(other.rank for other in pieces if other.expert == piece.expert and other.row < piece.row)
        placed.append(replace(piece, column=before))
    return placed


def _check(piece: Piece, shapes: Mapping[str, Shape], target: Shape) -> None:
    *experts, outputs, inputs = target
    rank = piece.rank * (experts[0] if experts and piece.expert is None else 1)
    rows = outputs if piece.rows is None else piece.rows
    for key, expected in ((piece.a, (rank, inputs)), (piece.b, (rows, rank))):
        if shapes[key] != expected:
            raise ValueError(f"tensor {key} has shape {list(shapes[key])}, expected {list(expected)}")


def _unknown(modules: list[str]) -> ValueError:
    more = f" and {len(modules) - NAMED_AT_MOST} more" if len(modules) > NAMED_AT_MOST else ""
    listed = f"{', '.join(sorted(modules)[:NAMED_AT_MOST])}{more}"
    return ValueError(f"it changes modules that the model does not have or that LoRA cannot change: {listed}")


def _not_selected(name: str) -> ValueError:
    return ValueError(f"module {name} has matrices, but adapter_config.json does not select it")
