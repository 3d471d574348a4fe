"""Commit: the only place where truth advances. Tokens are appended, stops detected, drafts verified, blocks released.

Works on whole columns; only prefill chunks and requests that end are touched one by one.
"""

from dataclasses import dataclass

import numpy as np

from hybrid.pools.ledger import EMPTY, Ints
from hybrid.pools.memory import Memory
from hybrid.pools.rows import NO_STOP_TOKEN, RowTable, ragged

from .builder import InFlight
from .decode import Drafts
from .outcome import NewTokens
from .plan import Bools, StepResult, TokenIds

NO_NEW_TOKENS: TokenIds = np.zeros((0, 1), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Advanced:
    """What one result changed: rows whose progress is now processed, tokens that became known, rows that end."""

    rows: Ints  # still owned by the request the plan was made for
    tokens: NewTokens
    ended_rows: Ints
    stop_tokens: Ints  # [len(ended_rows)] the stop token, or NO_STOP_TOKEN where the length limit ended it


def check_result(flight: InFlight, result: StepResult, max_drafts: int) -> None:
    """Raises ValueError if `result` cannot be that of the plan. Pure."""
    n = len(flight.sampling)
    if result.step_id != flight.plan.step_id:
        raise ValueError(f"result of step {result.step_id} while the oldest step in flight is {flight.plan.step_id}")
    if len(result.sampled_token_ids) != n or len(result.num_sampled) != n:
        raise ValueError(f"step {result.step_id}: {len(result.sampled_token_ids)} sampled rows, {n} rows sample")
    if n == 0:
        return
    allowed = 1 + flight.plan.num_draft_tokens[flight.sampling]
    if np.any(result.num_sampled < 1) or np.any(result.num_sampled > allowed):
        raise ValueError(
            f"step {result.step_id}: num_sampled {result.num_sampled.tolist()} is not between 1 and 1 + drafts"
        )
    if result.sampled_token_ids.shape[1] < int(result.num_sampled.max()):
        raise ValueError(f"step {result.step_id}: sampled_token_ids {result.sampled_token_ids.shape} lacks columns")
    width = result.sampled_token_ids.shape[1]
    if width > 1:  # places beyond num_sampled may hold anything
        sampled = result.sampled_token_ids[np.arange(width) < result.num_sampled[:, None]]
    else:
        sampled = result.sampled_token_ids
    if sampled.min() < 0:
        raise ValueError(f"step {result.step_id}: token {sampled.min()} was sampled")
    drafts, num_drafts = result.draft_token_ids, result.num_drafts
    if len(drafts) != n or len(num_drafts) != n:
        raise ValueError(f"step {result.step_id}: {min(len(drafts), len(num_drafts))} rows of drafts, {n} rows sample")
    if drafts.shape[1] > max_drafts:
        raise ValueError(f"step {result.step_id}: {drafts.shape[1]} drafts, num_draft_tokens is {max_drafts}")
    if np.any(num_drafts < 0) or np.any(num_drafts > drafts.shape[1]):
        raise ValueError(
            f"step {result.step_id}: num_drafts {num_drafts.tolist()} is not between 0 and {drafts.shape[1]}"
        )


def advance(memory: Memory, drafts: Drafts, flight: InFlight, result: StepResult) -> Advanced:
    """Mutates the table: progress and tokens of every row that still belongs to its request. Dropped: the rest."""
    table, plan = memory.table, flight.plan
    owned = table.epoch[plan.rows] == flight.epochs
    if owned.all():
        rows, ends = plan.rows, plan.num_computed_tokens + plan.num_scheduled_tokens
    else:
        rows, ends = plan.rows[owned], (plan.num_computed_tokens + plan.num_scheduled_tokens)[owned]
    table.num_processed[rows] = ends

    sampling = flight.sampling
    sampled = plan.rows[sampling]
    takes = owned[sampling] & table.live[sampled]
    all_take = bool(takes.all())
    index = np.arange(len(sampling)) if all_take else np.flatnonzero(takes)
    receivers = sampled if all_take else sampled[takes]
    if len(receivers) == 0:
        return Advanced(rows, NewTokens(plan.step_id, table.request_ids[:0], NO_NEW_TOKENS, EMPTY, EMPTY), EMPTY, EMPTY)
    table.placeholders[receivers] -= 1
    if result.sampled_token_ids.shape[1] == 1 and not drafts.any:
        tokens = result.sampled_token_ids if all_take else result.sampled_token_ids[index]
        counts, stop_tokens, ended = _append_one(table, receivers, tokens[:, 0])
    else:
        tokens = result.sampled_token_ids[index]
        accepted = result.num_sampled[index]
        _roll_back(table, receivers, plan.num_draft_tokens[sampling][index] - (accepted - 1))
        counts, stop_tokens, ended = _append_many(table, receivers, tokens, accepted)
    _propose_drafts(table, drafts, receivers, result, index)
    return Advanced(
        rows=rows,
        tokens=NewTokens(plan.step_id, table.request_ids[receivers], tokens, counts, index),
        ended_rows=receivers[ended],
        stop_tokens=stop_tokens[ended],
    )


def _append_one(table: RowTable, rows: Ints, tokens: TokenIds) -> tuple[Ints, Ints, Bools]:
    """One token for each row: (counts, stop token or NO_STOP_TOKEN, ended)."""
    position = table.num_tokens[rows]
    table.token_ids[rows, position] = tokens
    length = position + 1
    table.num_tokens[rows] = length
    stopped = table.is_stop(rows, tokens)
    if stopped.any():
        stopped &= length - table.num_prompt_tokens[rows] >= table.min_tokens[rows]
    ended = stopped | (length >= table.max_total_tokens[rows])
    return np.ones(len(rows), dtype=np.int64), np.where(stopped, tokens, NO_STOP_TOKEN).astype(np.int64), ended


def _roll_back(table: RowTable, rows: Ints, rejected: Ints) -> None:
    """Optimistic progress over drafts that were not accepted is taken back."""
    table.num_computed[rows] -= rejected
    table.num_processed[rows] -= rejected
    table.drafts_in_flight[rows] = 0


def _append_many(table: RowTable, rows: Ints, tokens: TokenIds, accepted: Ints) -> tuple[Ints, Ints, Bools]:
    """The same for up to 1 + drafts tokens each; nothing after a stop token or beyond the limit is taken."""
    width = tokens.shape[1]
    column = np.arange(width)
    length = table.num_tokens[rows]
    room = table.max_total_tokens[rows] - length
    count = np.minimum(accepted, room)
    stops = (table.stop_ids[rows][:, None, :] == tokens[:, :, None]).any(axis=2)
    stops &= column < count[:, None]
    stops &= length[:, None] + column + 1 - table.num_prompt_tokens[rows][:, None] >= table.min_tokens[rows][:, None]
    stopped = stops.any(axis=1)
    first_stop = stops.argmax(axis=1)
    count = np.where(stopped, first_stop + 1, count)
    owner, position = ragged(length, count)
    table.token_ids[rows[owner], position] = tokens[owner, position - length[owner]]
    table.num_tokens[rows] = length + count
    ended = stopped | (length + count >= table.max_total_tokens[rows])
    last = tokens[np.arange(len(rows)), np.maximum(count - 1, 0)]
    return count, np.where(stopped, last, NO_STOP_TOKEN).astype(np.int64), ended


def _propose_drafts(table: RowTable, drafts: Drafts, rows: Ints, result: StepResult, index: Ints) -> None:
    """Drafts for the next step. They continue the token just sampled: useless once a later plan has passed it. A row
    with a grammar has none: masks are made for one token."""
    width = result.draft_token_ids.shape[1]
    if width == 0:
        return
    drafts.any = True
    drafts.token_ids[rows, :width] = result.draft_token_ids[index]
    may = (table.placeholders[rows] == 0) & ~table.needs_grammar[rows]
    table.num_drafts[rows] = np.where(may, result.num_drafts[index], 0)
