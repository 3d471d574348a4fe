"""Engine set-up: EngineArgs -> the checkpoint read, pools sized, an engine and a processor that fit together."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hybrid.frontend.processor import Processor
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.models.blueprint.config_reader import shown
from hybrid.models.blueprint.json_object import read_json
from hybrid.models.blueprint.model import Model
from hybrid.models.loading import read_config
from hybrid.pools.sizing import Kinds, Need, PoolSizes, blocks_for, never_fits, pool_bytes, size_pools
from hybrid.pools.specs import ModelSpec
from hybrid.runner.loading import load
from hybrid.runner.model_runner import ModelRunner
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.scheduler import Scheduler

from .checkpoints import find_checkpoint, recommended_sampling
from .engine import Engine
from .engine_args import EngineArgs
from .memory_size import default_cpu_memory, machine_memory, parse_memory
from .sampling_params import SamplingParams

logger = logging.getLogger(__name__)

MIN_MODEL_LEN = 2  # one token of prompt, one of output
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
GPU_FRACTION = 0.8  # of the memory that is free once the weights are there; the rest is for activations


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine ready to run. `generation_defaults` is the checkpoint's `generation_config.json`."""

    engine: Engine
    processor: Processor
    sizes: PoolSizes
    generation_defaults: Mapping[str, Any]


def set_up(args: EngineArgs) -> Setup:
    """Read the checkpoint and allocate everything. Raises ValueError for a wrong one or too little memory."""
    checkpoint = find_checkpoint(args.model)
    read_config(checkpoint)  # first of all: what is wrong with it says most, and costs nothing
    device = _device(args.device)
    tokenizer = None if args.skip_tokenizer_init else Tokenizer(args.tokenizer or checkpoint)
    generation_defaults = _generation_defaults(checkpoint)
    loaded = load(checkpoint, None if args.dtype == "auto" else getattr(torch, args.dtype), device)
    model, spec = loaded.model, loaded.decoder.spec
    scheduler_config = args.scheduler_config(spec.encoder.max_tokens_per_image if spec.encoder is not None else 0)
    sizes = pool_sizes(args, scheduler_config, spec, loaded.decoder.max_positions, _memory(args, device), _room(device))
    scheduler = Scheduler(scheduler_config, sizes, Kinds.of(spec), enable_prefix_caching=args.enable_prefix_caching)
    eos_token_ids = _eos_token_ids(model, generation_defaults)
    engine = Engine(
        scheduler,
        ModelRunner(loaded.decoder, sizes, device, loaded.encoder),
        tokenizer,
        eos_token_ids,
        scheduler_config.max_plans_in_flight,
        args.enable_prefix_caching,
    )
    if args.num_threads is not None:
        torch.set_num_threads(args.num_threads)
    vision = model.vision
    processor = Processor(
        tokenizer,
        vocab_size=loaded.decoder.vocab_size,
        max_model_len=sizes.max_model_len,
        eos_token_ids=eos_token_ids,
        image_token_id=model.image_token_id,
        image_size=vision.image_size if vision is not None else None,
        num_image_tokens=vision.num_image_tokens if vision is not None else None,
    )
    return Setup(engine, processor, sizes, generation_defaults)


def default_sampling_params(generation_defaults: Mapping[str, Any], max_tokens: int | None) -> SamplingParams:
    """What a `generation_config.json` recommends; where it says do_sample false, the most likely token, whatever else
    it says about drawing. Raises ValueError for a value that can never be."""
    greedy = generation_defaults.get("do_sample") is False
    names = ("repetition_penalty",) if greedy else SAMPLING
    given = {name: value for name in names if (value := generation_defaults.get(name)) is not None}
    if greedy:
        given["temperature"] = 0.0
    return SamplingParams(max_tokens=max_tokens, **given)


def _generation_defaults(checkpoint: Path) -> Mapping[str, Any]:
    """How to sample when nobody says, spelled as `generation_config.json` does, its values checked. ValueError."""
    if not checkpoint.is_dir():
        return recommended_sampling(checkpoint)
    path = checkpoint / "generation_config.json"
    defaults = read_json(path) or {}
    try:
        default_sampling_params(defaults, None)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return defaults


