"""TorchMamba: the causal convolution and the selective scan of Mamba-2 over a mixed batch, in plain torch.

Glossary (Dao and Gu 2024, "Transformers are SSMs", section 6; single letters as in the paper):
  T tokens of the batch, D decode rows, R chunks, K convolution kernel, C channels of the convolution
  H heads, P channels per head, N state size, G groups (heads of a group share b and c)
  x [T, H, P] input, dt [T, H] step size, a [H] negative decay rate, b and c [T, G, N] input and output maps
  h [H, P, N] state:  h_t = exp(dt_t a) h_{t-1} + dt_t x_t (outer) b_t,  y_t = h_t . c_t
  Q tokens per block of the chunked scan, B blocks: inside a block the quadratic dual form, between them the recurrence
Snapshots inside a chunk are read off the block that holds them; the scan itself is not cut there.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ..context import ForwardContext, Ints, StateCache

LONG_BLOCK = 64
SHORT_BLOCK = 16


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Rows with one token. A copy of a row's new state goes to copy_slots (snapshots)."""

    num_rows: int
    slots: torch.Tensor  # [D]
    fresh: torch.Tensor | None  # [D, 1, 1] bool, rows that start from zero; None: no such row
    copy_rows: torch.Tensor | None  # [n] index into the decode rows
    copy_slots: torch.Tensor | None  # [n]


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Rows with several tokens. A written state is a snapshot, or the final state of each chunk."""

    begin: int  # first flat token
    num_tokens: int
    num_rows: int
    slots: torch.Tensor  # [R]
    fresh: torch.Tensor | None  # [R, 1, 1] bool
    # convolution: tokens of a chunk lie behind K - 1 inputs of its state, chunk after chunk
    window_index: torch.Tensor  # [tokens] where each token's K inputs begin
    state_index: torch.Tensor  # [R * (K - 1)] where the states' inputs go
    written_index: torch.Tensor  # [S * (K - 1)] the inputs that each written state keeps
    written_slots: torch.Tensor  # [S]
    # scan
    block_size: int  # Q
    num_blocks: int  # B, of all chunks
    padded_index: torch.Tensor  # [tokens] place of each token in [B * Q]
    rounds: tuple[tuple[torch.Tensor, torch.Tensor], ...]  # per round of the recurrence: (rows, their blocks)
    written_blocks: torch.Tensor  # [S]
    written_offsets: torch.Tensor  # [S] last token seen, inside its block


@dataclass(frozen=True, slots=True)
class TorchMamba:
    """The plan of one step for all Mamba-2 layers; see `dispatch.MambaRun`."""

    decodes: _Decodes | None
    chunks: _Chunks | None

    @classmethod
    def plan(cls, context: ForwardContext, cache: StateCache) -> "TorchMamba":
        """Index arithmetic for the step; `cache` gives the convolution's kernel."""
        return cls(
            _plan_decodes(context) if context.num_decodes else None,
            _plan_chunks(context, cache.conv.shape[1]) if context.num_rows > context.num_decodes else None,
        )

    def conv(self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, cache: StateCache) -> torch.Tensor:
        """[T, C] -> [T, C], weight [K, C], bias [C]; advances cache.conv [slots, K - 1, C]."""
        parts = []
        if self.decodes is not None:
            parts.append(_conv_decodes(self.decodes, inputs[: self.decodes.num_rows], weight, bias, cache.conv))
        if self.chunks is not None:
            parts.append(_conv_chunks(self.chunks, inputs[self.chunks.begin :], weight, bias, cache.conv))
        return F.silu(_joined(parts))

    def scan(
        self,
        inputs: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        cache: StateCache,
    ) -> torch.Tensor:
        """x [T, H, P], dt [T, H], a [H], b and c [T, G, N] -> y [T, H, P] float32; advances cache.ssm."""
        x, b, c = inputs.float(), b.float(), c.float()
        parts = []
        if self.decodes is not None:
            n = self.decodes.num_rows
            parts.append(_scan_decodes(self.decodes, x[:n], dt[:n], a, b[:n], c[:n], cache.ssm))
        if self.chunks is not None:
            n = self.chunks.begin
            parts.append(_scan_chunks(self.chunks, x[n:], dt[n:], a, b[n:], c[n:], cache.ssm))
        return _joined(parts)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _upload(values: Ints, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)


def _fresh(num_computed: Ints, device: torch.device) -> torch.Tensor | None:
    fresh = num_computed == 0
    return torch.from_numpy(fresh).to(device)[:, None, None] if fresh.any() else None


def _plan_decodes(context: ForwardContext) -> _Decodes:
    device, n = context.token_ids.device, context.num_decodes
    copied = context.snapshots.rows < n
    any_copied = bool(copied.any())
    return _Decodes(
        num_rows=n,
        slots=_upload(context.state_slots[:n], device),
        fresh=_fresh(context.num_computed_tokens[:n], device),
        copy_rows=_upload(context.snapshots.rows[copied], device) if any_copied else None,
        copy_slots=_upload(context.snapshots.slots[copied], device) if any_copied else None,
    )


