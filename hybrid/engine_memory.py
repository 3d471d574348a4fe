"""What an engine makes of EngineArgs and memory: the sizes of all pools. The planner calls the same functions.

Knows specs and numbers; imports no torch and asks no device.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from math import ceil

from hybrid.pools.sizing import Kinds, Need, PoolSizes, blocks_for, never_fits, pool_bytes, size_pools
from hybrid.pools.specs import ModelSpec
from hybrid.scheduler.config import SchedulerConfig

from .engine_args import EngineArgs
from .memory_size import machine_memory

logger = logging.getLogger(__name__)

MIN_MODEL_LEN = 2  # one token of prompt, one of output
SPLIT = ("num_full_blocks", "num_window_blocks", "num_state_slots")  # arguments that say how memory is split
NO_LIMIT = 2**62
UNCOUNTED = 1 / 20  # of the memory beside the weights: fragments of the allocator, workspaces of libraries, kernels


def gpu_pool_memory(usable_bytes: int, working_bytes: int) -> int:
    """Bytes for the pools on a GPU where so many are usable beside the weights, and steps need working_bytes; 0 where
    they leave nothing. See `capacity.sizing.working_memory`."""
    return max(0, usable_bytes - int(usable_bytes * UNCOUNTED) - working_bytes)


def gpu_memory_for_pools(pool_bytes: int, working_bytes: int) -> int:
    """The least usable bytes of which `gpu_pool_memory` leaves so many."""
    return ceil((pool_bytes + working_bytes) / (1 - UNCOUNTED)) + 1


def usable_gpu_memory(free_bytes: int, total_bytes: int, gpu_memory_utilization: float | None) -> int:
    """Of the free bytes of a GPU those that this engine may take. Raises ValueError where there are none."""
    if gpu_memory_utilization is None:
        return free_bytes
    usable = free_bytes - total_bytes + int(total_bytes * gpu_memory_utilization)
    if usable <= 0:
        raise ValueError(
            f"gpu_memory_utilization {gpu_memory_utilization} of {total_bytes:,} bytes leaves nothing for the pools: "
            f"{total_bytes - free_bytes:,} are in use"
        )
    return usable


def pool_sizes(
    args: EngineArgs,
    config: SchedulerConfig,
    spec: ModelSpec,
    max_positions: int,
    memory_bytes: int,
    room_bytes: int | None = None,
    lora_bytes_per_unit: int = 0,
    host_bytes: int | None = None,
) -> PoolSizes:
    """Sizes of all pools. Raises ValueError naming the pool that cannot hold one request of `max_model_len`.

    room_bytes: that the pools may take, whatever the arguments say; None: `machine_memory`.
    host_bytes: that the tables of rows may take; None: the pools are on the host too, and both share `room_bytes`.
    lora_bytes_per_unit: see `Model.lora_bytes_per_unit`; the LoRA pool is paid out of `memory_bytes` like the others.
    """
    room = machine_memory() if room_bytes is None else room_bytes
    lora_bytes = args.num_lora_units * lora_bytes_per_unit
    if lora_bytes >= memory_bytes:
        raise ValueError(
            f"the LoRA pool needs {lora_bytes:,} bytes for {args.num_lora_units} rank units, and all pools get "
            f"{memory_bytes:,}; lower max_loras or max_lora_rank, or name the modules with lora_target_modules"
        )
    limit = args.max_model_len if args.max_model_len is not None else max_positions
    if limit > max_positions:
        raise ValueError(f"max_model_len {limit} exceeds the model's limit of {max_positions} tokens")
    overrides = {name: value for name in SPLIT if (value := getattr(args, name)) is not None}
    if len(overrides) == len(SPLIT):
        memory_bytes = NO_LIMIT  # the split is given: what another one would need does not matter

    def sized(max_model_len: int) -> PoolSizes:
        try:
            return size_pools(
                spec,
                memory_bytes - lora_bytes,
                block_size=args.block_size,
                max_num_seqs=args.num_seqs,
                max_num_batched_tokens=args.max_num_batched_tokens,
                max_model_len=max_model_len,
                max_plans_in_flight=config.max_plans_in_flight,
                num_draft_tokens=config.num_draft_tokens,
                encoder_tokens=args.encoder_tokens,
                lora_units=args.num_lora_units,
            )
        except ValueError as error:
            if not lora_bytes:
                raise
            raise ValueError(f"{error}; {lora_bytes:,} bytes went to {args.num_lora_units} LoRA rank units") from None

    if args.max_model_len is not None:
        sizes = replace(sized(limit), **overrides)
        _check_room(sizes, spec, room - lora_bytes, host_bytes)
        return sizes

    def fitting(max_model_len: int) -> PoolSizes:
        sizes = replace(sized(max_model_len), **overrides)
        _check_room(sizes, spec, room - lora_bytes, host_bytes)
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


def row_table_bytes(sizes: PoolSizes) -> int:
    """Host bytes of the two tables of rows, the scheduler's and the runner's: token ids, full and window blocks."""
    positions = sizes.max_model_len + sizes.lookahead + 1
    row = 4 * positions + 2 * 8 * (blocks_for(positions, sizes.block_size) + 1)
    return 2 * sizes.num_rows * row


def bytes_by_pool(sizes: PoolSizes, spec: ModelSpec, lora_bytes_per_unit: int) -> dict[str, int]:
    """Bytes of each pool by its name: of the runner's tensors, and for request rows of the tables on the host."""
    pools = pool_bytes(sizes, spec, lora_bytes_per_unit)
    return {
        "request row": row_table_bytes(sizes),
        "full attention": pools.full,
        "sliding window": pools.window,
        "recurrent state": pools.state,
        "encoder": pools.encoder,
        "LoRA": pools.lora,
    }


def _check_room(sizes: PoolSizes, spec: ModelSpec, room: int, host_bytes: int | None) -> None:
    """Raises ValueError for pools that need more than `room`, or tables of rows that need more than there is of it
    beside them or, where the host has memory of its own, more than that."""
    pools, tables = pool_bytes(sizes, spec).total, row_table_bytes(sizes)
    blocks = (
        f"{sizes.num_full_blocks} full blocks, {sizes.num_window_blocks} window blocks, {sizes.num_state_slots} "
        "state slots"
    )
    rows = f"{sizes.num_rows} rows of {sizes.max_model_len} tokens, with {sizes.lookahead} in flight,"
    if host_bytes is None and pools + tables > room:
        raise ValueError(f"{blocks} and {rows} need {pools + tables:,} bytes; there are {room:,}")
    if pools > room:
        raise ValueError(f"{blocks} need {pools:,} bytes; the device has {room:,}")
    if host_bytes is not None and tables > host_bytes:
        raise ValueError(f"{rows} need {tables:,} bytes; the host has {host_bytes:,}")
