"""Calibrated: step times of one model on one machine, from coefficients that were measured there; a JSON file.

Knows no engine: `hybrid.calibration` measures and `fitting` fits. Coefficients are seconds, none is negative.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hybrid.models.blueprint.model import Model

from .step_work import StepWork
from .tally import Tally, Window

VERSION = 1

# What the execution of a step is made of, beside the curves: a "with_" counts once for a step that has any. And, for
# each window, what attention does.
TERMS = (
    "with_decodes", "decode", "with_chunks", "chunk", "chunk_token", "chunk_block", "mixed", "new_row",
    "with_snapshots", "snapshot", "with_state_copies", "state_copy", "with_block_copies", "block_copy",
    "with_images", "image_token", "adapter", "adapted_unit", "loaded_unit",
)  # fmt: skip
WINDOW_TERMS = ("decode_key", "chunk_pair", "chunk_key")
# What the engine does beside it: for each step, each token that is handed out, each request.
OVERHEADS = ("step", "token", "request")


@dataclass(frozen=True, slots=True)
class Curve:
    """Piecewise linear through (sizes[i], seconds[i]), from the origin where the first size is above 0; beyond the last
    size as between the last two. Raises ValueError unless sizes grow."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.seconds) or not self.sizes:
            raise ValueError(f"a curve needs as many sizes as seconds, got {len(self.sizes)} and {len(self.seconds)}")
        if any(a >= b for a, b in zip((0, *self.sizes), self.sizes)):
            raise ValueError(f"sizes of a curve must grow from 1 on, got {self.sizes}")

    def __call__(self, size: int) -> float:
        weights = self.weights(size)
        return sum(self.seconds[index] * weight for index, weight in weights)

    def weights(self, size: int) -> tuple[tuple[int, float], ...]:
        """The value at `size` is the sum of seconds[index] * weight."""
        return interpolation(self.sizes, size)


