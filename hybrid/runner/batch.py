"""Batch: a StepPlan and the row mirror as the tensors of one forward pass. No loop over decode rows.

The model wants rows with one token first; the batch is ordered so, and `WantedLogits` lead back to the plan's order.
"""

from dataclasses import dataclass

import numpy as np
import torch

from hybrid.models.context import BlockTables, DeferredStates, ForwardContext, ImageTokens, Snapshots
from hybrid.models.ops.transfer import upload
from hybrid.pools.sizing import PoolSizes
from hybrid.scheduler.plan import Bools, Ints, StepPlan

from .caches import Caches
from .latest_tokens import LatestTokens
from .lora_cache import LoraCache
from .row_mirror import UNKNOWN, RowMirror


@dataclass(frozen=True, slots=True)
class Drafted:
    """Rows with drafts on a model with recurrent state: their states wait for the verdict."""

    states: DeferredStates
    sampling_rows: Ints  # [n] which sampling row each deferred row is
    num_known: Ints  # [n] scheduled tokens that are no drafts

    def commit(self, num_sampled: Ints) -> None:
        """Mutates the state caches: known tokens and accepted drafts count. num_sampled: of every sampling row."""
        self.states.commit(self.num_known + num_sampled[self.sampling_rows] - 1)


@dataclass(frozen=True, slots=True)
class WantedLogits:
    """Which hidden states become logits, and which are the last of rows that sample nothing.

    Logit row k belongs to sampling row owner[k] (plan order) and decides the token at positions[k] of row rows[k]. A
    row with d drafts has 1 + d logit rows, one after the other.
    """

    tokens: Ints  # [num_logits] into the flat batch
    rows: Ints  # [num_logits]
    positions: Ints  # [num_logits]
    owner: Ints  # [num_logits]
    silent_rows: Ints  # [num_silent]
    silent_ends: Ints  # [num_silent] into the flat batch

    @classmethod
    def of(cls, plan: StepPlan, order: Ints) -> "WantedLogits":
        """order: batch index -> plan index."""
        place = np.empty_like(order)
        place[order] = np.arange(len(order))  # plan index -> batch index
        sampling = np.flatnonzero(plan.samples)
        counts = 1 + plan.num_draft_tokens[sampling]
        owner = np.repeat(np.arange(len(sampling)), counts)
        behind = (np.cumsum(counts) - 1)[owner] - np.arange(len(owner))  # tokens after it in its row
        last_tokens = np.cumsum(plan.num_scheduled_tokens[order])[place] - 1  # [num_rows] of the plan
        silent = np.flatnonzero(~plan.samples)
        ends = (plan.num_computed_tokens + plan.num_scheduled_tokens)[sampling]
        return cls(
            tokens=last_tokens[sampling][owner] - behind,
            rows=plan.rows[sampling][owner],
            positions=ends[owner] - behind,
            owner=owner,
            silent_rows=plan.rows[silent],
            silent_ends=last_tokens[silent],
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """The model's context, and what becomes of its output."""

    context: ForwardContext
    logits: WantedLogits
    drafted: Drafted | None


def build_batch(
    plan: StepPlan,
    mirror: RowMirror,
    latest: LatestTokens,
    caches: Caches,
    sizes: PoolSizes,
    device: torch.device,
    lora: LoraCache | None = None,
    image_token_id: int | None = None,
    bidirectional_images: bool = False,
) -> Batch:
    """Pure: reads the mirror after the plan's deltas were applied. The last two are the model's."""
    # 1. order: decode rows first, otherwise as planned
    longer = plan.num_scheduled_tokens > 1
    order = np.argsort(longer, kind="stable")
    rows = plan.rows[order]
    computed = plan.num_computed_tokens[order]
    scheduled = plan.num_scheduled_tokens[order]
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(scheduled, out=starts[1:])
    # 2. tokens
    owner = np.repeat(np.arange(len(rows)), scheduled)
    positions = np.arange(starts[-1]) + (computed - starts[:-1])[owner]
    token_rows = rows[owner]
    token_ids = mirror.token_ids[token_rows, positions].astype(np.int64)
    # 3. where they live
    size = sizes.block_size
    width = int((computed + scheduled - 1).max()) // size + 1
    logical, offset = np.divmod(positions, size)

    def tables(table: Ints, num_blocks: int) -> BlockTables:
        blocks = table[token_rows, logical]
        assert ((blocks >= 0) & (blocks < num_blocks)).all(), "a block id outside the pool"
        return BlockTables(table[rows, :width], blocks * size + offset, size)

    images = _images(plan, rows, computed, starts, caches, token_ids == image_token_id, bidirectional_images)
    drafted = _drafted(plan, order) if caches.has_state else None
    context = ForwardContext(
        token_ids=_on_device(token_ids, token_rows, latest, device),
        positions=upload(positions, device),
        query_start_loc=starts,
        num_computed_tokens=computed,
        num_decodes=int(len(rows) - longer.sum()),
        state_slots=mirror.state_slot[rows],
        full=tables(mirror.full_table, sizes.num_full_blocks) if caches.has_full else None,
        window=tables(mirror.window_table, sizes.num_window_blocks) if caches.has_window else None,
        snapshots=_snapshots(plan, rows, computed, scheduled),
        images=images,
        image_positions=_image_positions(mirror, rows, computed, starts, owner, positions, device),
        caches=caches.layers,
        deferred=None if drafted is None else drafted.states,
        lora=None if lora is None else lora.batch(mirror.lora_id[rows], scheduled),
    )
    return Batch(context, WantedLogits.of(plan, order), drafted)


def _on_device(token_ids: Ints, rows: Ints, latest: LatestTokens, device: torch.device) -> torch.Tensor:
    """token_ids [num_tokens] of rows [num_tokens], also those that the host does not know."""
    uploaded = upload(token_ids, device)
    return latest.fill(uploaded, upload(rows, device)) if (token_ids == UNKNOWN).any() else uploaded


def _batch_index(rows: Ints, wanted: Ints) -> Ints:
    """Index into the batch of each wanted row; every row appears once in a batch."""
    by_row = np.argsort(rows)
    index = by_row[np.searchsorted(rows[by_row], wanted)]
    assert (rows[index] == wanted).all(), "the plan names a row that it does not schedule"
    return index


def _drafted(plan: StepPlan, order: Ints) -> Drafted | None:
    """order: batch index -> plan index."""
    batch_rows = np.flatnonzero(plan.num_draft_tokens[order])
    if len(batch_rows) == 0:
        return None
    index = order[batch_rows]
    assert plan.samples[index].all(), "drafts of a row that does not sample"
    return Drafted(
        states=DeferredStates(batch_rows),
        sampling_rows=np.cumsum(plan.samples)[index] - 1,
        num_known=(plan.num_scheduled_tokens - plan.num_draft_tokens)[index],
    )


def _snapshots(plan: StepPlan, rows: Ints, computed: Ints, scheduled: Ints) -> Snapshots:
    if not plan.snapshots:
        nothing = np.zeros(0, dtype=np.int64)
        return Snapshots(nothing, nothing, nothing)
    index = _batch_index(rows, np.array([snapshot.row for snapshot in plan.snapshots], dtype=np.int64))
    position = np.array([snapshot.position for snapshot in plan.snapshots], dtype=np.int64)
    slots = np.array([snapshot.slot for snapshot in plan.snapshots], dtype=np.int64)
    lengths = position - computed[index]
    assert ((lengths >= 1) & (lengths <= scheduled[index])).all(), "a snapshot outside its row's chunk"
    return Snapshots(index, lengths, slots)


def _image_positions(
    mirror: RowMirror, rows: Ints, computed: Ints, starts: Ints, owner: Ints, positions: Ints, device: torch.device
) -> torch.Tensor | None:
    """[3, tokens]; None where no row has images. A loop over rows that stand before the end of their last image."""
    ends = mirror.images_end[rows]
    if not ends.any():
        return None
    three = np.tile(positions + mirror.image_shift[rows][owner], (3, 1))
    for index in np.flatnonzero(computed < ends).tolist():
        of_row = mirror.image_positions[rows[index]]
        assert of_row is not None
        first, last = starts[index : index + 2].tolist()
        three[:, first:last] = of_row.at(int(computed[index]), last - first)
    return upload(three, device)


def _images(
    plan: StepPlan,
    rows: Ints,
    computed: Ints,
    starts: Ints,
    caches: Caches,
    is_image: Bools,
    bidirectional: bool,
) -> ImageTokens | None:
    """is_image [num_tokens]: of an image's span, which tokens take an embedding; between its runs there is text."""
    if not plan.image_spans:
        return None
    assert caches.encoder is not None, "the plan brings image embeddings to a model that sees none"
    spans = plan.image_spans
    index = _batch_index(rows, np.array([span.row for span in spans], dtype=np.int64))
    first = starts[index] + np.array([span.position for span in spans], dtype=np.int64) - computed[index]
    last = first + np.array([len(span.slots) for span in spans], dtype=np.int64)
    assert ((first >= starts[index]) & (last <= starts[index + 1])).all(), "an image outside its row's chunk"
    tokens = np.concatenate([start + np.arange(len(span.slots)) for start, span in zip(first, spans)])
    slots = np.concatenate([span.slots for span in spans])
    tokens, slots = tokens[is_image[tokens]], slots[is_image[tokens]]
    device = caches.encoder.device
    embeddings = caches.encoder[upload(slots, device)]
    groups = np.stack((index, first, last), axis=1) if bidirectional else None
    return ImageTokens(upload(tokens, device), embeddings, groups)
