"""The gated delta rule over a mixed batch, in plain torch: a state that forgets, and replaces what a key held.

Glossary (Yang et al. 2024, "Gated Delta Networks"; the WY/UT form: Yang et al. 2024, "Parallelizing linear transformers
with the delta rule over sequence length", section 3):
  T tokens of the batch, D decode rows, R chunks
  G key heads, H value heads (those of a group share q and k), K and V channels per head
  q and k [T, G, K] query (scaled) and key (of unit length), v [T, H, V] value
  g [T, H] log decay, at most 0, beta [T, H] how much of what the key held is replaced
  s [H, K, V] state:  s' = exp(g_t) s_{t-1},  n_t = beta_t (v_t - k_t s'),  s_t = s' + k_t (outer) n_t,  y_t = q_t s_t
  Q tokens per block, B blocks: inside a block a triangular system gives the new values n, between blocks the recurrence
Snapshots inside a chunk follow from the start of the block that holds them and the block's new values.
"""

import torch

from .recurrent_plan import Chunks, Decodes


def delta_decodes(
    plan: Decodes,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
) -> torch.Tensor:
    """The rows with one token: y [D, H, V]; advances states [slots, H, K, V]."""
    rows, groups, _ = k.shape
    heads = v.shape[1]
    s = states.index_select(0, plan.slots)  # [D, H, K, V]
    if plan.fresh is not None:
        s.masked_fill_(plan.fresh[..., None], 0)
    s.mul_(g.exp()[:, :, None, None])
    grouped = s.view(rows, groups, heads // groups, *s.shape[2:])  # [D, G, H / G, K, V]
    # 1. what key and query read of the decayed state, in one pass over it
    key_query = torch.stack((k, q), dim=2)[:, :, None]  # [D, G, 1, 2, K]
    held, y = torch.matmul(key_query, grouped).unbind(dim=-2)  # [D, G, H / G, V]
    new = (v.view(held.shape) - held) * beta.view(rows, groups, -1, 1)
    # 2. the query also sees the new value
    y = torch.addcmul(y, new, (q * k).sum(dim=-1)[:, :, None, None])
    grouped.addcmul_(k[:, :, None, :, None], new[..., None, :])
    states.index_copy_(0, plan.slots, s)
    if plan.copy_rows is not None and plan.copy_slots is not None:
        states.index_copy_(0, plan.copy_slots, s.index_select(0, plan.copy_rows))
    return y.reshape(v.shape)


def delta_chunks(
    plan: Chunks,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
) -> torch.Tensor:
    """The chunks: y [tokens, H, V]; advances states [slots, H, K, V]."""
    groups, keys = k.shape[1:]
    heads, channels = v.shape[1:]
    blocks, length = plan.num_blocks, plan.block_size

    def padded(values: torch.Tensor) -> torch.Tensor:  # [tokens, heads or groups, n] -> [B, G, H / G or 1, Q, n]
        out = values.new_zeros(blocks * length, *values.shape[1:])
        out.index_copy_(0, plan.padded_index, values)
        return out.view(blocks, length, groups, -1, values.shape[2]).permute(0, 2, 3, 1, 4)

    # 1. blocks of Q tokens; padding neither decays (g 0) nor writes (k and beta 0)
    q, k, v = padded(q), padded(k), padded(v)
    beta = padded(beta[:, :, None])  # [B, G, H / G, Q, 1]
    log_decay = padded(g[:, :, None]).squeeze(-1).cumsum(dim=-1)  # [B, G, H / G, Q]
    between = log_decay[..., :, None] - log_decay[..., None, :]
    future = torch.ones(length, length, dtype=torch.bool, device=v.device).triu_(1)
    decay = between.masked_fill_(future, float("-inf")).exp_()  # [B, G, H / G, Q, Q], row: the later token
    since_start = log_decay.exp()[..., None]
    # 2. inside a block the new values depend on the earlier ones: (1 + strictly lower part of `system`) n = right side.
    #    They are linear in the block's start: n = own - reads @ start
    system = torch.matmul(k, k.transpose(-1, -2)) * decay * beta
    right = torch.cat((v * beta, k * (beta * since_start)), dim=-1)  # [B, G, H / G, Q, V + K]
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, reads = solved.split([channels, keys], dim=-1)
    # 3. the recurrence over blocks
    to_end = (k * decay[..., -1, :, None]).transpose(-1, -2)  # [B, G, H / G, K, Q]
    kept = since_start[..., -1:, :]
    s = states.index_select(0, plan.slots)
    if plan.fresh is not None:
        s.masked_fill_(plan.fresh[..., None], 0)
    s = s.view(plan.num_rows, groups, -1, keys, channels)
    before = s.new_empty(blocks, *s.shape[1:])  # the state each block starts from
    new = torch.empty_like(own)
    for rows, row_blocks in plan.rounds:
        start = s.index_select(0, rows)
        values = own.index_select(0, row_blocks) - torch.matmul(reads.index_select(0, row_blocks), start)
        before.index_copy_(0, row_blocks, start)
        new.index_copy_(0, row_blocks, values)
        after = torch.matmul(to_end.index_select(0, row_blocks), values)
        s.index_copy_(0, rows, after.addcmul_(kept.index_select(0, row_blocks), start))
    # 4. what the queries read: the block's start, and new values up to their own
    y = torch.matmul(torch.matmul(q, k.transpose(-1, -2)) * decay, new)  # [B, G, H / G, Q, V]
    y.addcmul_(torch.matmul(q, before), since_start)
    # 5. states to write: the block's start, decayed, plus what its tokens up to the offset added
    at, last = plan.written_blocks, plan.written_offsets
    share = decay[at, :, :, last][..., None]  # [S, G, H / G, Q, 1], zero beyond `last`
    state = torch.matmul((k.index_select(0, at) * share).transpose(-1, -2), new.index_select(0, at))
    state.addcmul_(before.index_select(0, at), since_start[at, :, :, last][..., None])
    states.index_copy_(0, plan.written_slots, state.view(-1, heads, keys, channels))
    tokens = y.permute(0, 3, 1, 2, 4).reshape(-1, heads, channels)
    return tokens.index_select(0, plan.padded_index)
