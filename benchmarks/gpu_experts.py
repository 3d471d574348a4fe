"""Cases of routed experts: decodes, which read most weights for few tokens, and chunks, in shapes of real models."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from hybrid.models.lora_site import LoraSite
from hybrid.models.ops import experts
from hybrid.models.ops.experts import ExpertActivation, ExpertChanges, ExpertStacks
from hybrid.models.ops.lora import LoraBatch
from hybrid.models.ops.triton.experts import run
from hybrid.pools.specs import LORA_RANK_UNIT

from .gpu_case import Case, Tensors, Work


@dataclass(frozen=True, slots=True)
class Layer:
    """Of a model."""

    name: str
    experts: int
    top_k: int
    hidden: int
    inner: int
    activation: ExpertActivation = "silu"
    gated: bool = True
    biases: bool = False
    rank: int = 0  # of ADAPTERS adapters that tokens have in turn; 0: nobody has one


SHORT = (
    (Layer("gated", 5, 2, 70, 20), (3, 40)),
    (Layer("gpt-oss", 3, 3, 20, 70, "gpt_oss", biases=True), (1, 2)),
    (Layer("no gate", 9, 2, 20, 20, "relu2", gated=False), (5,)),
    (Layer("adapters", 5, 2, 70, 20, rank=16), (3, 40)),
)
FULL = (
    (Layer("Qwen3-30B-A3B", 128, 8, 2048, 768), (1, 32, 256, 8192)),
    (Layer("granite-4.0-h-tiny", 64, 6, 1536, 512), (32, 8192)),
    (Layer("gpt-oss-20b", 32, 4, 2880, 2880, "gpt_oss", biases=True), (1, 32, 8192)),
    (Layer("Mixtral-8x7B", 8, 2, 4096, 14336), (32, 4096)),
    (Layer("Nemotron-3-Nano", 128, 6, 2688, 1856, "relu2", gated=False), (32, 8192)),
    (Layer("Qwen3-30B-A3B, adapters", 128, 8, 2048, 768, rank=16), (1, 32, 256, 8192)),
)
ADAPTERS = 4


def cases(device: torch.device, dtype: torch.dtype, short: bool) -> list[Case]:
    """Of all layers and numbers of tokens; every token chooses at random."""
    return [
        Case(
            f"experts: {layer.name}, {tokens}",
            f"{tokens} tokens, {layer.top_k} of {layer.experts} experts, {layer.hidden} to {layer.inner}",
            dtype,
            not short,
            partial(_work, layer, tokens, device, dtype),
        )
        for layer, numbers in (SHORT if short else FULL)
        for tokens in numbers
    ]


def _work(layer: Layer, tokens: int, device: torch.device, dtype: torch.dtype) -> Work:
    rows = 2 * layer.inner if layer.gated else layer.inner

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype).mul_(scale)

    stacks = ExpertStacks(
        inward=random(layer.experts, rows, layer.hidden, scale=layer.hidden**-0.5),
        down=random(layer.experts, layer.hidden, layer.inner, scale=layer.inner**-0.5),
        inward_bias=random(layer.experts, rows) if layer.biases else None,
        down_bias=random(layer.experts, layer.hidden) if layer.biases else None,
        activation=layer.activation,
        gated=layer.gated,
    )
    x = random(tokens, layer.hidden)
    shares, chosen = torch.rand(tokens, layer.experts, device=device).topk(layer.top_k)

    changes = exact_changes = None
    if layer.rank:
        units = layer.rank // LORA_RANK_UNIT
        lora = LoraBatch(np.arange(ADAPTERS * units).reshape(ADAPTERS, units)[np.arange(tokens) % ADAPTERS])
        sites, exact_sites = [], []
        for inputs, outputs in ((layer.hidden, rows), (layer.inner, layer.hidden)):
            site, exact_site = (LoraSite("site", inputs, outputs, experts=layer.experts) for _ in range(2))
            site.allocate(ADAPTERS * units, dtype, device)
            site.write(
                torch.arange(ADAPTERS * units, device=device),
                random(layer.experts, ADAPTERS * layer.rank, inputs, scale=inputs**-0.5),
                random(layer.experts, outputs, ADAPTERS * layer.rank, scale=layer.rank**-0.5),
            )
            exact_site.filled, exact_site.a, exact_site.b = site.filled, site.a.float(), site.b.float()
            sites.append(site)
            exact_sites.append(exact_site)
        changes, exact_changes = ExpertChanges(lora, *sites), ExpertChanges(lora, *exact_sites)

    def kernel() -> Tensors:
        return [run(x, chosen, shares, stacks, changes)]

    def reference() -> Tensors:
        exact = replace(
            stacks,
            inward=stacks.inward.float(),
            down=stacks.down.float(),
            inward_bias=None if stacks.inward_bias is None else stacks.inward_bias.float(),
            down_bias=None if stacks.down_bias is None else stacks.down_bias.float(),
        )
        return [experts.run(x.float(), chosen, shares, exact, exact_changes)]

    matrices = (rows + layer.inner) * layer.hidden  # elements of an expert
    low = (layer.hidden + rows + layer.inner + layer.hidden) * layer.rank  # and of an adapter's for it
    read = len(chosen.unique()) * (matrices + min(tokens, ADAPTERS) * low) + x.numel()
    return Work(
        kernel,
        reference,
        kernel,
        bytes=read * dtype.itemsize + x.numel() * 4,
        operations=2 * chosen.numel() * (matrices + low),
    )
