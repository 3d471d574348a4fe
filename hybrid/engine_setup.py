"""Engine set-up: EngineArgs -> the checkpoint read, pools sized, an engine and a processor that fit together."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hybrid.capacity.sizing.limits import Limits, limits
from hybrid.capacity.sizing.working_memory import WorkingMemory, working_memory
from hybrid.encoders.families import image_processor
from hybrid.frontend.processor import Processor
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.grammar.compiler import GrammarCompiler
from hybrid.grammar.grammars import Grammars
from hybrid.grammar.llguidance_backend import LLGuidanceBackend
from hybrid.models.blueprint.config_reader import shown
from hybrid.models.blueprint.json_object import read_json
from hybrid.models.blueprint.model import Model
from hybrid.models.loading import read_config
from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.runner.loading import load
from hybrid.runner.model_runner import ModelRunner
from hybrid.scheduler.scheduler import Scheduler

from .checkpoints import find_checkpoint, recommended_sampling
from .engine import Engine, Runner
from .engine_args import EngineArgs
from .engine_memory import bytes_by_pool, gpu_pool_memory, pool_sizes, usable_gpu_memory
from .lora import build_store, lora_targets
from .memory_size import default_cpu_memory, machine_memory, parse_memory
from .sampling_params import SamplingParams

logger = logging.getLogger(__name__)

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine ready to run. `generation_defaults` is the checkpoint's `generation_config.json`; pool_bytes: by the
    pools' names. limits: what the pools can do for requests of max_model_len."""

    engine: Engine
    runner: ModelRunner
    processor: Processor
    sizes: PoolSizes
    limits: Limits
    generation_defaults: Mapping[str, Any]
    pool_bytes: Mapping[str, int]


def set_up(args: EngineArgs, wrap: Callable[[ModelRunner], Runner] = lambda runner: runner) -> Setup:
    """Read the checkpoint and allocate everything. Raises ValueError for a wrong one or too little memory.

    wrap: puts something around the runner that watches it.
    """
    checkpoint = find_checkpoint(args.model)
    read_config(checkpoint)  # first of all: what is wrong with it says most, and costs nothing
    device = _device(args.device)
    tokenizer = None if args.skip_tokenizer_init else Tokenizer(args.tokenizer or checkpoint)
    generation_defaults = _generation_defaults(checkpoint)
    dtype = None if args.dtype == "auto" else getattr(torch, args.dtype)
    loaded = load(checkpoint, dtype, device, images=args.max_images != 0)
    model, spec = loaded.model, loaded.decoder.spec
    targets = lora_targets(model.lora_targets(), args.lora_target_modules) if args.uses_lora else {}
    image_targets = model.vision.lora_targets() if model.vision is not None else {}
    adapters = build_store(args, targets, image_targets) if args.uses_lora else None
    scheduler_config = args.scheduler_config(
        spec.encoder.max_tokens_per_image if spec.encoder is not None else 0,
        loaded.decoder.bidirectional_images,
        spec.encoder.min_tokens_per_image if spec.encoder is not None else None,
        on_gpu=device.type != "cpu",
    )
    dtype_name = str(loaded.decoder.dtype).removeprefix("torch.")
    unit_bytes = model.lora_bytes_per_unit(dtype_name, args.lora_target_modules)
    working = working_memory(
        model,
        dtype_name,
        scheduler_config,
        max_num_seqs=args.num_seqs,
        max_model_len=args.max_model_len or loaded.decoder.max_positions,
        block_size=args.block_size,
        max_lora_rank=args.max_lora_rank if args.uses_lora else 0,
        graphs=not args.enforce_eager,
    )
    sizes = pool_sizes(
        args,
        scheduler_config,
        spec,
        loaded.decoder.max_positions,
        _memory(args, device, working),
        _room(device),
        unit_bytes,
        None if device.type == "cpu" else machine_memory(),
    )
    reached = limits(spec, sizes, scheduler_config, lora_bytes_per_unit=unit_bytes)
    logger.info("%s", reached)
    eos_token_ids = _eos_token_ids(model, generation_defaults)
    graphs = False if args.enforce_eager else None
    runner = ModelRunner(loaded.decoder, sizes, device, loaded.encoder, adapters, targets, decode_graphs=graphs)
    executes = wrap(runner)
    grammars = _grammars(tokenizer, loaded.decoder.vocab_size, eos_token_ids)
    engine = Engine(
        Scheduler(scheduler_config, sizes, Kinds.of(spec), enable_prefix_caching=args.enable_prefix_caching),
        executes,
        tokenizer,
        eos_token_ids,
        scheduler_config.max_plans_in_flight,
        args.enable_prefix_caching,
        adapters,
        grammars,
    )
    if args.num_threads is not None:
        torch.set_num_threads(args.num_threads)
    images = None
    if model.vision is not None and loaded.encoder is not None:
        most = sizes.max_model_len - 1
        images = image_processor(loaded.config, checkpoint, model.vision, loaded.encoder, most)
    processor = Processor(
        tokenizer,
        vocab_size=loaded.decoder.vocab_size,
        max_model_len=sizes.max_model_len,
        eos_token_ids=eos_token_ids,
        images=images,
        max_images=args.max_images,
        no_images="limit_mm_per_prompt allows no images"
        if args.max_images == 0
        else "the model takes no images"
        if model.vision is None
        else f"{checkpoint} says nowhere how images are to be prepared (it has no preprocessor_config.json)",
    )
    return Setup(
        engine=engine,
        runner=runner,
        processor=processor,
        sizes=sizes,
        limits=reached,
        generation_defaults=generation_defaults,
        pool_bytes=bytes_by_pool(sizes, spec, unit_bytes),
    )


