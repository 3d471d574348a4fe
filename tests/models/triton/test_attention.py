"""Paged attention by Triton's kernels gives what plain torch gives, over mixed batches of odd lengths and sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hybrid.models.context import AttentionCache, ImageTokens
from hybrid.models.ops.torch_ops import TorchOps
from hybrid.models.ops.triton.attention import Tiling, TritonAttention
from hybrid.models.ops.workspace import Workspace

from .batches import Batch, Sizes, make

SMALL = Tiling(block_m=16, block_n=16, min_split=1000, num_warps=4, num_stages=1)
WIDE = replace(SMALL, block_m=32, block_n=32)
SPLIT = replace(SMALL, min_split=16)


def plan(
    batch: Batch, cache: AttentionCache, window: int | None, tilings: tuple[Tiling, Tiling] | None
) -> TritonAttention:
    heads = batch.query.shape[1]
    return TritonAttention.plan(batch.context, batch.tables, window, cache, heads, Workspace(), tilings)


def compare(
    batch: Batch,
    window: int | None,
    tilings: tuple[Tiling, Tiling] | None,
    softcap: float | None = None,
    sinks: bool = False,
    scale: float = 0.3,
    tolerance: float = 1e-5,
) -> None:
    """The kernels' results and caches are those of plain torch."""
    sink = torch.randn(batch.query.shape[1], generator=torch.Generator().manual_seed(1)) if sinks else None
    sink = None if sink is None else sink.to(batch.query.device)
    ours, theirs = AttentionCache(batch.kv.clone()), AttentionCache(batch.kv.clone())
    reference = TorchOps().plan_attention(batch.context, batch.tables, window, theirs, batch.query.shape[1])
    expected = reference(batch.query, batch.key_value, theirs, scale, softcap, sink)
    result = plan(batch, ours, window, tilings)(batch.query, batch.key_value, ours, scale, softcap, sink)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(torch.nan_to_num(ours.kv, 7.0), torch.nan_to_num(theirs.kv, 7.0))


MIXED = ([0, 6, 40, 0, 5, 30], [1, 1, 1, 3, 17, 33])  # computed, counts


SIZES = [Sizes(6, 3, 10, 4), Sizes(5, 1, 33, 7), Sizes(4, 4, 64, 16), Sizes(2, 2, 1, 1), Sizes(24, 1, 16, 32)]


@pytest.mark.parametrize(
    ("sizes", "window"),
    [*((sizes, window) for sizes in SIZES for window in (None, 5)), (SIZES[1], 1), (SIZES[1], 21)],
    ids=str,
)
def test_mixed_batches(sizes: Sizes, window: int | None, device: torch.device) -> None:
    tiling = WIDE if sizes.heads > 16 else SMALL
    compare(make(sizes, *MIXED, window, device, torch.float32), window, (tiling, tiling))


@pytest.mark.parametrize(
    ("softcap", "sinks", "tiling", "window"),
    [(3.0, False, WIDE, None), (None, True, WIDE, 13), (3.0, True, SPLIT, None), (None, True, SPLIT, 25)],
)
def test_caps_and_sinks(
    softcap: float | None, sinks: bool, tiling: Tiling, window: int | None, device: torch.device
) -> None:
    batch = make(Sizes(6, 2, 20, 8), [0, 40, 5, 30], [1, 1, 3, 12], window, device, torch.float32)
    compare(batch, window, (tiling, tiling), softcap, sinks)


@pytest.mark.parametrize("head_size", [64, 80, 96, 112, 128, 192, 256, 512])
def test_sizes_of_heads_with_their_own_tilings(head_size: int, device: torch.device) -> None:
    batch = make(Sizes(4, 2, head_size, 16), [37, 20], [1, 19], None, device, torch.float32)
    compare(batch, None, None, scale=head_size**-0.5)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
def test_lengths_around_tiles_blocks_and_splits(length: int, device: torch.device) -> None:
    for computed, counts in (([length - 1], [1]), ([0], [length])):
        batch = make(Sizes(2, 1, 16, 16), computed, counts, None, device, torch.float32)
        compare(batch, None, (SPLIT, SPLIT))


def test_long_tiles_are_split(device: torch.device) -> None:
    batch = make(Sizes(4, 2, 16, 8), [200, 3, 90], [1, 1, 5], None, device, torch.float32)
    cache = AttentionCache(batch.kv)
    assert [part.splits is not None for part in plan(batch, cache, None, (SPLIT, SPLIT)).tiles] == [True, True]
    assert [part.splits is not None for part in plan(batch, cache, 8, (SPLIT, SPLIT)).tiles] == [False, False]
    compare(batch, None, (SPLIT, SPLIT))


def test_decodes_alone_chunks_alone_and_nothing(device: torch.device) -> None:
    for computed, counts in (([9, 30], [1, 1]), ([9, 0], [2, 30]), ([], [])):
        batch = make(Sizes(4, 2, 16, 8), computed, counts, None, device, torch.float32)
        cache = AttentionCache(batch.kv)
        assert plan(batch, cache, None, None)(batch.query, batch.key_value, cache, 1.0).shape == batch.query.shape
        if counts:
            compare(batch, None, None)


@pytest.mark.parametrize("window", [None, 9])
def test_bfloat16(window: int | None, device: torch.device) -> None:
    batch = make(Sizes(6, 2, 24, 8), *MIXED, window, device, torch.bfloat16)
    compare(batch, window, (SPLIT, WIDE), tolerance=2e-2)


def test_a_layer_that_reads_what_another_one_wrote(device: torch.device) -> None:
    batch = make(Sizes(4, 2, 16, 8), *MIXED, None, device, torch.float32)
    cache = AttentionCache(batch.kv)
    run = plan(batch, cache, None, None)
    written = run(batch.query, batch.key_value, cache, 0.3)
    assert torch.equal(run(batch.query, None, cache, 0.3), written)


def test_a_padded_token_writes_nothing(device: torch.device) -> None:
    batch = make(Sizes(4, 2, 16, 8), [9, 30], [1, 1], None, device, torch.float32)
    padded = replace(batch.tables, slot_mapping=np.array([batch.tables.slot_mapping[0], -1]))
    cache = AttentionCache(batch.kv.clone())
    run = TritonAttention.plan(batch.context, padded, None, cache, 4, Workspace())
    run(batch.query, batch.key_value, cache, 0.3)
    changed = (torch.nan_to_num(cache.kv, 7.0) != torch.nan_to_num(batch.kv, 7.0)).any(dim=(1, 2, 4)).nonzero()
    assert changed.tolist() == [list(divmod(int(padded.slot_mapping[0]), 8))]


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("tiling", [SMALL, SPLIT], ids=["whole", "split"])
def test_tokens_of_an_image_see_each_other(window: int | None, tiling: Tiling, device: torch.device) -> None:
    images = [(0, 0, 1), (1, 1, 13), (1, 16, 25), (2, 26, 32)]  # row, first flat token, end
    batch = make(Sizes(4, 1, 16, 8), [7, 5, 0], [1, 24, 8], window, device, torch.float32)
    groups = ImageTokens(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4), np.array(images))
    compare(replace(batch, context=replace(batch.context, images=groups)), window, (tiling, tiling), softcap=3.0)
