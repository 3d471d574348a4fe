"""PlanBuilder: gathers what has been granted for one step and freezes it into a StepPlan. Grants nothing itself."""

from dataclasses import dataclass, field

import numpy as np

from hybrid.pools.ledger import EMPTY, Ints
from hybrid.pools.rows import RowTable, ragged

from .plan import BlockDelta, EncodeImage, ImageSpan, LoadAdapter, NewRow, Snapshot, StepPlan, TokenIds
from .tracked import Tracked

NO_TOKENS: TokenIds = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class PublishPoint:
    """Publish `request`'s resume point after `position` tokens once the step was processed. slot: its snapshot, if
    any."""

    request: Tracked
    row: int
    epoch: int
    position: int
    slot: int | None


@dataclass(frozen=True, slots=True)
class InFlight:
    """A plan whose result is not processed yet, with what commit needs to know about it."""

    plan: StepPlan
    epochs: Ints  # [num_rows] owner of each row when the plan was made
    sampling: Ints  # indices into plan.rows that sample
    chunks: tuple[Tracked, ...]  # requests of which the plan computes a prefill chunk
    publish: tuple[PublishPoint, ...]


@dataclass(slots=True)
class _Table:
    """Block-table deltas of one pool."""

    rows: list[Ints] = field(default_factory=list)
    indices: list[Ints] = field(default_factory=list)
    blocks: list[Ints] = field(default_factory=list)

    def freeze(self) -> BlockDelta:
        return BlockDelta(_join(self.rows), _join(self.indices), _join(self.blocks))


def _join(parts: list[Ints]) -> Ints:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else EMPTY


def _pairs(pairs: list[tuple[int, int]]) -> Ints:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


class PlanBuilder:
    """One step in the making. `token_budget` and `encoder_budget` are what is left of the step."""

    def __init__(self, step_id: int, table: RowTable, token_budget: int, encoder_budget: int) -> None:
        self.step_id = step_id
        self.token_budget = token_budget
        self.encoder_budget = encoder_budget
        self.chunks: list[Tracked] = []
        self.chunk_starts: dict[int, int] = {}  # row -> first token of its chunk
        self.num_decodes = 0
        self._table = table
        self._rows: list[Ints] = []
        self._starts: list[Ints] = []
        self._counts: list[Ints] = []
        self._drafts: list[Ints] = []
        self._draft_tokens: list[TokenIds] = []
        self._samples: list[np.ndarray[tuple[int], np.dtype[np.bool_]]] = []
        self._new_rows: list[NewRow] = []
        self._full = _Table()
        self._window = _Table()
        self.full_copies: list[tuple[int, int]] = []
        self.window_copies: list[tuple[int, int]] = []
        self.state_copies: list[tuple[int, int]] = []
        self.snapshots: list[Snapshot] = []
        self.publish: list[PublishPoint] = []
        self.encode: list[EncodeImage] = []
        self.image_spans: list[ImageSpan] = []
        self.load_adapters: list[LoadAdapter] = []

    @property
    def empty(self) -> bool:
        return not self._rows

    def add_decodes(self, rows: Ints, starts: Ints, counts: Ints, drafts: Ints, draft_tokens: TokenIds) -> None:
        if len(rows) == 0:
            return
        self._rows.append(rows)
        self._starts.append(starts)
        self._counts.append(counts)
        self._drafts.append(drafts)
        self._draft_tokens.append(draft_tokens)
        self._samples.append(np.ones(len(rows), dtype=np.bool_))
        self.num_decodes += len(rows)
        self.token_budget -= int(counts.sum())

    def add_chunk(self, request: Tracked, start: int, count: int, samples: bool) -> None:
        assert request.row is not None
        self._rows.append(np.array([request.row], dtype=np.int64))
        self._starts.append(np.array([start], dtype=np.int64))
        self._counts.append(np.array([count], dtype=np.int64))
        self._drafts.append(np.zeros(1, dtype=np.int64))
        self._samples.append(np.array([samples]))
        self.chunks.append(request)
        self.chunk_starts[request.row] = start
        self.token_budget -= count

    def add_new_row(self, new_row: NewRow) -> None:
        self._new_rows.append(new_row)

    def add_blocks(self, rows: Ints, first: Ints, counts: Ints, full: Ints | None, window: Ints | None) -> None:
        """Mutates builder and table: `counts[i]` blocks for rows[i] from logical index first[i] on, granted row after
        row."""
        owner, indices = ragged(first, counts)
        owners = rows[owner]
        for blocks, delta, table in (
            (full, self._full, self._table.full_table),
            (window, self._window, self._table.window_table),
        ):
            if blocks is not None and len(blocks):
                table[owners, indices] = blocks
                delta.rows.append(owners)
                delta.indices.append(indices)
                delta.blocks.append(blocks)
        self._table.num_blocks[rows] = first + counts

    def add_matched_blocks(self, row: int, full: Ints, window: Ints, window_first: int) -> None:
        """Mutates builder and table: blocks shared with the prefix cache, at the head of the row's tables."""
        for blocks, first, delta, table in (
            (full, 0, self._full, self._table.full_table),
            (window, window_first, self._window, self._table.window_table),
        ):
            if len(blocks):
                table[row, first : first + len(blocks)] = blocks
                delta.rows.append(np.full(len(blocks), row, dtype=np.int64))
                delta.indices.append(np.arange(first, first + len(blocks), dtype=np.int64))
                delta.blocks.append(blocks)

    def freeze(self) -> InFlight:
        rows = _join(self._rows)
        samples = np.concatenate(self._samples) if len(self._samples) != 1 else self._samples[0]
        plan = StepPlan(
            step_id=self.step_id,
            new_rows=tuple(self._new_rows),
            rows=rows,
            num_computed_tokens=_join(self._starts),
            num_scheduled_tokens=_join(self._counts),
            samples=samples,
            num_draft_tokens=_join(self._drafts),
            draft_token_ids=np.concatenate(self._draft_tokens) if self._draft_tokens else NO_TOKENS,
            needs_grammar=self._table.needs_grammar[rows],
            full_blocks=self._full.freeze(),
            window_blocks=self._window.freeze(),
            full_copies=_pairs(self.full_copies),
            window_copies=_pairs(self.window_copies),
            state_copies=_pairs(self.state_copies),
            snapshots=tuple(self.snapshots),
            load_adapters=tuple(self.load_adapters),
            encode=tuple(self.encode),
            image_spans=tuple(self.image_spans),
        )
        return InFlight(
            plan=plan,
            epochs=self._table.epoch[rows],
            sampling=np.flatnonzero(samples),
            chunks=tuple(self.chunks),
            publish=tuple(self.publish),
        )
