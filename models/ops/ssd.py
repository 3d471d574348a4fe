"""The scan of Mamba-2 (state space duality) over a mixed batch, in plain torch.

Glossary (Dao and Gu 2024, "Transformers are SSMs", section 6; single letters as in the paper):
  T tokens of the batch, D decode rows, R chunks
  H heads, P channels per head, N state size, G groups (heads of a group share b and c)
  x [T, H, P] input, dt [T, H] step size, a [H] negative decay rate, b and c [T, G, N] input and output maps
  h [H, P, N] state:  h_t = exp(dt_t a) h_{t-1} + dt_t x_t (outer) b_t,  y_t = h_t . c_t
  Q tokens per block of the chunked scan, B blocks: inside a block the quadratic dual form, between them the recurrence
Snapshots inside a chunk are read off the block that holds them; the scan itself is not cut there.
"""

import torch

from .recurrent_plan import Chunks, Decodes


def ssd_decodes(
    plan: Decodes,
    x: torch.Tensor,
    dt: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    a: torch.Tensor,
    ssm: torch.Tensor,
) -> torch.Tensor:
    """The rows with one token: y [.., H, P]; advances ssm [slots, H, P, N]."""
    rows, heads, channels = x.shape
    groups, size = b.shape[1:]
    h = ssm.index_select(0, plan.slots)  # [D, H, P, N]
    if plan.fresh is not None:
        h.masked_fill_(plan.fresh[..., None], 0)
    h.mul_(torch.exp(dt * a)[:, :, None, None])
    grouped = h.view(rows, groups, -1, size)  # [D, G, H / G * P, N]
    grouped.addcmul_((x * dt[:, :, None]).view(rows, groups, -1, 1), b[:, :, None])
    ssm.index_copy_(0, plan.slots, h)
    if plan.copy_rows is not None and plan.copy_slots is not None:
        ssm.index_copy_(0, plan.copy_slots, h.index_select(0, plan.copy_rows))
    # the vector on the left: 6 times faster on a CPU than a product with one column
    y = torch.bmm(c.reshape(rows * groups, 1, size), grouped.view(rows * groups, -1, size).transpose(1, 2))
    return y.view(rows, heads, channels)


def ssd_chunks(
    plan: Chunks,
    x: torch.Tensor,
    dt: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    a: torch.Tensor,
    ssm: torch.Tensor,
) -> torch.Tensor:
    """The chunks: y [.., H, P]; advances ssm [slots, H, P, N]."""
    _, heads, channels = x.shape
    groups, size = b.shape[1:]
    blocks, length = plan.num_blocks, plan.block_size

    def padded(values: torch.Tensor) -> torch.Tensor:  # [tokens, heads or groups, n] -> [B, heads or groups, Q, n]
        out = values.new_zeros(blocks * length, *values.shape[1:])
        out.index_copy_(0, plan.padded_index, values)
        return out.view(blocks, length, *values.shape[1:]).transpose(1, 2)

    # 1. blocks of Q tokens; padding has dt 0: it neither decays nor adds
    u = padded(x * dt[:, :, None]).reshape(blocks, groups, heads // groups, length, channels)
    b, c = padded(b), padded(c)  # [B, G, Q, N]
    log_decay = padded((dt * a)[:, :, None]).squeeze(-1).cumsum(dim=-1).view(blocks, groups, -1, length)  # [B, G, ., Q]
    # 2. inside a block: y_i = sum over j <= i of (c_i . b_j) exp(decay between) u_j
    between = log_decay[..., :, None] - log_decay[..., None, :]
    future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu_(1)
    decay = between.masked_fill_(future, float("-inf")).exp_()  # [B, G, H / G, Q, Q]
    scores = torch.matmul(c, b.transpose(-1, -2))  # [B, G, Q, Q]
    y = torch.matmul(scores[:, :, None] * decay, u)  # [B, G, H / G, Q, P]
    # 3. what each block adds to the state, and the recurrence over blocks
    b_heads = b[:, :, None].expand(-1, -1, heads // groups, -1, -1)
    added = torch.matmul((u * decay[..., -1, :, None]).transpose(-1, -2), b_heads)  # [B, G, H / G, P, N]
    kept = log_decay[..., -1].exp()[..., None, None]
    h = ssm.index_select(0, plan.slots)
    if plan.fresh is not None:
        h.masked_fill_(plan.fresh[..., None], 0)
    h = h.view(plan.num_rows, groups, -1, channels, size)
    before = torch.empty_like(added)  # the state each block starts from
    for rows, row_blocks in plan.rounds:
        start = h.index_select(0, rows)
        before.index_copy_(0, row_blocks, start)
        after = torch.addcmul(added.index_select(0, row_blocks), kept.index_select(0, row_blocks), start)
        h.index_copy_(0, rows, after)
    # 4. the earlier blocks' share of y
    carried = torch.matmul(c[:, :, None], before.transpose(-1, -2))  # [B, G, H / G, Q, P]
    y.addcmul_(carried, log_decay.exp()[..., None])
    # 5. states to write: the block's start, decayed, plus what its tokens up to the offset added
    at, last = plan.written_blocks, plan.written_offsets
    share = decay[at, :, :, last]  # [S, G, H / G, Q], zero beyond `last`
    state = torch.matmul((u.index_select(0, at) * share[..., None]).transpose(-1, -2), b_heads.index_select(0, at))
    state.addcmul_(before.index_select(0, at), log_decay[at, :, :, last].exp()[..., None, None])
    ssm.index_copy_(0, plan.written_slots, state.view(-1, heads, channels, size))
    tokens = y.view(blocks, heads, length, channels).transpose(1, 2).reshape(-1, heads, channels)
    return tokens.index_select(0, plan.padded_index)
