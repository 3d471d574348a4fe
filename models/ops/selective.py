"""The scan of Mamba-1 over a mixed batch, in plain torch; with one state per channel it is also that of RG-LRU.

Glossary (Gu and Dao 2023, "Mamba", section 3; single letters as in the paper):
  T tokens of the batch, D decode rows, R chunks, W channels, N state size
  u [T, W] input (dt x in Mamba), rate [T, W] (dt in Mamba), a [N, W], b and c [T, N] input and output maps
  h [N, W] state:  h_t = exp(rate_t a) h_{t-1} + b_t (outer) u_t,  y_t = c_t . h_t
  Q tokens per block of the chunked scan, B blocks
Channels lie innermost: everything is a product of whole rows. A decay per channel and state has no dual form: inside a
block the recurrence runs token by token, in all blocks of all chunks at once. Where a chunk has several blocks, a first
pass finds what each block adds to the state, and a second one starts every block from its true state.
"""

import torch

from .recurrent_plan import Chunks, Decodes


def selective_decodes(
    plan: Decodes,
    u: torch.Tensor,
    rate: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    a: torch.Tensor,
    ssm: torch.Tensor,
) -> torch.Tensor:
    """The rows with one token: y [.., W]; advances ssm [slots, N, W]."""
    h = ssm.index_select(0, plan.slots)  # [D, N, W]
    if plan.fresh is not None:
        h.masked_fill_(plan.fresh, 0)
    h.mul_((rate[:, None] * a).exp_()).addcmul_(b[:, :, None], u[:, None])
    ssm.index_copy_(0, plan.slots, h)
    if plan.copy_rows is not None and plan.copy_slots is not None:
        ssm.index_copy_(0, plan.copy_slots, h.index_select(0, plan.copy_rows))
    return torch.bmm(c[:, None], h).squeeze(1)


def selective_chunks(
    plan: Chunks,
    u: torch.Tensor,
    rate: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    a: torch.Tensor,
    ssm: torch.Tensor,
) -> torch.Tensor:
    """The chunks: y [.., W]; advances ssm [slots, N, W] and writes its snapshots."""
    blocks, length = plan.num_blocks, plan.block_size

    def padded(values: torch.Tensor) -> torch.Tensor:  # [tokens, n] -> [Q, B, n]
        out = values.new_zeros(blocks * length, values.shape[1])
        out.index_copy_(0, plan.padded_index, values)
        return out.view(blocks, length, -1).transpose(0, 1).contiguous()

    # 1. blocks of Q tokens; padding has rate and input 0: it neither decays nor adds
    u, rate, b, c = padded(u)[:, :, None], padded(rate)[:, :, None], padded(b)[..., None], padded(c)[:, :, None]
    # 2. the state before each block
    h = ssm.index_select(0, plan.slots)  # [R, N, W]
    if plan.fresh is not None:
        h.masked_fill_(plan.fresh, 0)
    if blocks > plan.num_rows:
        h = _block_starts(plan, u, rate, b, a, h)  # [B, N, W]
    # 3. all blocks, token by token; the states to write are picked up on the way
    written = h.new_empty(len(plan.written_slots), *h.shape[1:])
    y = u.new_empty(length, *h.shape[::2])  # [Q, B, W]
    for i in range(length):
        h.mul_((rate[i] * a).exp_()).addcmul_(b[i], u[i])
        y[i] = torch.bmm(c[i], h)[:, 0]
        if i in plan.written_at:
            states, at = plan.written_at[i]
            written.index_copy_(0, states, h.index_select(0, at))
    ssm.index_copy_(0, plan.written_slots, written)
    return y.transpose(0, 1).reshape(blocks * length, -1).index_select(0, plan.padded_index)


def _block_starts(
    plan: Chunks, u: torch.Tensor, rate: torch.Tensor, b: torch.Tensor, a: torch.Tensor, first: torch.Tensor
) -> torch.Tensor:
    """[B, N, W], the state before each block, from those before each chunk, `first` [R, N, W]."""
    start = first.new_empty(plan.num_blocks, *first.shape[1:])
    start.index_copy_(0, plan.rounds[0][1], first.index_select(0, plan.rounds[0][0]))
    # what the blocks that another one follows add, and by how much they decay what they start from
    later = [at for _, at in plan.rounds[1:]]
    inner = torch.cat(later) - 1
    u, rate, b = u.index_select(1, inner), rate.index_select(1, inner), b.index_select(1, inner)
    added = first.new_zeros(len(inner), *first.shape[1:])
    for i in range(plan.block_size):
        added.mul_((rate[i] * a).exp_()).addcmul_(b[i], u[i])
    kept = (rate.sum(dim=0) * a).exp_()
    # round by round: every chunk's next block
    done = 0
    for at in later:
        turn = slice(done, done + len(at))
        done += len(at)
        start.index_copy_(0, at, torch.addcmul(added[turn], kept[turn], start.index_select(0, at - 1)))
    return start