def _plan_chunks(context: ForwardContext, tail: int) -> _Chunks:
    device, decodes = context.token_ids.device, context.num_decodes
    lens = context.query_lens[decodes:]  # [R]
    num_rows, num_tokens = len(lens), int(lens.sum())
    starts = context.query_start_loc[decodes:-1] - decodes
    # 1. states to write: the final state of every chunk, then snapshots
    inside = context.snapshots.rows >= decodes
    written_rows = np.concatenate((np.arange(num_rows), context.snapshots.rows[inside] - decodes))
    written_lengths = np.concatenate((lens, context.snapshots.lengths[inside]))
    written_slots = np.concatenate((context.state_slots[decodes:], context.snapshots.slots[inside]))
    assert (written_lengths >= 1).all() and (written_lengths <= lens[written_rows]).all()
    # 2. the convolution: token t of chunk r stands behind (r + 1) * (K - 1) inputs of states
    row_of_token = np.repeat(np.arange(num_rows), lens)
    window_index = np.arange(num_tokens) + row_of_token * tail
    state_index = (starts + np.arange(num_rows) * tail)[:, None] + np.arange(tail)
    written_ends = starts[written_rows] + written_rows * tail + written_lengths
    # 3. blocks of the scan: every chunk begins a new one
    size = LONG_BLOCK if int(lens.max()) > SHORT_BLOCK else SHORT_BLOCK
    blocks_of_row = -(-lens // size)
    first_block = np.cumsum(blocks_of_row) - blocks_of_row
    padded_index = first_block[row_of_token] * size + np.arange(num_tokens) - starts[row_of_token]
    rounds = []
    for turn in range(int(blocks_of_row.max())):
        rows = np.flatnonzero(blocks_of_row > turn)
        rounds.append((_upload(rows, device), _upload(first_block[rows] + turn, device)))
    return _Chunks(
        begin=decodes,
        num_tokens=num_tokens,
        num_rows=num_rows,
        slots=_upload(context.state_slots[decodes:], device),
        fresh=_fresh(context.num_computed_tokens[decodes:], device),
        window_index=_upload(window_index, device),
        state_index=_upload(state_index.reshape(-1), device),
        written_index=_upload((written_ends[:, None] + np.arange(tail)).reshape(-1), device),
        written_slots=_upload(written_slots, device),
        block_size=size,
        num_blocks=int(blocks_of_row.sum()),
        padded_index=_upload(padded_index, device),
        rounds=tuple(rounds),
        written_blocks=_upload(first_block[written_rows] + (written_lengths - 1) // size, device),
        written_offsets=_upload((written_lengths - 1) % size, device),
    )


def _conv_decodes(
    plan: _Decodes, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, conv: torch.Tensor
) -> torch.Tensor:
    state = conv.index_select(0, plan.slots)  # [D, K - 1, C]
    if plan.fresh is not None:
        state.masked_fill_(plan.fresh, 0)
    tail = state.shape[1]
    out = torch.addcmul(bias, x, weight[tail])
    for k in range(tail):
        out.addcmul_(state[:, k], weight[k])
    after = torch.cat((state[:, 1:], x[:, None].to(conv.dtype)), dim=1)
    conv.index_copy_(0, plan.slots, after)
    if plan.copy_rows is not None and plan.copy_slots is not None:
        conv.index_copy_(0, plan.copy_slots, after.index_select(0, plan.copy_rows))
    return out


def _conv_chunks(
    plan: _Chunks, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, conv: torch.Tensor
) -> torch.Tensor:
    tail = conv.shape[1]  # K - 1
    state = conv.index_select(0, plan.slots)  # [R, K - 1, C]
    if plan.fresh is not None:
        state.masked_fill_(plan.fresh, 0)
    # 1. chunk after chunk: K - 1 inputs before it, then its own
    seen = x.new_empty(plan.num_tokens + plan.num_rows * tail, x.shape[1])
    seen.index_copy_(0, plan.window_index + tail, x)
    seen.index_copy_(0, plan.state_index, state.view(-1, x.shape[1]).to(x.dtype))
    # 2. convolve as if it were one sequence; what mixes two chunks is not read
    length = seen.shape[0] - tail
    out = torch.addcmul(bias, seen[:length], weight[0])
    for k in range(1, tail + 1):
        out.addcmul_(seen[k : k + length], weight[k])
    # 3. the last K - 1 inputs seen by every state to write
    written = seen.index_select(0, plan.written_index).view(-1, tail, x.shape[1])
    conv.index_copy_(0, plan.written_slots, written.to(conv.dtype))
    return out if plan.num_rows == 1 else out.index_select(0, plan.window_index)


def _scan_decodes(
    plan: _Decodes,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    ssm: torch.Tensor,
) -> torch.Tensor:
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


def _scan_chunks(
    plan: _Chunks,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    ssm: torch.Tensor,
) -> torch.Tensor:
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
