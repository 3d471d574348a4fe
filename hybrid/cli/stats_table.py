"""The six ledgers and what the prefix cache saved, as a table for a terminal."""

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table

if TYPE_CHECKING:
    from hybrid.scheduler.stats import SchedulerStats

COLUMNS = ("free", "reserved", "held", "cached", "pinned", "pending")


def stats_table(stats: "SchedulerStats") -> Group:
    """One row per pool, in its own units, then one line of counters."""
    from hybrid.pools.sizing import POOL_UNITS

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)  # fits into 80 columns
    for column in ("pool", "unit"):
        table.add_column(column, no_wrap=True)
    for column in (*COLUMNS, "total"):
        table.add_column(column, justify="right", no_wrap=True)
    for pool, ledger in stats.ledgers.items():
        counts = [f"{getattr(ledger, column):,}" for column in COLUMNS]
        table.add_row(pool, POOL_UNITS.get(pool, ""), *counts, f"{ledger.total:,}")
    share = f" ({stats.hit_tokens / stats.prompt_tokens:.0%})" if stats.prompt_tokens else ""
    line = (
        f"{stats.hit_tokens:,} of {stats.prompt_tokens:,} prompt tokens came from the prefix cache{share}; "
        f"{stats.retractions:,} retractions, {stats.recomputed_tokens:,} tokens recomputed, "
        f"{stats.failed_steps:,} failed steps; {stats.num_running} running, {stats.num_waiting} waiting"
    )
    return Group(table, line)
