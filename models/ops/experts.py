"""Routed experts: every token through the experts that it chose, and the weighted sum of what they make of it.

Triton's kernels take all experts in one product and never ask the device how many tokens an expert has. In torch the
experts run one after the other: the reference, and the way of a CPU. Knows no router.

T tokens, K experts of each, E experts, H the width that they read and give, I their intermediate size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from ..blueprint.parts import Activation
from ..lora_site import LoraSite
from .choice import choose
from .decode_lora import Lora
from .elementwise import activate, activate_and_multiply

ExpertActivation = Activation | Literal["gpt_oss"]
Expert = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
GPT_OSS_LIMIT = 7.0  # gates and values are clamped to it
GPT_OSS_SWISH = 1.702


@dataclass(frozen=True, slots=True)
class ExpertStacks:
    """All experts of a layer, contiguous."""

    inward: torch.Tensor  # [E, I, H]; gated [E, 2 I, H]: all gates first, of gpt_oss gates and values in turn
    down: torch.Tensor  # [E, H, I]
    inward_bias: torch.Tensor | None  # [E, I or 2 I]
    down_bias: torch.Tensor | None  # [E, H]
    activation: ExpertActivation
    gated: bool

    @property
    def interleaved(self) -> bool:
        """Whether gates and values lie in turn."""
        return self.activation == "gpt_oss"


@dataclass(frozen=True, slots=True)
class ExpertChanges:
    """What the adapters of a batch change of the experts of a layer; each changes all of them, or none."""

    lora: Lora  # of its tokens
    into: LoraSite
    out: LoraSite

    def add_into(self, expert: int, tokens: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
        """Mutates out [n, I], gated [n, 2 I]: what becomes of x [n, H] of these tokens [n]. Waits for the device."""
        self.lora.select(tokens.numpy(force=True)).add(self.into, x, out, expert)

    def add_out(self, expert: int, tokens: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
        """Mutates out [n, H], see `add_into`."""
        self.lora.select(tokens.numpy(force=True)).add(self.out, x, out, expert)


def run(
    x: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    stacks: ExpertStacks,
    changes: ExpertChanges | None = None,
) -> torch.Tensor:
    """x [T, H], chosen [T, K] int64, shares [T, K] float32 -> the sum over k of share * expert(x), [T, H] float32.

    Matrices of experts that no token chose are not read.
    """
    if groups_on(x.device):
        from .triton import experts  # triton is not installed everywhere

        return experts.run(x, chosen, shares, stacks, changes)

    def expert(index: int, mine: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        biases = (None if bias is None else bias[index] for bias in (stacks.inward_bias, stacks.down_bias))
        inward_bias, down_bias = biases
        inner = F.linear(mine, stacks.inward[index], inward_bias)
        if changes is not None:
            changes.add_into(index, tokens, mine, inner)
        inner = activate_inner(stacks.activation, stacks.gated, inner)
        out = F.linear(inner, stacks.down[index], down_bias)
        if changes is not None:
            changes.add_out(index, tokens, inner, out)
        return out

    return one_by_one(x, chosen, shares, len(stacks.inward), expert)


def groups_on(device: torch.device) -> bool:
    """Whether all experts are computed together there."""
    return choose(device) == "triton"


def one_by_one(
    x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, num_experts: int, expert: Expert
) -> torch.Tensor:
    """See `run`. expert(index, x of its tokens, these tokens [n] in order) -> [n, H]; asked where n > 0."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    # choices ordered by expert: each expert's tokens lie side by side
    order = chosen.flatten().argsort(stable=True)
    tokens = order.div(chosen.shape[1], rounding_mode="floor")
    counts = torch.bincount(chosen.flatten(), minlength=num_experts).tolist()
    ordered = shares.flatten()[order, None]
    begin = 0
    for index, count in enumerate(counts):
        if count:
            mine = slice(begin, begin + count)
            given = expert(index, x[tokens[mine]], tokens[mine])
            out.index_add_(0, tokens[mine], given.float() * ordered[mine])
            begin += count
    return out


def activate_inner(activation: ExpertActivation, gated: bool, inner: torch.Tensor) -> torch.Tensor:
    """[n, I], gated [n, 2 I] -> [n, I]."""
    if activation == "gpt_oss":
        gate, up = inner.unflatten(-1, (-1, 2)).unbind(dim=-1)
        gate, up = gate.clamp(max=GPT_OSS_LIMIT), up.clamp(-GPT_OSS_LIMIT, GPT_OSS_LIMIT)
        made: torch.Tensor = (up + 1) * gate * torch.sigmoid(GPT_OSS_SWISH * gate)
        return made
    return activate_and_multiply(activation, inner) if gated else activate(activation, inner)
