"""What the functions of `causal_conv1d` and `mamba_ssm` are documented to do, token by token in plain torch, with the
demands that their sources make of strides, sizes and dtypes; and the packages as modules that hold such functions."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch


def causal_conv1d_update(
    x: torch.Tensor,  # [batch, dim]
    conv_state: torch.Tensor,  # [slots, dim, width - 1]
    weight: torch.Tensor,  # [dim, width]
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    assert activation is None and cache_seqlens is None and conv_state_indices is not None
    assert conv_state_indices.dtype == torch.int32 and conv_state_indices.stride() == (1,)
    assert x.dtype == conv_state.dtype == weight.dtype and 2 <= weight.shape[1] <= 4
    seen = torch.cat((conv_state[conv_state_indices.long()], x[:, :, None]), dim=2)
    conv_state[conv_state_indices.long()] = seen[:, :, 1:]
    return _dot(seen, weight, bias)


def causal_conv1d_fn(
    x: torch.Tensor,  # [batch, dim, seqlen]
    weight: torch.Tensor,  # [dim, width]
    bias: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,  # [batch, seqlen]
    initial_states: torch.Tensor | None = None,  # [batch, dim, width - 1]
) -> torch.Tensor:
    [batch, channels, tokens], tail = x.shape, weight.shape[1] - 1
    assert batch == 1 and x.stride(1) == 1 and 1 <= tail <= 3
    for what in (channels, x.stride(0), x.stride(2)):
        assert what % 8 == 0
    assert x.data_ptr() % 16 == 0
    past = x.new_zeros(1, channels, tail)
    if initial_states is not None:
        assert seq_idx is None and initial_states.dtype == x.dtype and initial_states.stride(1) == 1
        past = initial_states
    if seq_idx is not None:
        assert seq_idx.dtype == torch.int32 and seq_idx.is_contiguous() and seq_idx.shape == (1, tokens)
    outputs = []
    for t in range(tokens):
        seen = torch.cat((past, x[:, :, t : t + 1]), dim=2)
        if seq_idx is not None:
            strangers = [k for k in range(tail) if t - tail + k >= 0 and seq_idx[0, t - tail + k] != seq_idx[0, t]]
            seen[:, :, strangers] = 0
        outputs.append(_dot(seen, weight, bias)[0])
        past = torch.cat((past, x[:, :, t : t + 1]), dim=2)[:, :, 1:]
    return torch.stack(outputs)[None].transpose(1, 2)


def _dot(seen: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out = (seen.float() * weight.float()).sum(dim=2)
    return (out if bias is None else out + bias.float()).to(seen.dtype)


def selective_state_update(
    state: torch.Tensor,  # [slots, nheads, dim, dstate]
    x: torch.Tensor,  # [batch, nheads, dim]
    dt: torch.Tensor,  # [batch, nheads, dim]
    A: torch.Tensor,  # [nheads, dim, dstate]
    B: torch.Tensor,  # [batch, ngroups, dstate]
    C: torch.Tensor,  # [batch, ngroups, dstate]
    D: torch.Tensor | None = None,  # [nheads, dim]
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,  # [nheads, dim]
    dt_softplus: bool = False,
    state_batch_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    _, heads, channels, size = state.shape
    # without these it fails; without the strides it is slow
    assert D is not None and dt_bias is not None and z is None and not dt_softplus and state_batch_indices is not None
    assert D.shape == dt_bias.shape == (heads, channels) and A.shape == (heads, channels, size) and dt.shape == x.shape
    assert A.stride()[1:] == (0, 0) and dt.stride(2) == 0 and dt_bias.stride(1) == 0
    inward, outward = (values.float().repeat_interleave(heads // values.shape[1], dim=1) for values in (B, C))
    rate = (dt + dt_bias)[..., None]
    h = state[state_batch_indices.long()] * torch.exp(rate * A) + rate * x.float()[..., None] * inward[:, :, None]
    state[state_batch_indices.long()] = h
    return ((h * outward[:, :, None]).sum(dim=3) + D * x.float()).to(x.dtype)


def mamba_chunk_scan_combined(
    x: torch.Tensor,  # [batch, seqlen, nheads, headdim]
    dt: torch.Tensor,  # [batch, seqlen, nheads]
    A: torch.Tensor,  # [nheads]
    B: torch.Tensor,  # [batch, seqlen, ngroups, dstate]
    C: torch.Tensor,
    chunk_size: int,
    initial_states: torch.Tensor | None = None,  # [batch, nheads, headdim, dstate]
    seq_idx: torch.Tensor | None = None,  # [batch, seqlen]
    cu_seqlens: torch.Tensor | None = None,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    [batch, tokens, heads, channels], size = x.shape, B.shape[3]
    assert batch == 1 and chunk_size == 256 and return_final_states == (cu_seqlens is None) != return_varlen_states
    inward, outward = (values[0].float().repeat_interleave(heads // values.shape[2], dim=1) for values in (B, C))
    h = torch.zeros(heads, channels, size)
    if initial_states is not None:
        assert initial_states.shape == (1, heads, channels, size) and seq_idx is None
        h = initial_states[0]
    starts, ends = [0], [tokens]
    if cu_seqlens is not None:
        assert seq_idx is not None and seq_idx.dtype == cu_seqlens.dtype == torch.int32 and seq_idx.shape == (1, tokens)
        bounds = cu_seqlens.tolist()
        starts, ends = bounds[:-1], bounds[1:]
        assert torch.equal(seq_idx[0], torch.repeat_interleave(torch.arange(len(starts)), cu_seqlens.diff()).int())
    outputs, states = [], []
    for t in range(tokens):
        if t in starts and cu_seqlens is not None:
            h = torch.zeros_like(h)
        rate = dt[0, t, :, None, None]
        h = h * torch.exp(rate * A[:, None, None]) + rate * x[0, t].float()[..., None] * inward[t][:, None]
        outputs.append((h * outward[t][:, None]).sum(dim=2).to(x.dtype))
        if t + 1 in ends:
            states.append(h)
    return torch.stack(outputs)[None], torch.stack(states)


def install(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """The two packages, as far as they are used; functions: other ones than those above, by name."""
    known = (causal_conv1d_update, causal_conv1d_fn, selective_state_update, mamba_chunk_scan_combined)
    held = {function.__name__: function for function in known} | functions
    triton = "mamba_ssm.ops.triton"
    places = {
        "causal_conv1d": ("causal_conv1d_update", "causal_conv1d_fn"),
        "mamba_ssm": (),
        "mamba_ssm.ops": (),
        triton: (),
        f"{triton}.selective_state_update": ("selective_state_update",),
        f"{triton}.ssd_combined": ("mamba_chunk_scan_combined",),
    }
    for name, names in places.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        for each in names:
            setattr(module, each, held[each])
        monkeypatch.setitem(sys.modules, name, module)
