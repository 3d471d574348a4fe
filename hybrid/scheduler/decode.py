"""Decodes: one step of growth for all decoding rows at once. Vector operations only; no loop over requests.

Token debt = known tokens + drafts + placeholders - computed tokens: one, plus the drafts, for a decoding row.
"""

from collections.abc import Callable

import numpy as np

from hybrid.pools.ledger import Ints
from hybrid.pools.memory import Memory
from hybrid.pools.transaction import Claim, Transaction

from .builder import NO_TOKENS, PlanBuilder
from .plan import TokenIds


class Drafts:
    """Draft tokens proposed for the next step of each row. Empty (and free) without a drafter."""

    def __init__(self, num_rows: int, max_drafts: int) -> None:
        self.token_ids = np.zeros((num_rows, max_drafts), dtype=np.int32)
        self.any = False  # some row has drafts, or drafts in flight


def schedule_decodes(
    memory: Memory,
    drafts: Drafts,
    builder: PlanBuilder,
    rows: Ints,
    in_flight: bool,
    retract: Callable[[], Ints | None],
) -> None:
    """Mutates table, pools and builder: every row that can gets its token (and drafts).

    retract(): give up one victim that this plan does not hold and return the decoding rows that remain; None if there
    is nobody left to retract. It is not called while results are in flight: what they release may suffice.
    """
    table = memory.table
    rows = _eligible(memory, drafts, rows, in_flight)
    while len(rows):
        starts = table.num_computed[rows]
        counts, num_drafts = _debt(memory, drafts, builder, rows)
        if builder.token_budget < int(counts.sum()):
            rows, starts, counts, num_drafts = _within_budget(memory, builder, rows, counts, num_drafts)
            if len(rows) == 0:
                return
        growth = table.blocks_for(starts + counts) - table.num_blocks[rows]
        crossing = growth > 0
        if not (memory.kinds.full or memory.kinds.window) or not crossing.any():
            break
        if _grow(memory, builder, rows[crossing], growth[crossing]):
            break
        if num_drafts.any():
            table.num_drafts[rows] = 0  # drafts are a luxury: drop them before anybody loses its place
            continue
        remaining = None if in_flight else retract()
        if remaining is None:
            rows = _those_that_fit(memory, rows, growth)
        else:
            rows = rows[np.isin(rows, remaining)]
    if len(rows) == 0:
        return
    ends = starts + counts
    table.num_computed[rows] = ends
    table.placeholders[rows] += 1
    table.last_step[rows] = builder.step_id
    draft_tokens = NO_TOKENS
    if drafts.any and num_drafts.any():
        draft_tokens = _take_drafts(memory, drafts, rows, num_drafts)
    builder.add_decodes(rows, starts, counts, num_drafts, draft_tokens)


def _eligible(memory: Memory, drafts: Drafts, rows: Ints, in_flight: bool) -> Ints:
    """Rows that may still sample: not at their limit once what is in flight arrives, no drafts in the air, and, where
    a grammar decides what may come next, nothing in the air."""
    if not in_flight:
        return rows
    table = memory.table
    may = table.num_tokens[rows] + table.placeholders[rows] < table.max_total_tokens[rows]
    may &= ~table.needs_grammar[rows] | (table.placeholders[rows] == 0)
    if drafts.any:
        may &= table.drafts_in_flight[rows] == 0
    return rows[may]


def _debt(memory: Memory, drafts: Drafts, builder: PlanBuilder, rows: Ints) -> tuple[Ints, Ints]:
    """(scheduled tokens, of which drafts) per row."""
    table = memory.table
    if not drafts.any:
        return np.ones(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    room = table.max_total_tokens[rows] - table.num_tokens[rows] - table.placeholders[rows] - 1
    num_drafts = np.minimum(table.num_drafts[rows], np.maximum(room, 0))
    num_drafts[table.placeholders[rows] > 0] = 0
    debt = table.num_tokens[rows] + num_drafts + table.placeholders[rows] - table.num_computed[rows]
    return debt, num_drafts


def _within_budget(
    memory: Memory, builder: PlanBuilder, rows: Ints, counts: Ints, num_drafts: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """As many as the budget allows, least recently served first, of those the least served; drafts are cut before rows
    are."""
    table = memory.table
    waited_longest = np.lexsort((table.num_computed[rows] - table.num_prompt_tokens[rows], table.last_step[rows]))
    rows, counts, num_drafts = rows[waited_longest], counts[waited_longest], num_drafts[waited_longest]
    rows = rows[: builder.token_budget]
    spare = builder.token_budget - len(rows)
    wanted = counts[: len(rows)] - 1
    before = np.cumsum(wanted) - wanted
    extra = np.clip(spare - before, 0, wanted)
    return rows, table.num_computed[rows], extra + 1, np.minimum(num_drafts[: len(rows)], extra)


def _grow(memory: Memory, builder: PlanBuilder, rows: Ints, growth: Ints) -> bool:
    """One transaction for the growth of all rows that cross into a new block. False: refused, nothing changed."""
    table = memory.table
    total = int(growth.sum())
    first = table.num_blocks[rows]
    claims = []
    charge = table.window_charge[rows]
    if memory.kinds.full:
        claims.append(Claim.of(memory.full, total))
    if memory.kinds.window:
        used = first + growth - table.window_first[rows]
        charge = np.maximum(charge, used)
        claims.append(Claim(memory.window, int((charge - table.window_charge[rows]).sum()), total))
    with Transaction() as transaction:
        if transaction.reserve(*claims):
            return False
        granted = transaction.commit()
    full = granted.pop(0) if memory.kinds.full else None
    window = granted.pop(0) if memory.kinds.window else None
    table.window_charge[rows] = charge
    builder.add_blocks(rows, first, growth, full, window)
    return True


def _those_that_fit(memory: Memory, rows: Ints, growth: Ints) -> Ints:
    """Rows that need nothing, and as many of the others as there are blocks for. Pure."""
    room = min(
        pool.obtainable()
        for kind, pool in ((memory.kinds.full, memory.full), (memory.kinds.window, memory.window))
        if kind
    )
    if memory.kinds.window:
        room = min(room, max(0, memory.window.available()))
    needs = np.maximum(growth, 0)
    fits: Ints = rows[(needs == 0) | (np.cumsum(needs) <= room)]
    return fits


def _take_drafts(memory: Memory, drafts: Drafts, rows: Ints, num_drafts: Ints) -> TokenIds:
    """Mutates: the drafts of `rows` go into the plan, row after row."""
    table = memory.table
    table.drafts_in_flight[rows] = num_drafts
    table.num_drafts[rows] = 0
    width = drafts.token_ids.shape[1]
    chosen: TokenIds = drafts.token_ids[rows][np.arange(width) < num_drafts[:, None]]
    return chosen
