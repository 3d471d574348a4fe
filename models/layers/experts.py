"""Experts: the routed experts of a layer, together where kernels do that, else one after the other."""

from collections.abc import Iterator, Sequence

import torch

from ..blueprint import experts
from ..ops.decode_lora import Lora
from ..ops.experts import ExpertActivation, ExpertChanges, ExpertStacks, activate_inner, groups_on, one_by_one, run
from ..weights import Weights
from .linear import Linear

Bias = torch.Tensor | None
Matrices = tuple[Sequence[torch.Tensor], Bias, torch.Tensor, Bias]  # of an expert: into it, and out of it


class Experts:
    """x [T, width], chosen [T, K] int64, shares [T, K] float32 -> the sum of share * expert(x), [T, width] float32."""

    def __init__(self, part: experts.MoE, weights: Weights) -> None:
        self._gated = part.gated
        self._activation: ExpertActivation = "gpt_oss" if part.layout == "gpt_oss" else part.activation
        matrices = _matrices(part, weights)
        self._stacks = None
        if groups_on(weights.device):
            self._stacks, matrices = self._stack(part, weights, matrices), iter(())
        (into, (_, wide, width)), (out, (_, _, inner)) = part.lora_targets().items()
        count = part.num_experts
        self._sites = weights.site(into, width, wide, experts=count), weights.site(out, inner, width, experts=count)
        self._linears = tuple(
            (Linear(inwards, inward_bias, weights.dtype), Linear((outward,), outward_bias, weights.dtype))
            for inwards, inward_bias, outward, outward_bias in matrices
        )

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, lora: Lora | None) -> torch.Tensor:
        """lora: of the tokens; None: no adapter changes any of them."""
        changes = None
        if lora is not None and any(lora.concerns(site) for site in self._sites):
            changes = ExpertChanges(lora, *self._sites)
        if self._stacks is not None:
            return run(x, chosen, shares, self._stacks, changes)

        def expert(index: int, mine: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            inward, down = self._linears[index]
            inner = inward(mine)
            if changes is not None:
                changes.add_into(index, tokens, mine, inner)
            inner = activate_inner(self._activation, self._gated, inner)
            out = down(inner)
            if changes is not None:
                changes.add_out(index, tokens, inner, out)
            return out

        return one_by_one(x, chosen, shares, len(self._linears), expert)

    def _stack(self, part: experts.MoE, weights: Weights, matrices: Iterator[Matrices]) -> ExpertStacks:
        shapes = part.lora_targets().values()
        inward, down = (torch.empty(shape, dtype=weights.dtype, device=weights.device) for shape in shapes)
        biases: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for i, (inwards, inward_bias, outward, outward_bias) in enumerate(matrices):
            for rows, matrix in zip(inward[i].split([len(matrix) for matrix in inwards]), inwards, strict=True):
                rows.copy_(matrix)
            down[i].copy_(outward)
            for kept, bias in zip(biases, (inward_bias, outward_bias), strict=True):
                if bias is not None:
                    kept.append(bias)
        inward_biases, down_biases = (torch.stack(kept) if kept else None for kept in biases)
        return ExpertStacks(inward, down, inward_biases, down_biases, self._activation, self._gated)


def _matrices(part: experts.MoE, weights: Weights) -> Iterator[Matrices]:
    """As they are stored, expert by expert."""
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
