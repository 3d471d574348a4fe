"""Settings: what `--vary` changes of an engine, from text to an EngineModel. Everything else is as planned.

Memory stays the same: a setting that changes a need changes the split, and with it how many requests run at once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any, get_args, get_origin

import numpy as np

from hybrid.engine_args import EngineArgs
from hybrid.engine_memory import NO_LIMIT, pool_sizes
from hybrid.pools.sizing import Kinds, Need, PoolSizes, never_fits, pool_bytes
from hybrid.scheduler.config import SchedulerConfig

from ..hardware import find_hardware
from ..question import Question
from ..sizing.planning import Plan, plan
from ..step_time.step_time import StepTime
from ..traffic import Traffic
from ..workload.workload import Workload
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
    if entry.name not in ("max_num_batched_tokens", "max_image_tokens", "min_image_tokens", "num_draft_tokens")
}
KINDS: Mapping[str, Any] = QUESTION | OWN | CONFIG
SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
MOST = 64  # combinations


@dataclass(frozen=True, slots=True)
class Setting:
    """Values by name; `words`: name and value as the user wrote them. Nothing: the engine as planned."""

    values: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(f"{name}={word}" for name, word in self.words.items()) or "as planned"


def parse_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """["policy=fcfs,lpm", "block_size=16,32"] -> all four combinations. Raises ValueError."""
    names: dict[str, str] = {}  # as the user wrote them
    axes: dict[str, list[tuple[str, Any]]] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        name = name.strip().replace("-", "_")
        key = ALIASES.get(name, name)
        if key not in KINDS or not separator:
            known = ", ".join(sorted((KINDS.keys() | ALIASES) - set(ALIASES.values())))
            raise ValueError(f"vary must be such as policy=fcfs,lpm, over {known}; got {text!r}")
        if key in axes:
            raise ValueError(f"vary names {name} twice")
        names[key] = name
        axes[key] = [(word.strip(), _value(name, KINDS[key], word.strip())) for word in values.split(",")]
    combinations = math.prod(map(len, axes.values()))
    if combinations > MOST:
        raise ValueError(f"vary gives {combinations} combinations; at most {MOST} are compared")
    return tuple(
        Setting(
            {key: value for key, (_, value) in zip(axes, chosen)},
            {names[key]: word for key, (word, _) in zip(axes, chosen)},
        )
        for chosen in product(*axes.values())
    )


def _value(name: str, kind: Any, text: str) -> Any:
    """Raises ValueError for a text that is no value of this kind."""
    if kind is bool:
        if text.lower() not in SWITCH:
            raise ValueError(f"vary {name} must be on or off, got {text!r}")
        return SWITCH[text.lower()]
    if kind is str or (get_origin(kind) is not None and int not in get_args(kind)):
        choices = SPLITS if name == "split" else get_args(kind)
        if choices and text not in choices:
            raise ValueError(f"vary {name} must be one of {', '.join(choices)}, got {text!r}")
        return text
    try:
        return float(text) if kind is float else int(text)
    except ValueError:
        raise ValueError(f"vary {name} must be {'a number' if kind is float else 'an integer'}, got {text!r}") from None


def planned_for(question: Question, workload: Workload, max_tokens: int | None) -> Question:
    """The question about requests as long as those of this workload. Raises ValueError where none has room."""
    prompts = np.maximum(workload.prompt_lengths, question.shared_prefix + 1)
    outputs = workload.output_lengths
    traffic = Traffic.of(prompts, outputs, max_tokens).within(question.model.decoder.max_positions)
    images = question.images * question.image_tokens
    longest = replace(
        question,
        context=int(traffic.prompts.max()) - images,
        output=int(traffic.permitted.max()),
    )
    same = max_tokens is None and len(np.unique(prompts)) == len(np.unique(outputs)) == 1
    return longest if same else replace(longest, traffic=traffic)


def engine_model(question: Question, setting: Setting, step_time: Callable[[Question], StepTime]) -> EngineModel:
    """The engine that `hybrid plan` plans, with this setting. Raises ValueError, naming the setting, for one that
    cannot be."""
    try:
        return _engine_model(question, setting.values, step_time)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}" if setting.values else str(error)) from None


def _engine_model(
    question: Question, values: Mapping[str, Any], step_time: Callable[[Question], StepTime]
) -> EngineModel:
    changes: dict[str, Any] = {name: values[name] for name in QUESTION if name in values and name != "gpu"}
    if "gpu" in values:
        changes["hardware"] = find_hardware(values["gpu"])
    more = {name: values[name] for name in CONFIG if name in values and name != "scheduling_policy"}
    asked = replace(question, **changes, scheduler={**question.scheduler, **more})
    made = plan(asked)
    args = replace(
        made.args,
        scheduling_policy=values.get("scheduling_policy", made.args.scheduling_policy),
        max_num_seqs=values.get("max_num_seqs", made.args.max_num_seqs),  # a row costs nothing: also more than planned
    )
    config = asked.scheduler_config(args)
    return EngineModel(
        config=config,
        sizes=_sizes(made, args, config, values),
        kinds=Kinds.of(made.spec),
        step_time=step_time(asked),
        vocab_size=asked.model.decoder.vocab_size,
        enable_prefix_caching=values.get("enable_prefix_caching", True),
        lora_bytes_per_unit=asked.lora_bytes_per_unit(),
        image_entries=asked.image_cost.entries,
    )


def _sizes(made: Plan, args: EngineArgs, config: SchedulerConfig, values: Mapping[str, Any]) -> PoolSizes:
    """split "engine": what the engine makes of that memory when it is told no sizes. A pool that is given takes its
    units from full attention, unless that is given too. Raises ValueError for more than there is."""
    spec, lora = made.spec, made.question.lora_bytes_per_unit()
    sizes = replace(made.sizes, num_rows=args.num_seqs)
    if values.get("split") == "engine":
        args = replace(args, num_full_blocks=None, num_window_blocks=None, num_state_slots=None)
        positions = made.question.model.decoder.max_positions
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
