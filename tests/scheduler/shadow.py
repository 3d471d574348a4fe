"""ShadowRunner: a runner without a model that checks what a model would read.

Its caches hold, per block and offset, the hash of the history up to the token written there; its recurrent states hold
the hash of exactly the tokens they have seen. An image's placeholders count as tokens of the image, an adapter as a
token before the first. A chunk that would read a wrong, stale or missing entry raises WrongMemory. The next token is a
function of the whole history, so any mistake also shows in the output.

A step may be told to fail: everything it would have written becomes POISON, whoever reads that passes it on, and a
poisoned row samples WRONG_TOKEN, which must never reach an output.
"""

from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.scheduler.plan import StepPlan, StepResult
from hybrid.scheduler.request import NewRequest

VOCABULARY = 50
EOS = 0
WRONG_TOKEN = VOCABULARY + 1
UNWRITTEN = -1
POISON = -2
MASK = (1 << 61) - 1

Cache = NDArray[np.int64]  # [blocks, block_size] or [rows, logical blocks]


class WrongMemory(AssertionError):
    """A chunk would read something that was not written for its tokens."""


def extend(history: int, token: int) -> int:
    """Hash of a history with one token more."""
    return (history * 1_000_003 + token + 7) & MASK


def histories(tokens: list[int], start: int = 0) -> list[int]:
    """out[i]: hash of tokens[:i]."""
    out = [start]
    for token in tokens:
        out.append(extend(out[-1], token))
    return out


def next_token(history: int) -> int:
    """The model: eos about once in 40 tokens."""
    mixed = (history ^ (history >> 17)) * 0x9E3779B97F4A7C15 & MASK
    return EOS if mixed % 41 == 0 else 1 + (mixed >> 7) % (VOCABULARY - 1)


def embedding(mm_hash: str, offset: int) -> int:
    """What image token `offset` looks like to the model."""
    return 1000 + 1000 * crc32(mm_hash.encode()) + offset


def seen_tokens(new: NewRequest, token_ids: list[int]) -> list[int]:
    """The tokens as the model sees them: placeholders replaced by embeddings."""
    tokens = list(token_ids)
    for image in new.images:
        tokens[image.offset : image.offset + image.num_tokens] = [
            embedding(image.mm_hash, offset) for offset in range(image.num_tokens)
        ]
    return tokens


def expected_output(new: NewRequest, max_model_len: int = 1 << 30) -> list[int]:
    """What any correct engine generates."""
    prompt = new.prompt_token_ids.tolist()
    start = new.adapter.lora_id if new.adapter is not None else 0
    history, out = histories(seen_tokens(new, prompt), start)[-1], list[int]()
    while len(out) < min(new.max_tokens, max_model_len - len(prompt)):
        out.append(next_token(history))
        history = extend(history, out[-1])
        if out[-1] in new.stop_token_ids and len(out) >= new.min_tokens:
            break
    return out


@dataclass
class Row:
    """What a runner keeps of a running request."""

    request: NewRequest
    slot: int
    tokens: list[int]  # as the model sees them, sampled ones included
    history: list[int]  # history[i]: hash of tokens[:i]
    tainted: bool = False  # a failed step computed for it, or it has read POISON


