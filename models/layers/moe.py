"""MoE: a router that chooses experts per token, and the experts.

H hidden size, T tokens, K experts per token.
"""

from collections.abc import Iterator, Sequence

import torch

from ..blueprint import experts
from ..ops.elementwise import activate, activate_and_multiply
from ..ops.lora import LoraBatch
from ..weights import Weights
from .linear import Linear
from .mlp import MLP
from .norm import Norm
from .step import Step

GPT_OSS_LIMIT = 7.0  # gates and values are clamped to it
GPT_OSS_SWISH = 1.702


class Router:
    """x [T, H] -> (chosen experts [T, K] int64, their weights [T, K] float32). See `blueprint.experts.Router`."""

    def __init__(self, router: experts.Router, top_k: int, weights: Weights) -> None:
        self._router = router
        self._top_k = top_k
        bias = weights.float(f"{router.name}.bias") if router.bias else None
        self._norm = None if router.norm is None else Norm(router.norm, weights)
        weight = weights.float(f"{router.name}.weight")
        if router.input_scale is not None:
            scale = weights.float(router.input_scale)
            weight = weight * (scale * len(scale) ** -0.5)
        columns = None if router.input_scale is None else scale * len(scale) ** -0.5
        site = weights.site(router.name, weight.shape[1], len(weight), columns=columns)
        self._logits = Linear((weight,), bias, sites=(site,))
        self._expert_scale = None if router.expert_scale is None else weights.float(router.expert_scale)
        self._correction = None if router.correction is None else weights.float(router.correction)

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        router = self._router
        logits = self._logits((x if self._norm is None else self._norm(x)).float(), step.lora)
        if router.scoring == "softmax_top":
            best, chosen = logits.topk(self._top_k, dim=-1)
            weights = best.softmax(dim=-1)
        else:
            scores = logits.sigmoid() if router.scoring == "sigmoid" else logits.softmax(dim=-1)
            chosen = self._preferences(scores).topk(self._top_k, dim=-1).indices
            weights = scores.gather(1, chosen)
        if router.normalise:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + router.sum_eps)
        if self._expert_scale is not None:
            weights = weights * self._expert_scale[chosen]
        return chosen, weights * router.scale

    def _preferences(self, scores: torch.Tensor) -> torch.Tensor:
        """What the choice goes by: corrected scores, of the best groups only; two best experts speak for a group."""
        preferences = scores if self._correction is None else scores + self._correction
        if self._router.groups == 1:
            return preferences
        grouped = preferences.unflatten(1, (self._router.groups, -1))
        of_group = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
        best: torch.Tensor = of_group.topk(self._router.top_groups, dim=-1).indices
        dropped = torch.ones_like(of_group, dtype=torch.bool).scatter_(1, best, False)
        considered: torch.Tensor = grouped.masked_fill(dropped[..., None], float("-inf"))
        return considered.flatten(1)


class MoE:
    """See `blueprint.experts.MoE`. Experts run one after the other, each over the tokens that chose it."""

    def __init__(self, part: experts.MoE, weights: Weights) -> None:
        self._part = part
        self._router = Router(part.router, part.top_k, weights)
        self._experts = tuple(_load_experts(part, weights))
        self._norm = None if part.norm is None else Norm(part.norm, weights)
        latent = part.latent
        self._into = None if latent is None else Linear.load(weights, (latent.into,), latent.bias)
        self._back = None if latent is None else Linear.load(weights, (latent.back,), latent.bias)
        self._shared = None if part.shared is None else MLP(part.shared, weights)
        self._shared_gate = None
        if part.shared_gate is not None:
            self._shared_gate = Linear.load(weights, (part.shared_gate.removesuffix(".weight"),))

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        chosen, weights = self._router(x, step)
        inputs = x if self._norm is None else self._norm(x)
        if self._into is not None:
            inputs = self._into(inputs, step.lora)
        out = torch.zeros(inputs.shape, dtype=torch.float32, device=x.device)
        # choices ordered by expert: each expert's tokens lie side by side
        order = chosen.flatten().argsort(stable=True)
        tokens = order.div(self._part.top_k, rounding_mode="floor")
        counts = torch.bincount(chosen.flatten(), minlength=self._part.num_experts).tolist()
        shares = weights.flatten()[order, None]
        begin = 0
        for expert, count in enumerate(counts):
            if count:
                mine = slice(begin, begin + count)
                lora = None if step.lora is None else step.lora.select(tokens[mine].numpy(force=True))
                given = self._expert(expert, inputs[tokens[mine]], lora)
                out.index_add_(0, tokens[mine], given.float() * shares[mine])
                begin += count
        if self._back is not None:
            out = self._back(out.to(x.dtype), step.lora).float()
        if self._shared is not None:
            shared = self._shared(x, step)
            if self._shared_gate is not None:
                shared = shared * torch.sigmoid(self._shared_gate(x, step.lora))
            out += shared
        return out.to(x.dtype)

    def _expert(self, index: int, x: torch.Tensor, lora: LoraBatch | None) -> torch.Tensor:
        inward, down = self._experts[index]
        inner = inward(x, lora)
        if self._part.layout == "gpt_oss":
            gate, up = inner.unflatten(-1, (-1, 2)).unbind(dim=-1)
            gate, up = gate.clamp(max=GPT_OSS_LIMIT), up.clamp(-GPT_OSS_LIMIT, GPT_OSS_LIMIT)
            return down((up + 1) * gate * torch.sigmoid(GPT_OSS_SWISH * gate), lora)
        if not self._part.gated:
            return down(activate(self._part.activation, inner), lora)
        return down(activate_and_multiply(self._part.activation, inner), lora)


def _load_experts(part: experts.MoE, weights: Weights) -> Iterator[tuple[Linear, Linear]]:
    """Per expert: the projections into it (gate and up), and out of it."""
    (into, (_, wide, width)), (out, (_, _, inner)) = part.lora_targets().items()
    for i, (inwards, inward_bias, outward, outward_bias) in enumerate(_expert_matrices(part, weights)):
        site = weights.site(into, width, wide, expert=i)
        back = weights.site(out, inner, width, expert=i)
        yield (
            Linear(inwards, inward_bias, weights.dtype, (site,)),
            Linear((outward,), outward_bias, weights.dtype, (back,)),
        )


Bias = torch.Tensor | None


def _expert_matrices(
    part: experts.MoE, weights: Weights
) -> Iterator[tuple[Sequence[torch.Tensor], Bias, torch.Tensor, Bias]]:
    """Per expert: matrices into it and their bias, the matrix out of it and its bias."""
    if part.layout == "list":
        names = part.projections[:2] if part.gated else part.projections[1:2]
        for i in range(part.num_experts):
            inwards = [weights.stored(f"{part.experts}.{i}.{name}.weight") for name in names]
            yield inwards, None, weights.stored(f"{part.experts}.{i}.{part.projections[2]}.weight"), None
        return
    fused, down = part.stacked_names
    if part.layout != "gpt_oss":
        turned = part.layout == "transposed"
        for inner, outer in zip(weights(fused), weights(down), strict=True):
            yield (inner.t() if turned else inner,), None, outer.t() if turned else outer, None
        return
    biases = zip(weights(f"{fused}_bias"), weights(f"{down}_bias"), strict=True)
    for inner, outer, (inner_bias, outer_bias) in zip(weights(fused), weights(down), biases, strict=True):
        yield (inner.t(),), inner_bias, outer.t(), outer_bias
