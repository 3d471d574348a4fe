"""Attention of decode steps whose plan the device makes: what plain torch gives, however rows are cut and padded."""

import pytest
import torch

from hybrid.models.context import AttentionCache, DecodeContext
from hybrid.models.ops.torch_ops import TorchOps
from hybrid.models.ops.triton.attention import Tiling
from hybrid.models.ops.triton.decode_attention import plan_decodes

from .batches import Batch, Sizes, make

WHOLE = Tiling(block_m=16, block_n=16, min_split=1000, num_warps=4, num_stages=1)
SPLIT = Tiling(block_m=16, block_n=16, min_split=16, num_warps=4, num_stages=1)
COMPUTED = [0, 7, 8, 16, 63, 140]
PADDING = 2


def padded(batch: Batch) -> DecodeContext:
    """The batch and rows of nobody's; lines of the table lie in another order than rows."""
    count, device = len(batch.query), batch.kv.device
    order = torch.arange(count - 1, -1, -1)
    null = torch.full((1, batch.tables.table.shape[1]), len(batch.kv) - 1)
    table = torch.cat((torch.from_numpy(batch.tables.table)[order], null))
    nowhere = torch.full((PADDING,), count)
    positions = torch.cat((batch.context.positions.cpu(), torch.zeros(PADDING, dtype=torch.int64)))
    return DecodeContext(
        token_ids=torch.zeros(count + PADDING, dtype=torch.int64, device=device),
        positions=positions.to(device),
        rows=torch.cat((order, nowhere)).to(device),
        full=table.int().to(device),
        window=None,
        state_slots=torch.zeros(count + 1, dtype=torch.int64, device=device),
        caches=(),
    )


@pytest.mark.parametrize(
    ("tiling", "window", "softcap", "sinks"),
    [
        (WHOLE, None, None, False),
        (WHOLE, 9, 3.0, True),
        (SPLIT, None, None, False),
        (SPLIT, None, 3.0, True),
        (SPLIT, 40, None, True),
        (SPLIT, 1, None, False),
        (None, None, None, False),
        (None, 40, 3.0, False),
    ],
)
def test_decodes(
    tiling: Tiling | None, window: int | None, softcap: float | None, sinks: bool, device: torch.device
) -> None:
    sizes = Sizes(4, 2, 20, 8)
    batch = make(sizes, COMPUTED, [1] * len(COMPUTED), window, device, torch.float32)
    sink = torch.linspace(-1, 1, sizes.heads, device=device) if sinks else None
    ours, theirs = AttentionCache(batch.kv.clone()), AttentionCache(batch.kv.clone())
    reference = TorchOps().plan_attention(batch.context, batch.tables, window, theirs, sizes.heads)
    expected = reference(batch.query, batch.key_value, theirs, 0.3, softcap, sink)
    context = padded(batch)
    assert context.full is not None
    run = plan_decodes(context, context.full, window, ours, sizes.heads, tiling)
    if tiling is not None:
        assert (run.tiles[0].splits is not None) == (tiling is SPLIT and (window is None or window > SPLIT.min_split))
    # padding asks for poison, and would write it
    poison = torch.full((PADDING, sizes.heads + 2 * sizes.kv_heads, sizes.head_size), float("nan"), device=device)
    query = torch.cat((batch.query, poison[:, : sizes.heads]))
    key_value = torch.cat((batch.key_value, poison[:, sizes.heads :].view(PADDING, 2, sizes.kv_heads, sizes.head_size)))
    result = run(query, key_value, ours, 0.3, softcap, sink)
    torch.testing.assert_close(result[: len(COMPUTED)], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.kv.view(torch.int32), theirs.kv.view(torch.int32))
