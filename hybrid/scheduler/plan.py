"""StepPlan and StepResult: what the scheduler tells the runner and what it hears back, paired by `step_id`.

Plain frozen data: numbers and numpy arrays, no Request objects, so that every rank of a distributed run executes the
same plan. A plan holds only what was really granted. Plans are executed strictly in `step_id` order, also when the
result of the one before has not been committed yet.

Array dtypes: rows, blocks, slots, positions and counts are int64; token ids are int32.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
TokenIds = NDArray[np.int32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request enters (or re-enters, after retraction) the running set at `row`.

    `token_ids` are all its known tokens: the prompt and, after a retraction, what it had generated. Everything else
    of the row's former owner is void. `num_computed_tokens` > 0 means a prefix-cache hit; the blocks of the hit come
    with the plan's block deltas, its recurrent state through `state_copies`.
    """

    row: int
    request_id: str
    token_ids: TokenIds  # [num_known_tokens]
    num_prompt_tokens: int
    num_computed_tokens: int
    state_slot: int  # this row's own recurrent-state slot; 0 when the model keeps no state
    lora_id: int  # 0: the base model


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """New entries of the block tables of one pool: block_table[rows[i], indices[i]] = blocks[i]."""

    rows: Ints  # [n]
    indices: Ints  # [n] logical block: position // block_size
    blocks: Ints  # [n]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy `row`'s recurrent state as it is after exactly `position` tokens into `slot`, while the step runs.

    start < position <= start + num_scheduled_tokens of that row. `row` is a row id, not an index into the plan.
    """

    row: int
    position: int
    slot: int


@dataclass(frozen=True, slots=True)
class EncodeImage:
    """Run the encoder on the image and write embedding token i to encoder slot `slots[i]`, before the decoder runs."""

    mm_hash: str
    request_id: str  # a request that brought this image's pixels
    slots: Ints  # [num_image_tokens]


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Write the adapter's matrices into these rank units, before the decoder runs; whatever they held is void."""

    lora_id: int
    units: Ints  # [rank units of the adapter]


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Scheduled tokens position .. position + len(slots) - 1 of `row` take their embedding from these encoder slots."""

    row: int
    position: int
    slots: Ints  # [n], the part of the image inside this chunk


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One mixed batch. Order of work: copies, adapters, encoder, decoder with snapshots, sampling.

    Row i of the batch computes tokens num_computed_tokens[i] .. + num_scheduled_tokens[i] of row `rows[i]`. Where
    `samples[i]`, the chunk ends at the last known token and one token is sampled (with drafts: 1 + accepted).
    A decoding row's input may be a token that an earlier, uncommitted plan samples: the runner has it, the plan not.
    Draft tokens are the last num_draft_tokens[i] scheduled tokens of row i; draft_token_ids holds them row after row.
    A row with drafts leaves its recurrent state after exactly num_computed + 1 + accepted drafts.
    A chunk with num_computed_tokens[i] == 0 starts from zero state; any other starts from its state slot.
    """

    step_id: int
    new_rows: tuple[NewRow, ...]
    rows: Ints  # [num_rows]
    num_computed_tokens: Ints  # [num_rows]
    num_scheduled_tokens: Ints  # [num_rows], each >= 1
    samples: Bools  # [num_rows]
    num_draft_tokens: Ints  # [num_rows]
    draft_token_ids: TokenIds  # [sum of num_draft_tokens]
    needs_grammar: Bools  # [num_rows]
    full_blocks: BlockDelta
    window_blocks: BlockDelta
    full_copies: Ints  # [n, 2] (source block, destination block)
    window_copies: Ints  # [n, 2]
    state_copies: Ints  # [n, 2] (source slot, destination slot)
    snapshots: tuple[Snapshot, ...]
    load_adapters: tuple[LoadAdapter, ...]
    encode: tuple[EncodeImage, ...]
    image_spans: tuple[ImageSpan, ...]

    @property
    def num_tokens(self) -> int:
        return int(self.num_scheduled_tokens.sum())


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of the plan with this `step_id`. Rows appear in plan order, those with `samples` only.

    sampled_token_ids[j, :num_sampled[j]] are row j's new tokens (accepted drafts first, then the token sampled after
    them). `draft_token_ids[j, :num_drafts[j]]` are proposals for its next step; an empty [n, 0] array without a
    drafter.
    """

    step_id: int
    sampled_token_ids: TokenIds  # [num_sampling_rows, 1 + max_drafts]
    num_sampled: Ints  # [num_sampling_rows], each >= 1
    draft_token_ids: TokenIds  # [num_sampling_rows, max_next_drafts]
    num_drafts: Ints  # [num_sampling_rows]

    @classmethod
    def one_each(cls, step_id: int, token_ids: TokenIds) -> "StepResult":
        """A token for each row that samples, [num_sampling_rows], and no drafts."""
        n = len(token_ids)
        return cls(
            step_id=step_id,
            sampled_token_ids=token_ids[:, None],
            num_sampled=np.ones(n, dtype=np.int64),
            draft_token_ids=np.zeros((n, 0), dtype=np.int32),
            num_drafts=np.zeros(n, dtype=np.int64),
        )
