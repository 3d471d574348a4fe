"""MoE: a router that chooses experts per token, the experts, and a shared one beside them.

H hidden size, T tokens, K experts per token.
"""

import torch

from ..blueprint import experts
from ..weights import Weights
from .experts import Experts
from .linear import Linear
from .mlp import MLP
from .norm import Norm
from .step import Step


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
    """See `blueprint.experts.MoE`."""

    def __init__(self, part: experts.MoE, weights: Weights) -> None:
        self._router = Router(part.router, part.top_k, weights)
        self._experts = Experts(part, weights)
        self._norm = None if part.norm is None else Norm(part.norm, weights)
        latent = part.latent
        self._into = None if latent is None else Linear.load(weights, (latent.into,), latent.bias)
        self._back = None if latent is None else Linear.load(weights, (latent.back,), latent.bias)
        self._shared = None if part.shared is None else MLP(part.shared, weights)
        self._shared_gate = None
        if part.shared_gate is not None:
            self._shared_gate = Linear.load(weights, (part.shared_gate.removesuffix(".weight"),))

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        chosen, shares = self._router(x, step)
        inputs = x if self._norm is None else self._norm(x)
        if self._into is not None:
            inputs = self._into(inputs, step.lora)
        out = self._experts(inputs, chosen, shares, step.lora)
        if self._back is not None:
            out = self._back(out.to(x.dtype), step.lora).float()
        if self._shared is not None:
            shared = self._shared(x, step)
            if self._shared_gate is not None:
                shared = shared * torch.sigmoid(self._shared_gate(x, step.lora))
            out += shared
        return out.to(x.dtype)