def _grammars(tokenizer: Tokenizer | None, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Grammars | None:
    """None without a tokenizer."""
    if tokenizer is None:
        return None
    backend = LLGuidanceBackend(tokenizer.to_json, vocab_size, eos_token_ids)
    return Grammars(GrammarCompiler(backend), vocab_size, eos_token_ids)


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


def _room(device: torch.device) -> int:
    """Bytes that there are for pools at all: sizes given by name replace the computed ones whatever the memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return machine_memory()


def _memory(args: EngineArgs, device: torch.device, working: WorkingMemory) -> int:
    """Bytes for the pools; on a GPU what steps leave. Raises ValueError for more than a machine has, as the system
    would kill us when it is used, and for a GPU on which steps leave nothing."""
    if args.memory is not None:
        size = parse_memory(args.memory)
        if device.type == "cpu" and size > machine_memory():
            raise ValueError(f"memory of {args.memory!r} is more than the {machine_memory():,} bytes of this machine")
        if device.type == "cuda" and size + working.total > (free := torch.cuda.mem_get_info(device)[0]):
            logger.warning("the pools get %d of %d free bytes, and steps need %s more", size, free, working)
        return size
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        usable = usable_gpu_memory(free, total, args.gpu_memory_utilization)
        logger.info("of %d bytes beside the weights, steps need %s", usable, working)
        if (pools := gpu_pool_memory(usable, working.total)) == 0:
            raise ValueError(
                f"steps of {args.max_num_batched_tokens} tokens and {args.num_seqs} requests need {working}, and "
                f"{usable:,} bytes are usable beside the weights; lower max_num_batched_tokens or max_num_seqs"
            )
        return pools
    return default_cpu_memory()


def _device(name: str | torch.device | None) -> torch.device:
    """Raises ValueError for a device that is not there."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(name, str | torch.device):
        raise ValueError(f"device must be a name such as 'cpu' or 'cuda:1', got {name!r}")
    try:
        there = torch.zeros(1, device=torch.device(name))
        there.item()  # on "meta" nothing has a value
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise ValueError(f"device {str(name)!r} cannot be used: {str(error).splitlines()[0][:200]}") from None
    return there.device  # with its number


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
