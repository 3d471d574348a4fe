"""Calibrated: step times of one model on one machine, from coefficients that were measured there; a JSON file.

Knows no engine: `hybrid.calibration` measures and `fitting` fits.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hybrid.models.blueprint.model import Model

from .execution_time import Curve, ExecutionTime, check_coefficients
from .step_time import EXACT
from .step_work import StepWork

VERSION = 2

# What the engine does beside it: for each step, each token that is handed out, each request.
OVERHEADS = ("step", "token", "request")


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
    """A StepTime. fingerprint: of the model, see `fingerprint`. overhead: seconds by name in OVERHEADS. Raises
    ValueError for unknown names, negative coefficients and a variation whose mean is not 1."""

    model: str
    fingerprint: str
    dtype: str
    conditions: Conditions
    execution: ExecutionTime
    overhead: Mapping[str, float]
    variation: tuple[float, ...] = EXACT
    residuals: Mapping[str, Residual] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_coefficients("overhead", self.overhead, OVERHEADS)
        mean = sum(self.variation) / max(1, len(self.variation))
        if not abs(mean - 1) < 1e-3 or min(self.variation) < 0:
            raise ValueError(f"factors of the variation must not be negative, and 1 in the mean, got {self.variation}")

    def seconds(self, work: StepWork) -> float:
        """See StepTime."""
        over = self.overhead
        beside = over["step"] + over["token"] * work.num_sampled + over["request"] * work.new_rows
        return self.execution.seconds(work) + beside

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
        execution = self.execution
        document = {
            "version": VERSION,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "dtype": self.dtype,
            "conditions": asdict(self.conditions),
            "execution": {
                "tokens": asdict(execution.tokens),
                "logits": asdict(execution.logits),
                "terms": dict(execution.terms),
                "windows": execution.windows,
                "attention": [dict(entry) for entry in execution.attention],
            },
            "overhead": dict(self.overhead),
            "variation": list(self.variation),
            "residuals": {kind: asdict(residual) for kind, residual in self.residuals.items()},
        }
        return json.dumps(document, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Calibrated":
        """Raises ValueError for what `to_json` did not write."""
        try:
            data: dict[str, Any] = json.loads(text)
            version = data.pop("version", None)
            if version != VERSION:
                raise ValueError(f"version must be {VERSION}, got {version!r}")
            data["execution"] = _execution(**data["execution"])
            data["variation"] = tuple(map(float, data["variation"]))
            data["conditions"] = Conditions(**data["conditions"])
            data["residuals"] = {kind: Residual(**entry) for kind, entry in data["residuals"].items()}
            return cls(**data)
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"it is not what hybrid plan calibrate writes: {error}") from None

    @classmethod
    def load(cls, path: Path) -> "Calibrated":
        """Raises ValueError, naming the file."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"calibration {path} cannot be read: {error}") from None


def _execution(tokens: Any, logits: Any, windows: Any, attention: Any, **more: Any) -> ExecutionTime:
    """From its part of the file."""
    return ExecutionTime(
        tokens=Curve(tuple(map(int, tokens["sizes"])), tuple(map(float, tokens["seconds"]))),
        logits=Curve(tuple(map(int, logits["sizes"])), tuple(map(float, logits["seconds"]))),
        windows=tuple(None if window is None else int(window) for window in windows),
        attention=tuple(attention),
        **more,
    )


def fingerprint(model: Model) -> str:
    """Of everything a checkpoint of this model holds, and of the windows of its layers; not of values."""
    windows = [getattr(part, "sliding_window", None) for part in model.decoder.plain_parts()]
    told = repr((sorted(model.tensors().items()), windows))
    return blake2b(told.encode(), digest_size=12).hexdigest()
