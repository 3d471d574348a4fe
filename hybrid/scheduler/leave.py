"""How a running request gives everything back, once, in whatever way it ends: finish, retraction, abort, failure.

What it has computed so far becomes a resume point if that is safe: tokens known and processed, and a recurrent state
only where no step in flight may still advance it.
"""

import numpy as np

from hybrid.pools.ledger import Ints
from hybrid.pools.memory import Memory

from .chunk import release_images
from .running import Running
from .tracked import Tracked


def publish_point(memory: Memory, request: Tracked, position: int, slot: int | None) -> bool:
    """Mutates: remember the resume point after `position` processed tokens of a running request. Returns whether the
    cache took the state in `slot` over."""
    table, row, kinds = memory.table, request.row, memory.kinds
    if memory.cache is None or row is None or not request.new.enable_prefix_caching or position <= 0:
        return False
    size = memory.sizes.block_size
    num_blocks = -(-position // size)
    first = int(table.window_first[row])
    return memory.cache.publish(
        request.namespace,
        request.keys(table.token_ids[row, :position]),
        table.full_table[row, :num_blocks],
        table.window_table[row, first:num_blocks],
        first,
        slot if kinds.state else None,
    )


def publish_progress(memory: Memory, request: Tracked, state_is_exact: bool) -> None:
    """Mutates: the point that the request has reached becomes a resume point. The state slot changes owner."""
    table, row = memory.table, request.row
    assert row is not None
    processed, known = int(table.num_processed[row]), int(table.num_tokens[row])
    if processed <= request.resumed_at:
        return  # nothing of its own, and the copies it began with may never have been made
    exact = state_is_exact and processed <= known and table.last_step[row] <= memory.state.settled_step
    slot = int(table.state_slot[row]) if memory.kinds.state and exact else None
    publish_point(memory, request, min(processed, known), slot)


def leave(memory: Memory, running: Running, request: Tracked, state_is_exact: bool = True) -> None:
    """Mutates: publish what is worth it, then release blocks, window, state, row, images and adapter."""
    row = request.row
    assert row is not None
    until = int(memory.table.last_step[row])
    publish_progress(memory, request, state_is_exact)
    release_images(memory, request, processed=len(request.prompt_keys), until_step=until)
    if request.adapter_units is not None and request.new.adapter is not None:
        memory.lora.leave(request.new.adapter.lora_id, request.adapter_units, until)
        request.adapter_units = None
    running.leave(request)
    memory.release_row(row)


def release_snapshot(memory: Memory, slot: int, until_step: int = 0) -> None:
    """Mutates: a snapshot slot's writer is done with it; it stays cached if the cache took it over."""
    ids: Ints = np.array([slot], dtype=np.int64)
    memory.state.release(ids, until_step)