def pool_sizes(
    args: EngineArgs,
    config: SchedulerConfig,
    spec: ModelSpec,
    max_positions: int,
    memory_bytes: int,
    room_bytes: int | None = None,
) -> PoolSizes:
    """Sizes of all pools. Raises ValueError naming the pool that cannot hold one request of `max_model_len`.

    room_bytes: that pools and tables of rows may take together, whatever the arguments say; None: `machine_memory`.
    """
    room = machine_memory() if room_bytes is None else room_bytes
    limit = args.max_model_len if args.max_model_len is not None else max_positions
    if limit > max_positions:
        raise ValueError(f"max_model_len {limit} exceeds the model's limit of {max_positions} tokens")

    def sized(max_model_len: int) -> PoolSizes:
        return size_pools(
            spec,
            memory_bytes,
            block_size=args.block_size,
            max_num_seqs=args.num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_model_len=max_model_len,
            max_plans_in_flight=config.max_plans_in_flight,
            num_draft_tokens=config.num_draft_tokens,
            encoder_tokens=args.encoder_tokens,
        )

    overrides = {
        name: value
        for name in ("num_full_blocks", "num_window_blocks", "num_state_slots")
        if (value := getattr(args, name)) is not None
    }
    if args.max_model_len is not None:
        sizes = replace(sized(limit), **overrides)
        _check_room(sizes, spec, room)
        return sizes

    def fitting(max_model_len: int) -> PoolSizes:
        sizes = replace(sized(max_model_len), **overrides)
        _check_room(sizes, spec, room)
        for shortage in never_fits(Need(max_model_len), sizes, Kinds.of(spec)):
            raise ValueError(f"max_model_len {max_model_len} does not fit: {shortage}")
        return sizes

    return _largest(fitting, limit)


def _largest(sized: Callable[[int], PoolSizes], limit: int) -> PoolSizes:
    """Sizes for the longest requests that fit, at most `limit` tokens. Raises ValueError if none fits."""
    try:
        return sized(limit)
    except ValueError:
        best, low, high = sized(MIN_MODEL_LEN), MIN_MODEL_LEN, limit
    while high - low > 1:  # low fits, high does not
        middle = (low + high) // 2
        try:
            best, low = sized(middle), middle
        except ValueError:
            high = middle
    logger.warning("max_model_len is %d instead of the model's %d: more does not fit into memory", low, limit)
    return best


def _room(device: torch.device) -> int:
    """Bytes that there are at all: sizes given by name replace the computed ones whatever the memory."""
    if device.type == "cuda":
        return min(machine_memory(), torch.cuda.get_device_properties(device).total_memory)
    return machine_memory()


def _check_room(sizes: PoolSizes, spec: ModelSpec, room: int) -> None:
    """Raises ValueError for pools and tables of rows, the scheduler's and the runner's, that need more than `room`."""
    positions = sizes.max_model_len + sizes.lookahead + 1
    row = 4 * positions + 2 * 8 * (blocks_for(positions, sizes.block_size) + 1)  # token ids; full and window blocks
    needed = pool_bytes(sizes, spec).total + 2 * sizes.num_rows * row
    if needed > room:
        raise ValueError(
            f"{sizes.num_full_blocks} full blocks, {sizes.num_window_blocks} window blocks, {sizes.num_state_slots} "
            f"state slots and {sizes.num_rows} rows of {sizes.max_model_len} tokens, with {sizes.lookahead} in flight, "
            f"need {needed:,} bytes; there are {room:,}"
        )


def _memory(args: EngineArgs, device: torch.device) -> int:
    """Bytes for the pools."""
    if args.memory is not None:
        return parse_memory(args.memory)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_FRACTION)
    return default_cpu_memory()


def _device(name: str | torch.device | None) -> torch.device:
    """Raises ValueError for a device that is not there."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(name, str | torch.device):
        raise ValueError(f"device must be a name such as 'cpu' or 'cuda:1', got {name!r}")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # on "meta" nothing has a value
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise ValueError(f"device {str(name)!r} cannot be used: {str(error).splitlines()[0][:200]}") from None
    return device


def _eos_token_ids(model: Model, generation_defaults: Mapping[str, Any]) -> tuple[int, ...]:
    """Every token that ends a text: the configuration's, and what `generation_config.json` adds. Raises ValueError."""
    more = generation_defaults.get("eos_token_id")
    added = more if isinstance(more, list) else [] if more is None else [more]
    said = [("config.json", token_id) for token_id in model.eos_token_ids]
    said += [("generation_config.json", token_id) for token_id in added]
    for file, token_id in said:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < model.decoder.vocab_size:
            raise ValueError(f"eos_token_id {shown(token_id)} of {file} is no token of the model")
    return tuple(dict.fromkeys(token_id for _, token_id in said))
