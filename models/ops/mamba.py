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
from .mamba_plan import Chunks, Decodes, MambaRows, plan_chunks, plan_decodes, upload


class _Recorder:
    """Inputs of every layer for the rows whose state is deferred, and their replay once it is known how many count."""

    def __init__(self, rows: MambaRows, deferred: Ints) -> None:
        """rows: of the whole batch; deferred: which of them."""
        self._rows = rows
        self._deferred = deferred
        self._lens = rows.lens[deferred]
        starts = (np.cumsum(rows.lens) - rows.lens)[deferred]
        self._tokens = upload(_spans(starts, self._lens), rows.device)  # flat tokens of the deferred rows
        self._convs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, StateCache]] = []
        self._scans: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, StateCache]] = []

    def conv(self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, cache: StateCache) -> None:
        self._convs.append((inputs.index_select(0, self._tokens), weight, bias, cache))

    def scan(
        self,
        x: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        cache: StateCache,
    ) -> None:
        x, dt, b, c = (values.index_select(0, self._tokens) for values in (x, dt, b, c))
        self._scans.append((x, dt, a, b, c, cache))

    def advance(self, lengths: Ints) -> None:
        """Mutates the caches: every layer's states of the deferred rows after their first `lengths` tokens."""
        assert ((lengths >= 1) & (lengths <= self._lens)).all()
        order = np.argsort(lengths > 1, kind="stable")  # rows with one token first
        chosen, nothing = self._deferred[order], np.zeros(0, dtype=np.int64)
        rows = MambaRows(
            lens=lengths[order],
            num_computed=self._rows.num_computed[chosen],
            slots=self._rows.slots[chosen],
            writes=np.ones(len(chosen), dtype=np.bool_),
            snapshot_rows=nothing,
            snapshot_lengths=nothing,
            snapshot_slots=nothing,
            device=self._rows.device,
        )
        starts = (np.cumsum(self._lens) - self._lens)[order]
        tokens = upload(_spans(starts, lengths[order]), rows.device)
        run = TorchMamba.of(rows, self._convs[0][3])
        for inputs, weight, bias, cache in self._convs:
            run.conv(inputs.index_select(0, tokens), weight, bias, cache)
        for x, dt, a, b, c, cache in self._scans:
            x, dt, b, c = (values.index_select(0, tokens) for values in (x, dt, b, c))
            run.scan(x, dt, a, b, c, cache)


def _spans(starts: Ints, lens: Ints) -> Ints:
    """starts[0] .. starts[0] + lens[0] - 1, then the next row's."""
    return np.repeat(starts - (np.cumsum(lens) - lens), lens) + np.arange(lens.sum())


@dataclass(frozen=True, slots=True)
class TorchMamba:
    """The plan of one step for all Mamba-2 layers; see `dispatch.MambaRun`."""

    decodes: Decodes | None
    chunks: Chunks | None
    recorder: _Recorder | None

    @classmethod
    def plan(cls, context: ForwardContext, cache: StateCache) -> "TorchMamba":
        """Index arithmetic for the step; `cache` gives the convolution's kernel."""
        rows = MambaRows.of(context)
        recorder = None
        if context.deferred is not None:
            recorder = _Recorder(rows, context.deferred.rows)
            context.deferred.record(recorder.advance)
        return cls.of(rows, cache, recorder)

    @classmethod
    def of(cls, rows: MambaRows, cache: StateCache, recorder: _Recorder | None = None) -> "TorchMamba":
        """The plan for `rows`."""
        decodes = rows.num_decodes
        return cls(
            plan_decodes(rows) if decodes else None,
            plan_chunks(rows, cache.conv.shape[1]) if decodes < len(rows.lens) else None,
            recorder,
        )

    def conv(self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, cache: StateCache) -> torch.Tensor:
        """[T, C] -> [T, C], weight [K, C], bias [C]; advances cache.conv [slots, K - 1, C]."""
        if self.recorder is not None:
            self.recorder.conv(inputs, weight, bias, cache)
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
        if self.recorder is not None:
            self.recorder.scan(x, dt, a, b, c, cache)
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


def _conv_decodes(
    plan: Decodes, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, conv: torch.Tensor
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
    plan: Chunks, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, conv: torch.Tensor
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
    plan: Decodes,
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
    plan: Chunks,
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