@dataclass
class ShadowRunner:
    """Executes plans in order. `num_drafts`: propose so many tokens; every third proposal is wrong."""

    sizes: PoolSizes
    kinds: Kinds
    num_drafts: int = 0
    requests: dict[str, NewRequest] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    states: dict[int, tuple[int, int]] = field(default_factory=dict)  # slot -> (tokens seen, history)
    encoder: dict[int, int] = field(default_factory=dict)  # slot -> embedding
    encoded: list[str] = field(default_factory=list)  # image hashes in the order of encoding
    last_step: int = 0
    proposals: int = 0

    def __post_init__(self) -> None:
        sizes = self.sizes
        width = -(-(sizes.max_model_len + sizes.lookahead) // sizes.block_size) + 1
        self.full: Cache = np.full((sizes.num_full_blocks, sizes.block_size), UNWRITTEN, dtype=np.int64)
        self.window: Cache = np.full((sizes.num_window_blocks, sizes.block_size), UNWRITTEN, dtype=np.int64)
        self.full_table: Cache = np.full((sizes.num_rows, width), UNWRITTEN, dtype=np.int64)
        self.window_table: Cache = np.full((sizes.num_rows, width), UNWRITTEN, dtype=np.int64)

    def add(self, new: NewRequest) -> None:
        self.requests[new.request_id] = new

    def name(self, row: int) -> str:
        return self.rows[row].request.request_id

    def execute(self, plan: StepPlan, fails: bool = False) -> StepResult:
        assert plan.step_id == self.last_step + 1, "plans are executed in order"
        self.last_step = plan.step_id
        for new in plan.new_rows:
            request = self.requests[new.request_id]
            tokens = seen_tokens(request, new.token_ids.tolist())
            self.rows[new.row] = Row(request, new.state_slot, tokens, histories(tokens, new.lora_id))
            self.full_table[new.row] = self.window_table[new.row] = UNWRITTEN
        for delta, table in ((plan.full_blocks, self.full_table), (plan.window_blocks, self.window_table)):
            table[delta.rows, delta.indices] = delta.blocks
        for copies, cache in ((plan.full_copies, self.full), (plan.window_copies, self.window)):
            cache[copies[:, 1]] = POISON if fails else cache[copies[:, 0]]
        for source, target in plan.state_copies.tolist():
            self.states[target] = (POISON, POISON) if fails else self.states[source]
        for image in plan.encode:
            self.encoded.append(image.mm_hash)
            for offset, slot in enumerate(image.slots.tolist()):
                self.encoder[slot] = POISON if fails else embedding(image.mm_hash, offset)
        self._check_images(plan)
        sampled: list[list[int]] = []
        drafts: list[list[int]] = []
        used = 0
        for i, row in enumerate(plan.rows.tolist()):
            num_drafts = int(plan.num_draft_tokens[i])
            draft = plan.draft_token_ids[used : used + num_drafts].tolist()
            used += num_drafts
            out = self._compute(plan, i, draft, fails)
            if plan.samples[i]:
                sampled.append(out)
                drafts.append(self._propose(self.rows[row]) if self.num_drafts else [])
        return result(plan.step_id, sampled, drafts)

    def _compute(self, plan: StepPlan, i: int, draft: list[int], fails: bool) -> list[int]:
        """Row i of the plan: reads, writes, and the tokens it samples."""
        index, start = int(plan.rows[i]), int(plan.num_computed_tokens[i])
        row, end = self.rows[index], start + int(plan.num_scheduled_tokens[i])
        first_draft = end - len(draft)
        if first_draft > len(row.tokens):
            raise WrongMemory(f"row {index} computes up to {end} but only {len(row.tokens)} tokens are known")
        history = row.history[: first_draft + 1]
        for token in draft:
            history.append(extend(history[-1], token))
        first_seen = max(0, start - self.sizes.sliding_window + 1)
        if self.kinds.full:
            self._read(self.full, self.full_table, index, history, 0, start)
        if self.kinds.window:
            self._read(self.window, self.window_table, index, history, first_seen, start)
        if self.kinds.state and start > 0:
            seen = self.states.get(row.slot)
            if seen is not None and seen[1] == POISON:
                row.tainted = True
            elif seen != (start, history[start]) and not row.tainted:
                raise WrongMemory(f"row {index} ({self.name(index)}) starts at {start} from the state {seen}")
        row.tainted |= fails
        self._write(index, start, [POISON] * (end - start) if row.tainted else history[start + 1 : end + 1])
        accepted = 0
        while accepted < len(draft) and next_token(history[first_draft + accepted]) == draft[accepted]:
            accepted += 1
        end = first_draft + accepted
        self.states[row.slot] = (POISON, POISON) if row.tainted else (end, history[end])
        for snapshot in plan.snapshots:
            if snapshot.row == index:
                assert start < snapshot.position <= start + int(plan.num_scheduled_tokens[i])
                position = snapshot.position
                self.states[snapshot.slot] = (POISON, POISON) if row.tainted else (position, history[position])
        if not plan.samples[i]:
            return []
        assert first_draft == len(row.tokens), f"row {index} samples before its last known token"
        out = [*draft[:accepted], WRONG_TOKEN if row.tainted else next_token(history[end])]
        row.tokens += out
        row.history = [*history[: end + 1], extend(history[end], out[-1])]
        return out

    def _read(self, cache: Cache, table: Cache, index: int, history: list[int], first: int, end: int) -> None:
        """Positions first .. end - 1 of the row, through its block table."""
        row = self.rows[index]
        if first >= end or row.tainted:
            return
        position = np.arange(first, end)
        blocks = table[index, position // self.sizes.block_size]
        there = np.where(blocks >= 0, cache[blocks, position % self.sizes.block_size], UNWRITTEN)
        wrong = there != np.array(history[first + 1 : end + 1], dtype=np.int64)
        if not wrong.any():
            return
        row.tainted = bool((there[wrong] == POISON).any())
        if not row.tainted:
            at = int(np.flatnonzero(wrong)[0])
            name = self.name(index)
            raise WrongMemory(f"row {index} ({name}) reads position {first + at} in block {blocks[at]}: {there[at]}")

    def _write(self, index: int, start: int, values: list[int]) -> None:
        position = np.arange(start, start + len(values))
        block, offset = position // self.sizes.block_size, position % self.sizes.block_size
        for kind, cache, table in (
            (self.kinds.full, self.full, self.full_table),
            (self.kinds.window, self.window, self.window_table),
        ):
            if kind:
                assert (table[index, block] >= 0).all(), f"row {index} writes where it has no block"
                cache[table[index, block], offset] = values

    def _check_images(self, plan: StepPlan) -> None:
        """Every placeholder token of the step gets exactly its embedding, and nothing else does."""
        given: dict[tuple[int, int], int] = {}
        for span in plan.image_spans:
            for offset, slot in enumerate(span.slots.tolist()):
                value = self.encoder.get(slot, UNWRITTEN)
                if value == POISON:
                    self.rows[span.row].tainted = True
                given[span.row, span.position + offset] = value
        for row, start, count in zip(
            plan.rows.tolist(), plan.num_computed_tokens.tolist(), plan.num_scheduled_tokens.tolist(), strict=True
        ):
            for image in self.rows[row].request.images:
                for position in range(max(start, image.offset), min(start + count, image.offset + image.num_tokens)):
                    wanted = embedding(image.mm_hash, position - image.offset)
                    there = given.pop((row, position), UNWRITTEN)
                    if there not in (wanted, POISON):
                        raise WrongMemory(f"step {plan.step_id}: row {row} reads {there} as image token {position}")
        if given:
            raise WrongMemory(f"step {plan.step_id}: embeddings {given} that no scheduled token wants")

    def _propose(self, row: Row) -> list[int]:
        history, out = row.history[-1], list[int]()
        for _ in range(self.num_drafts):
            self.proposals += 1
            out.append(next_token(history) if self.proposals % 3 else WRONG_TOKEN)
            history = extend(history, out[-1])
        return out


def result(step_id: int, sampled: list[list[int]], drafts: list[list[int]]) -> StepResult:
    """A StepResult from plain lists, one entry per sampling row."""

    def table(lists: list[list[int]]) -> NDArray[np.int32]:
        out = np.full((len(lists), max((len(row) for row in lists), default=0)), UNWRITTEN, dtype=np.int32)
        for i, row in enumerate(lists):
            out[i, : len(row)] = row
        return out

    return StepResult(
        step_id=step_id,
        sampled_token_ids=table(sampled),
        num_sampled=np.array([len(row) for row in sampled], dtype=np.int64),
        draft_token_ids=table(drafts),
        num_drafts=np.array([len(row) for row in drafts], dtype=np.int64),
    )
