"""Memory: the six pools, the row table and the prefix cache of one engine, and the rules by which a row gives back.

Everything that runs is released here and nowhere else, each thing once: blocks, window, state, row, images, adapter.
"""

from collections.abc import Iterator

import numpy as np

from .keyed import KeyedPool
from .ledger import Ints, InvariantViolation, Ledger, UnitPool
from .prefix_cache import PrefixCache
from .rows import RowTable, ragged
from .sizing import POOL_UNITS, Kinds, PoolSizes
from .window import WindowPool


class Memory:
    """Six ledgers, one table, one cache."""

    def __init__(self, sizes: PoolSizes, kinds: Kinds, enable_prefix_caching: bool = True) -> None:
        self.sizes = sizes
        self.kinds = kinds

        def unit(name: str) -> str:
            return POOL_UNITS[name]

        self.rows = UnitPool("request row", unit("request row"), sizes.num_rows)
        self.full = UnitPool("full attention", unit("full attention"), sizes.num_full_blocks)
        self.window = WindowPool("sliding window", unit("sliding window"), sizes.num_window_blocks)
        self.state = UnitPool("recurrent state", unit("recurrent state"), sizes.num_state_slots)
        self.encoder: KeyedPool[str] = KeyedPool("encoder", unit("encoder"), sizes.encoder_tokens)
        self.lora: KeyedPool[int] = KeyedPool("LoRA", unit("LoRA"), sizes.lora_units)
        self.table = RowTable(sizes.num_rows, sizes.max_model_len, sizes.block_size, sizes.lookahead)
        self.cache: PrefixCache | None = None
        if enable_prefix_caching:
            self.cache = PrefixCache(
                sizes.block_size,
                sizes.sliding_window,
                self.full if kinds.full else None,
                self.window if kinds.window else None,
                self.state if kinds.state else None,
            )

    @property
    def pools(self) -> tuple[UnitPool, ...]:
        return self.rows, self.full, self.window, self.state, self.encoder, self.lora

    def ledgers(self) -> dict[str, Ledger]:
        return {pool.name: pool.ledger() for pool in self.pools}

    def settle(self, step: int) -> None:
        for pool in self.pools:
            pool.settle(step)

    def release_behind_window(self, rows: Ints) -> None:
        """Mutates: window blocks that no later token of `rows` sees go back, and the charge falls with them. Later
        plans of these rows start at or after the committed progress, so no step in flight reads these blocks."""
        if not self.kinds.window:
            return
        table = self.table
        passed, counts = table.behind_window(rows, self.sizes.sliding_window)
        if len(passed) == 0:
            return
        owner, indices = ragged(table.window_first[passed], counts)
        self.window.release(table.window_table[passed[owner], indices])
        table.window_first[passed] += counts
        used = table.num_blocks[passed] - table.window_first[passed]
        charge = np.maximum(table.window_quota[passed], used)
        self.window.uncharge(int((table.window_charge[passed] - charge).sum()))
        table.window_charge[passed] = charge

    def release_row(self, row: int) -> None:
        """Mutates: everything the row holds in rows, full, window and state pools goes back, pending while a step in
        flight touches it. What the cache remembers stays cached: a published state changes owner here, without a
        copy."""
        table = self.table
        until = int(table.last_step[row])
        if self.kinds.full:
            self.full.release(table.full_blocks(row), until)
        if self.kinds.window:
            self.window.release(table.window_blocks(row), until)
            self.window.uncharge(int(table.window_charge[row]))
        if self.kinds.state:
            self.state.release(table.state_slot[row : row + 1].copy(), until)
        table.clear(row)
        self.rows.release(np.array([row], dtype=np.int64), until)

    def check(self, running: Iterator[int] | list[int]) -> None:
        """Every invariant of pools, cache and table. `running`: rows that hold memory. Raises InvariantViolation."""
        for pool in self.pools:
            pool.check()
        if self.cache is not None:
            self.cache.check()
        table = self.table
        charged = 0
        for row in running:
            if self.rows.refs[row] == 0:
                raise InvariantViolation(f"request row: row {row} is free but runs {table.request_ids[row]!r}")
            allocated = int(table.num_blocks[row]) * table.block_size
            if table.num_computed[row] > allocated and (self.kinds.full or self.kinds.window):
                raise InvariantViolation(
                    f"row {row} has computed {table.num_computed[row]} tokens but holds blocks for {allocated}"
                )
            if not table.num_processed[row] <= table.num_computed[row]:
                raise InvariantViolation(
                    f"row {row} has processed {table.num_processed[row]} tokens but computed {table.num_computed[row]}"
                )
            owned: tuple[tuple[UnitPool, Ints], ...] = ()
            if self.kinds.full:
                owned += ((self.full, table.full_blocks(row)),)
            if self.kinds.window:
                owned += ((self.window, table.window_blocks(row)),)
                charged += int(table.window_charge[row])
            if self.kinds.state:
                owned += ((self.state, table.state_slot[row : row + 1]),)
            for pool, ids in owned:
                for index in ids[pool.refs[ids] == 0].tolist():
                    raise InvariantViolation(f"{pool.name}: {pool.unit} {index} is free but row {row} owns it")
        if self.kinds.window and charged != self.window.charged:
            raise InvariantViolation(f"sliding window: {self.window.charged} blocks charged, the rows say {charged}")
