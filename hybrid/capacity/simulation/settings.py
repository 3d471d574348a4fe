"""Settings: what `--vary` changes of an engine, from text to an EngineModel. Everything else is as planned.

Memory stays the same: a setting that changes a need changes the split, and with it how many requests run at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any, get_args, get_origin

from hybrid.capacity.hardware import find_hardware
from hybrid.capacity.planning import Plan, plan
from hybrid.capacity.question import Question
from hybrid.capacity.step_time import StepTime
from hybrid.capacity.workload.workload import Workload
from hybrid.engine_memory import NO_LIMIT, pool_sizes
from hybrid.pools.sizing import Kinds, Need, PoolSizes, never_fits, pool_bytes
from hybrid.scheduler.config import SchedulerConfig

from .engine_model import EngineModel

ALIASES = {
    "policy": "scheduling_policy",
    "prefix_caching": "enable_prefix_caching",
    "reservation": "initial_output_ratio",
}
QUESTION = {"max_num_batched_tokens": int, "max_num_seqs": int, "block_size": int, "tp": int, "gpu": str}
POOLS = {"num_full_blocks": int, "num_window_blocks": int, "num_state_slots": int, "encoder_tokens": int}
SPLITS = ("plan", "engine")
OWN = {"split": str, "enable_prefix_caching": bool} | POOLS
CONFIG = {
    entry.name: entry.type
    for entry in fields(SchedulerConfig)
    if entry.name not in ("max_num_batched_tokens", "max_image_tokens", "num_draft_tokens")
}
KINDS: Mapping[str, Any] = QUESTION | OWN | CONFIG
SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
MOST = 64  # combinations


@dataclass(frozen=True, slots=True)
class Setting:
    """Values by name; `text` as the user wrote them. Nothing: the engine as planned."""

    values: Mapping[str, Any] = field(default_factory=dict)
    text: str = "as planned"


def parse_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """["policy=fcfs,lpm", "block_size=16,32"] -> all four combinations. Raises ValueError."""
    axes: dict[str, list[tuple[str, Any]]] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        name = name.strip().replace("-", "_")
        key = ALIASES.get(name, name)
        if key not in KINDS or not separator:
            names = ", ".join(sorted((KINDS.keys() | ALIASES) - set(ALIASES.values())))
            raise ValueError(f"vary must be such as policy=fcfs,lpm, over {names}; got {text!r}")
        if key in axes:
            raise ValueError(f"vary names {name} twice")
        axes[key] = [(f"{name}={value.strip()}", _value(name, KINDS[key], value.strip())) for value in values.split(",")]
    settings = [
        Setting({key: value for key, (_, value) in zip(axes, chosen)}, " ".join(text for text, _ in chosen))
        for chosen in product(*axes.values())
    ]
    if len(settings) > MOST:
        raise ValueError(f"vary gives {len(settings)} combinations; at most {MOST} are compared")
    return tuple(settings) if axes else (Setting(),)


def _value(name: str, kind: Any, text: str) -> Any:
    """Raises ValueError for a text that is no value of this kind."""
    if kind is bool:
        if text.lower() not in SWITCH:
            raise ValueError(f"vary {name} must be on or off, got {text!r}")
        return SWITCH[text.lower()]
    if kind is str or get_origin(kind) is not None and int not in get_args(kind):
        choices = SPLITS if name == "split" else get_args(kind)
        if choices and text not in choices:
            raise ValueError(f"vary {name} must be one of {', '.join(choices)}, got {text!r}")
        return text
    try:
        return float(text) if kind is float else int(text)
    except ValueError:
        raise ValueError(f"vary {name} must be {'a number' if kind is float else 'an integer'}, got {text!r}") from None


def planned_for(question: Question, workload: Workload) -> Question:
    """The question about requests as long as this workload's are on average. Pure."""
    output = max(1, round(float(workload.output_lengths.mean())))
    images = question.images * question.image_tokens
    context = max(question.shared_prefix + 1, round(float(workload.prompt_lengths.mean())) - images)
    return replace(question, context=context, output=output)


def engine_model(
    question: Question, setting: Setting, step_time: Callable[[Question], StepTime], workload: Workload
) -> EngineModel:
    """The engine that `hybrid plan` plans for the mean lengths of this workload, with this setting; its max_model_len
    is the longest request's, or the model's limit. Raises ValueError, naming the setting, for one that cannot be."""
    try:
        return _engine_model(planned_for(question, workload), setting.values, step_time, workload)
    except ValueError as error:
        raise ValueError(f"{setting.text}: {error}" if setting.values else str(error)) from None


def _engine_model(
    question: Question, values: Mapping[str, Any], step_time: Callable[[Question], StepTime], workload: Workload
) -> EngineModel:
    changes: dict[str, Any] = {name: values[name] for name in QUESTION if name in values and name != "gpu"}
    if "gpu" in values:
        changes["hardware"] = find_hardware(values["gpu"])
    more = {name: values[name] for name in CONFIG if name in values and name != "scheduling_policy"}
    asked = replace(question, **changes, scheduler={**question.scheduler, **more})
    made = plan(asked)
    args = replace(made.args, scheduling_policy=values.get("scheduling_policy", made.args.scheduling_policy))
    config = args.scheduler_config(asked.image_tokens)
    return EngineModel(
        config=config,
        sizes=_sizes(made, config, values, int((workload.prompt_lengths + workload.output_lengths).max())),
        kinds=Kinds.of(made.spec),
        step_time=step_time(asked),
        vocab_size=asked.model.decoder.vocab_size,
        enable_prefix_caching=values.get("enable_prefix_caching", True),
        lora_bytes_per_unit=asked.lora_bytes_per_unit(),
    )


def _sizes(made: Plan, config: SchedulerConfig, values: Mapping[str, Any], longest: int) -> PoolSizes:
    """longest: tokens of a request. split "engine": what the engine does with that memory when it is told no sizes. A pool that is given takes its
    units from full attention, unless that is given too. Raises ValueError for more than there is."""
    spec, lora = made.spec, made.question.lora_bytes_per_unit()
    positions = made.question.model.decoder.max_positions
    longest = min(positions, max(longest, made.sizes.max_model_len))
    sizes = replace(made.sizes, max_model_len=longest)
    if values.get("split") == "engine":
        args = replace(
            made.args, max_model_len=longest, num_full_blocks=None, num_window_blocks=None, num_state_slots=None
        )
        sizes = pool_sizes(args, config, spec, positions, made.memory_bytes, NO_LIMIT, lora)
    given = {name: values[name] for name in POOLS if name in values}
    if given:
        sizes = replace(sizes, **given)
        if "num_full_blocks" not in given and spec.full_bytes_per_token:
            left = made.memory_bytes - pool_bytes(replace(sizes, num_full_blocks=0), spec, lora).total
            blocks = max(0, left // (sizes.block_size * spec.full_bytes_per_token))
            sizes = replace(sizes, num_full_blocks=blocks)
        total = pool_bytes(sizes, spec, lora).total
        if total > made.memory_bytes:
            raise ValueError(f"the pools would take {total:,} bytes, and there are {made.memory_bytes:,}")
    for shortage in never_fits(Need(sizes.max_model_len), sizes, Kinds.of(spec)):
        raise ValueError(f"not even one request of {sizes.max_model_len} tokens fits: {shortage}")
    return sizes
