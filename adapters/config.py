"""AdapterConfig: what an `adapter_config.json` of PEFT says about the matrices beside it. Knows no tensors.

An option that changes what is computed is honoured or refused with key and value; so is one that nobody knows here.
Source: peft 0.21, `LoraConfig`, `check_target_module_exists`, `get_pattern_key`.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .files import stamp

Number = TypeVar("Number", int, float)

CONFIG = "adapter_config.json"
ALL_LINEAR = "all-linear"
SHOWN = 100  # characters of a value that an error sentence repeats
MAX_RANK = 1 << 16
MAX_BYTES = 1 << 22  # of the file

# Say where an adapter comes from, or matter in training only. fan_in_fan_out turns base weights, not matrices of LoRA;
# what the *_config entries say counts with certain values of init_lora_weights.
_IGNORED = frozenset(
    (
        "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "fan_in_fan_out", "inference_mode",
        "init_weights", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_version",
        "qalora_group_size", "revision", "runtime_config", "task_type",
    )
)  # fmt: skip
_READ = frozenset(
    (
        "alpha_pattern", "bias", "exclude_modules", "init_lora_weights", "layers_pattern", "layers_to_transform",
        "lora_alpha", "peft_type", "r", "rank_pattern", "target_modules", "target_parameters", "use_rslora",
    )
)  # fmt: skip
_NEUTRAL: tuple[object, ...] = (None, False, "", [], {})
_WHY = {
    "modules_to_save": "whole modules trained beside LoRA are not supported",
    "trainable_token_indices": "tokens trained beside LoRA are not supported",
    "use_dora": "DoRA is not supported",
    "lora_bias": "biases of LoRA matrices are not supported",
}
_ANY_LAYER = re.compile(r".*?\.[^.]*\.(?P<idx>\d+)\.")
_HARMLESS_INITS = (True, False, None, "gaussian", "eva", "orthogonal")  # others change the base model's weights


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Checked; names are modules as the model that was trained calls them."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[re.Pattern[str], int]  # compiled: there may be one for every module
    alpha_pattern: Mapping[re.Pattern[str], float]
    target_modules: str | frozenset[str] | None  # a regular expression, or last parts of names
    target_parameters: tuple[str, ...]
    exclude_modules: str | frozenset[str] | None
    layers_to_transform: frozenset[int]  # none: all
    layers_pattern: tuple[re.Pattern[str], ...]  # a match has the layer's number as `idx`

    def selects_module(self, name: str) -> bool:
        """Whether PEFT adapts the module `name` (True also where the configuration names none)."""
        if self.exclude_modules is not None and _matches(self.exclude_modules, name):
            return False
        if self.target_modules is None:
            return not self.target_parameters
        if self.target_modules == ALL_LINEAR:
            return name.rpartition(".")[2] not in ("lm_head", "embed_tokens")
        if not _matches(self.target_modules, name):
            return False
        if not self.layers_to_transform or isinstance(self.target_modules, str) or name in self.target_modules:
            return True
        for pattern in self.layers_pattern or (_ANY_LAYER,):
            if (match := pattern.match(name)) is not None:
                return int(match["idx"]) in self.layers_to_transform
        return False

    def selects_parameter(self, name: str) -> bool:
        """Whether PEFT adapts a parameter, such as stacked experts, by its own name."""
        return any(name == target or name.endswith(f".{target}") for target in self.target_parameters)

    def expressions(self) -> list[str]:
        """Every regular expression that the other methods match with the beginning or the whole of a name."""
        whole = [one for one in (self.target_modules, self.exclude_modules) if isinstance(one, str)]
        return [*whole, *(one.pattern for one in (*self.rank_pattern, *self.alpha_pattern, *self.layers_pattern))]

    def rank_of(self, name: str) -> int:
        return _by_pattern(self.rank_pattern, name, self.rank)

    def scale_of(self, name: str) -> float:
        """What B A is multiplied by."""
        rank = self.rank_of(name)
        return _by_pattern(self.alpha_pattern, name, self.alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def read_config(folder: Path) -> AdapterConfig:
    """Raises ValueError: one sentence for what is wrong or not supported, with key and value."""
    path = folder / CONFIG
    try:
        if (size := stamp(path).size) > MAX_BYTES:
            raise ValueError(f"{path} has {size:,} bytes, more than {MAX_BYTES:,}")
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no {CONFIG}") from None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a JSON {type(data).__name__}, not an object")
    try:
        return _read(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(data: Mapping[str, Any]) -> AdapterConfig:
    if data.get("peft_type") != "LORA":
        raise _error("peft_type", data.get("peft_type"), "'LORA', the only type of adapters that is supported")
    if data.get("bias", "none") != "none":
        raise _error("bias", data["bias"], "'none': biases trained beside LoRA are not supported")
    init = data.get("init_lora_weights", True)
    if not isinstance(init, bool | str | None) or init not in _HARMLESS_INITS:
        raise _error("init_lora_weights", init, "one that leaves the base model's weights as they are; convert it")
    for key in sorted(data.keys() - _IGNORED - _READ):
        if not any(data[key] == neutral and type(data[key]) is type(neutral) for neutral in _NEUTRAL):
            raise ValueError(f"{key} {_shown(data[key])}: {_WHY.get(key, 'this option is not supported')}")
    rank = _positive("r", data.get("r", 8))
    patterns = data.get("layers_pattern")
    patterns = (patterns,) if isinstance(patterns, str) and patterns else _strings("layers_pattern", patterns)
    return AdapterConfig(
        rank=rank,
        alpha=_number("lora_alpha", data.get("lora_alpha", 8)),
        use_rslora=_flag("use_rslora", data.get("use_rslora", False)),
        rank_pattern={key: _positive("rank_pattern", value) for key, value in _patterns(data, "rank_pattern")},
        alpha_pattern={key: _number("alpha_pattern", value) for key, value in _patterns(data, "alpha_pattern")},
        target_modules=_names_or_pattern(data, "target_modules"),
        target_parameters=_strings("target_parameters", data.get("target_parameters")),
        exclude_modules=_names_or_pattern(data, "exclude_modules"),
        layers_to_transform=_integers("layers_to_transform", data.get("layers_to_transform")),
        layers_pattern=tuple(
            _compiled("layers_pattern", pattern, rf"(?:^|.*?\.)(?:{pattern})\.(?P<idx>\d+)\.") for pattern in patterns
        ),
    )


def _matches(names: str | frozenset[str], name: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, name) is not None
    return name in names or any(name.endswith(f".{end}") for end in names)


def _by_pattern(patterns: Mapping[re.Pattern[str], Number], name: str, default: Number) -> Number:
    """The first pattern that fits counts."""
    return next((value for pattern, value in patterns.items() if pattern.match(name)), default)


def _names_or_pattern(data: Mapping[str, Any], key: str) -> str | frozenset[str] | None:
    """A regular expression or a list of names; "all-linear" in any case."""
    value = data.get(key)
    if value is None or (key == "exclude_modules" and not value):
        return None
    if not isinstance(value, str):
        return frozenset(_strings(key, value))
    if value.lower() == ALL_LINEAR:
        return ALL_LINEAR
    return _compiled(key, value, value).pattern


def _patterns(data: Mapping[str, Any], key: str) -> list[tuple[re.Pattern[str], Any]]:
    """What names end with -> value."""
    value = data.get(key)
    if value is None:
        return []
    if not isinstance(value, dict):
        raise _error(key, value, "an object")
    return [(_compiled(key, pattern, rf"(.*\.)?({pattern})$"), entry) for pattern, entry in value.items()]


def _compiled(key: str, given: str, expression: str) -> re.Pattern[str]:
    """expression: what PEFT makes of the `given` one. Raises ValueError."""
    try:
        return re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{key} {_shown(given)} is no regular expression: {error}") from None


def _strings(key: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise _error(key, value, "a list of names")
    return tuple(value)


def _integers(key: str, value: object) -> frozenset[int]:
    listed: Sequence[object] = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in listed):
        raise _error(key, value, "an integer or a list of integers")
    return frozenset(entry for entry in listed if isinstance(entry, int))


def _positive(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_RANK:
        raise _error(key, value, f"an integer from 1 to {MAX_RANK}")
    return value


def _number(key: str, value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(float(value)):
            return float(value)
    except OverflowError:
        pass
    raise _error(key, value, "a finite number")


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _error(key, value, "true or false")
    return value


def _error(key: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{key} is {_shown(value)}, expected {expected}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
