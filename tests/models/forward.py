"""A decoder over chunks without an engine: caches full of NaN, hand-made contexts, logits of every token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from hybrid.models.context import (
    AttentionCache,
    BlockTables,
    ForwardContext,
    ImageTokens,
    LayerCache,
    Snapshots,
    StateCache,
)
from hybrid.models.decoder import Decoder
from hybrid.models.image_positions import ImagePositions
from hybrid.models.ops.lora import LoraBatch
from hybrid.pools.specs import MambaSpec

BLOCK = 4
MAX_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class RowImages:
    """The images of one row: which tokens they are, their embeddings one after the other, where all tokens stand."""

    tokens: list[int]
    embeddings: torch.Tensor  # [len(tokens), size]
    positions: ImagePositions


def caches_for(model: Decoder, num_rows: int) -> tuple[LayerCache, ...]:
    """Caches full of NaN, with a zero null block; block i of row r is r * MAX_BLOCKS + i."""
    caches: list[LayerCache] = []
    for spec in (spec for layer in model.spec.layers for spec in layer):
        if isinstance(spec, MambaSpec):
            channels, tail = spec.conv_shape
            conv = torch.full((num_rows, tail, channels), float("nan"), dtype=model.dtype)
            caches.append(StateCache(conv, torch.full((num_rows, *(spec.ssm_shape or (0,))), float("nan"))))
        else:
            shape = (num_rows * MAX_BLOCKS + 1, 2, spec.num_kv_heads, BLOCK, spec.head_size)
            kv = torch.full(shape, float("nan"), dtype=model.dtype)
            kv[-1] = 0
            caches.append(AttentionCache(kv))
    return tuple(caches)


def context_for(
    rows: list[list[int]], computed: list[int], counts: list[int], caches: tuple[LayerCache, ...]
) -> ForwardContext:
    """Row i runs tokens computed[i] .. computed[i] + counts[i] - 1; rows with one token must come first."""
    starts = np.concatenate(([0], np.cumsum(counts)))
    positions = np.concatenate([np.arange(c, c + n) for c, n in zip(computed, counts)])
    owner = np.repeat(np.arange(len(rows)), counts)
    table = np.arange(len(rows))[:, None] * MAX_BLOCKS + np.arange(MAX_BLOCKS)
    slots = table[owner, positions // BLOCK] * BLOCK + positions % BLOCK
    nothing = np.zeros(0, dtype=np.int64)
    tables = BlockTables(table, slots, BLOCK)
    return ForwardContext(
        token_ids=torch.tensor([rows[i][p] for i, p in zip(owner, positions)]),
        positions=torch.from_numpy(positions),
        query_start_loc=starts,
        num_computed_tokens=np.array(computed),
        num_decodes=counts.count(1),
        state_slots=np.arange(len(rows)),
        full=tables,
        window=tables,
        snapshots=Snapshots(nothing, nothing, nothing),
        images=None,
        caches=caches,
    )


def with_images(context: ForwardContext, images: Sequence[RowImages | None]) -> ForwardContext:
    """The same batch with the images of its rows, and three positions per token."""
    indices, embeddings, positions = [], [], []
    for i, (computed, count) in enumerate(zip(context.num_computed_tokens.tolist(), context.query_lens.tolist())):
        row = images[i]
        if row is None:
            positions.append(np.tile(np.arange(computed, computed + count), (3, 1)))
            continue
        positions.append(row.positions.at(computed, count))
        for index, token in enumerate(row.tokens):
            if computed <= token < computed + count:
                indices.append(int(context.query_start_loc[i]) + token - computed)
                embeddings.append(row.embeddings[index])
    tokens = ImageTokens(torch.tensor(indices), torch.stack(embeddings)) if indices else None
    return replace(context, images=tokens, image_positions=torch.from_numpy(np.concatenate(positions, axis=1)))


@torch.inference_mode()
def chunked_logits(
    model: Decoder,
    rows: list[list[int]],
    schedule: list[list[int]],
    units: list[list[int]] | None = None,
    images: Sequence[RowImages | None] | None = None,
) -> list[torch.Tensor]:
    """Logits of every token; schedule[step][i] tokens of row i, rows of one token first, every row in every step.

    units: the rank units of every row's adapter, all as many, -1 where there is none; images: of every row.
    """
    caches = caches_for(model, len(rows))
    computed = [0] * len(rows)
    out: list[list[torch.Tensor]] = [[] for _ in rows]
    for counts in schedule:
        lora = None if units is None else LoraBatch(np.repeat(np.array(units), counts, axis=0))
        context = replace(context_for(rows, computed, counts, caches), lora=lora)
        if images is not None:
            context = with_images(context, images)
        logits = model.compute_logits(model.forward(context), lora)
        for i, part in enumerate(logits.split(counts)):
            out[i].append(part)
            computed[i] += counts[i]
    return [torch.cat(parts) for parts in out]
