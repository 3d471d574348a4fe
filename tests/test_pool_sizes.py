"""Sizes of all pools at start-up, for models of every kind and limits of any length."""

from dataclasses import replace
from typing import Any

import pytest
from numpy.typing import NDArray

from hybrid.engine_args import EngineArgs
from hybrid.engine_memory import pool_sizes, row_table_bytes
from hybrid.pools.memory import Memory
from hybrid.pools.sizing import Kinds, PoolSizes, pool_bytes
from hybrid.pools.specs import FullAttentionSpec, LayerSpec, MambaSpec, ModelSpec, SlidingWindowSpec
from hybrid.runner.row_mirror import RowMirror

KINDS: dict[str, tuple[LayerSpec, ...]] = {
    "full attention": (FullAttentionSpec(2, 8),),
    "windows": (SlidingWindowSpec(2, 8, 5),),
    "recurrent": (MambaSpec((12, 3), (2, 6, 4)),),
    "both in one layer": (FullAttentionSpec(2, 8), MambaSpec((12, 3), (2, 6, 4))),
    "nothing kept": (),
}
GIB = 2**30


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [1, 16])
def test_a_limit_that_no_machine_could_hold_is_lowered(kind: str, block_size: int) -> None:
    """The tables of rows are as long as the longest request, also where no pool is."""
    args = EngineArgs(model="any", block_size=block_size)
    spec = ModelSpec((KINDS[kind],))
    sizes = pool_sizes(args, args.scheduler_config(0), spec, 2**31 - 1, GIB // 4, room_bytes=GIB)
    assert 2**16 < sizes.max_model_len < 2**20
    tables = 2 * sizes.num_rows * sizes.max_model_len * (4 + 16 / block_size)
    assert tables < GIB


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_that_was_asked_for_is_kept_or_refused(kind: str) -> None:
    args = EngineArgs(model="any", max_model_len=2**30)
    with pytest.raises(ValueError, match=r"1073741824 (tokens, .* need .* bytes; there are|does not fit)"):
        pool_sizes(args, args.scheduler_config(0), ModelSpec((KINDS[kind],)), 2**31 - 1, GIB // 4, room_bytes=GIB)


def test_tokens_in_flight_take_room_too() -> None:
    args = EngineArgs(model="any", scheduler={"max_plans_in_flight": 10**11})
    spec = ModelSpec((KINDS["full attention"],))
    with pytest.raises(ValueError, match=r"99999999999 in flight, need .* bytes; there are"):
        pool_sizes(args, args.scheduler_config(0), spec, 2048, 10**15, room_bytes=GIB)


def test_a_split_that_is_given_needs_no_other() -> None:
    """Memory for the blocks and slots that are named, but not for what the engine would choose itself."""
    spec = ModelSpec((KINDS["windows"],))
    alone = EngineArgs(model="any", max_model_len=20, max_num_seqs=1)
    args = replace(alone, num_full_blocks=0, num_window_blocks=2, num_state_slots=0)
    assert pool_sizes(args, args.scheduler_config(0), spec, 100, 1000, GIB).num_window_blocks == 2
    with pytest.raises(ValueError, match="does not hold one request"):
        pool_sizes(alone, alone.scheduler_config(0), spec, 100, 1000, GIB)


def test_rows_and_pools_have_room_of_their_own_where_the_device_has_memory_of_its_own() -> None:
    """A gigabyte each: the tables of rows take from the host only, the pools from the device only."""
    spec = ModelSpec((KINDS["full attention"],))
    args = EngineArgs(model="any", max_model_len=2**19, num_full_blocks=2**18, num_window_blocks=0, num_state_slots=0)

    def sized(room_bytes: int, host_bytes: int | None) -> PoolSizes:
        return pool_sizes(args, args.scheduler_config(0), spec, 2**20, GIB, room_bytes, host_bytes=host_bytes)

    sizes = sized(GIB, GIB)
    tables, pools = row_table_bytes(sizes), pool_bytes(sizes, spec).total
    assert tables < GIB and pools < GIB < tables + pools
    with pytest.raises(ValueError, match=r"full blocks, .* and 128 rows of 524288 tokens, .* need .* there are"):
        sized(GIB, None)
    assert sized(pools, tables) == sizes
    with pytest.raises(ValueError, match=f"state slots need {pools:,} bytes; the device has {pools - 1:,}"):
        sized(pools - 1, GIB)
    with pytest.raises(ValueError, match=f"^128 rows of .* need {tables:,} bytes; the host has {tables - 1:,}"):
        sized(GIB, tables - 1)


def test_table_bytes_are_those_of_the_tables() -> None:
    args = EngineArgs(model="any", max_model_len=4096)
    spec = ModelSpec((KINDS["both in one layer"],))
    sizes = pool_sizes(args, args.scheduler_config(0), spec, 4096, GIB // 4, room_bytes=GIB)
    mirror, memory = RowMirror(sizes), Memory(sizes, Kinds.of(spec), True)
    tables: list[NDArray[Any]] = [mirror.token_ids, mirror.full_table, mirror.window_table]
    tables += [memory.table.token_ids, memory.table.full_table, memory.table.window_table]
    assert sum(table.nbytes for table in tables) == pytest.approx(row_table_bytes(sizes), rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "on_cpu", "on_gpu"),
    [
        ({}, 1, 2),
        ({"async_scheduling": True}, 2, 2),
        ({"async_scheduling": False}, 1, 1),
        ({"scheduler": {"max_plans_in_flight": 3}}, 3, 3),
    ],
)
def test_plans_in_flight(arguments: dict[str, Any], on_cpu: int, on_gpu: int) -> None:
    args = EngineArgs(model="any", **arguments)
    found = [args.scheduler_config(0, on_gpu=gpu).max_plans_in_flight for gpu in (False, True)]
    assert found == [on_cpu, on_gpu]