def interpolation(sizes: tuple[int, ...], size: int) -> tuple[tuple[int, float], ...]:
    """(index, weight) of the points between which `size` lies; see Curve."""
    if size <= sizes[0] or len(sizes) == 1:
        return ((0, size / sizes[0]),)
    right = min(bisect_right(sizes, size), len(sizes) - 1)
    share = (size - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    if share > 1:  # beyond the last: in proportion, so that no weight is negative
        return ((right, size / sizes[right]),)
    return ((right - 1, 1 - share), (right, share))


@dataclass(frozen=True, slots=True)
class Residual:
    """How far the fit is off, as shares of what was measured, over so many measurements of one kind of step."""

    count: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Where, with what and when was measured. threads: of torch. temperature: of the draws; 0: no draws."""

    machine: str
    device: str
    threads: int
    temperature: float
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A StepTime.

    fingerprint: of the model, see `fingerprint`. tokens: curve over the tokens of a step; logits: over its sampled
    rows. terms: by name in TERMS; attention: of each window, by name in WINDOW_TERMS; overhead: by name in OVERHEADS.
    slowdown: executions take so many times as long in an engine that serves, where other work comes between them.
    Raises ValueError for unknown names and negative coefficients.
    """

    model: str
    fingerprint: str
    dtype: str
    conditions: Conditions
    tokens: Curve
    logits: Curve
    terms: Mapping[str, float]
    windows: tuple[Window, ...]
    attention: tuple[Mapping[str, float], ...]  # one for each of `windows`
    overhead: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(OVERHEADS, 0.0))
    slowdown: float = 1.0
    residuals: Mapping[str, Residual] = field(default_factory=dict)
    _vector: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.attention) != len(self.windows):
            raise ValueError(
                f"{len(self.windows)} windows need as many entries of attention, got {len(self.attention)}"
            )
        for what, found, names in (
            ("terms", self.terms, TERMS),
            *(("attention", entry, WINDOW_TERMS) for entry in self.attention),
            ("overhead", self.overhead, OVERHEADS),
        ):
            if set(found) != set(names):
                raise ValueError(f"{what} must have exactly {', '.join(names)}, got {', '.join(sorted(found))}")
            for name, value in found.items():
                _check(f"{what}.{name}", value)
        for value in (*self.tokens.seconds, *self.logits.seconds):
            _check("a curve", value)
        _check("slowdown", self.slowdown)
        vector = [self.terms[name] for name in TERMS]
        vector += [entry[name] for entry in self.attention for name in WINDOW_TERMS]
        object.__setattr__(self, "_vector", tuple(vector))

    def seconds(self, work: StepWork) -> float:
        """See StepTime."""
        over = self.overhead
        return (
            self.slowdown * self.execution(work)
            + over["step"]
            + over["token"] * work.num_sampled
            + over["request"] * work.new_rows
        )

    def execution(self, work: StepWork) -> float:
        """Of the runner alone, one after the other."""
        tally = Tally.of(work, self.windows)
        total = 0.0
        for coefficient, amount in zip(self._vector, amounts(work, tally)):
            if amount:
                total += coefficient * amount
        if tally.num_tokens:
            total += self.tokens(tally.num_tokens)
        if work.num_sampled:
            total += self.logits(work.num_sampled)
        return total

    def check_model(self, name: str, model: Model, dtype: str) -> None:
        """Raises ValueError, in a sentence, for a model or a dtype that these coefficients are not of."""
        if fingerprint(model) != self.fingerprint:
            raise ValueError(f"the calibration is of {self.model}, not of {name}; run hybrid plan calibrate {name}")
        if dtype != self.dtype:
            raise ValueError(
                f"the calibration is of {self.model} in {self.dtype}, not in {dtype}: "
                f"give --weights-dtype {self.dtype}, or run hybrid plan calibrate {name} --dtype {dtype}"
            )

    def to_json(self) -> str:
        """What `from_json` reads."""
        entries = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.init}
        entries |= {name: asdict(entries[name]) for name in ("conditions", "tokens", "logits")}
        entries["residuals"] = {kind: asdict(residual) for kind, residual in self.residuals.items()}
        entries["attention"] = [dict(entry) for entry in self.attention]
        return json.dumps({"version": VERSION} | entries, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Calibrated":
        """Raises ValueError for what `to_json` did not write."""
        try:
            data: dict[str, Any] = json.loads(text)
            version = data.pop("version", None)
            if version != VERSION:
                raise ValueError(f"version must be {VERSION}, got {version!r}")
            for name in ("tokens", "logits"):
                curve = data[name]
                data[name] = Curve(tuple(map(int, curve["sizes"])), tuple(map(float, curve["seconds"])))
            data["conditions"] = Conditions(**data["conditions"])
            data["windows"] = tuple(None if window is None else int(window) for window in data["windows"])
            data["attention"] = tuple(data["attention"])
            data["residuals"] = {kind: Residual(**entry) for kind, entry in data["residuals"].items()}
            return cls(**data)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is not what hybrid plan calibrate writes: {error}") from None

    @classmethod
    def load(cls, path: Path) -> "Calibrated":
        """Raises ValueError, naming the file."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"calibration {path} cannot be read: {error}") from None


def amounts(work: StepWork, tally: Tally) -> tuple[float, ...]:
    """How much of each of TERMS, then for each window of WINDOW_TERMS, is in a step."""
    decodes, chunks = tally.num_decodes, tally.num_chunks
    blocks = work.full_copies + work.window_copies
    embeddings = sum(work.image_tokens) if work.image_tokens else 0
    first: tuple[float, ...] = (
        decodes > 0,
        decodes,
        chunks > 0,
        chunks,
        tally.num_tokens - decodes,
        tally.chunk_blocks,
        decodes > 0 and chunks > 0,
        work.new_rows,
        work.snapshots > 0,
        work.snapshots,
        work.state_copies > 0,
        work.state_copies,
        blocks > 0,
        blocks,
        embeddings > 0,
        embeddings,
        len(work.adapted),
        sum(adapted.num_tokens * adapted.units for adapted in work.adapted) if work.adapted else 0,
        work.loaded_units,
    )
    if not chunks:
        return first + tuple(amount for keys in tally.decode_keys for amount in (keys, 0, 0))
    return first + tuple(
        amount for triple in zip(tally.decode_keys, tally.chunk_pairs, tally.chunk_keys) for amount in triple
    )


def fingerprint(model: Model) -> str:
    """Of everything a checkpoint of this model holds, and of the windows of its layers; not of values."""
    windows = [getattr(part, "sliding_window", None) for part in model.decoder.plain_parts()]
    told = repr((sorted(model.tensors().items()), windows))
    return blake2b(told.encode(), digest_size=12).hexdigest()


def _check(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number, at least 0, got {value!r}")
