"""Cases of low-rank changes: decodes of many adapters, chunks of a few, with requests beside them that have none."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hybrid.models.context import Ints
from hybrid.models.lora_site import LoraSite
from hybrid.models.ops.decode_lora import DecodeLora
from hybrid.models.ops.lora import LoraBatch
from hybrid.models.ops.triton.lora import TritonLora
from hybrid.pools.specs import LORA_RANK_UNIT

from .gpu_case import Case, Tensors, Work

OFFSET = 16  # of the site's columns among its projection's
SPARE_UNITS = 3  # that nobody has; NaN
MOST_RANK, MOST_RANKS = 64, 512


@dataclass(frozen=True, slots=True)
class Batch:
    """counts[i] tokens have an adapter of ranks[i], 0: none. table: what is changed is looked up, not multiplied.

    graph: launched as in a graph, for any mix of adapters up to MOST_RANK in a pool of MOST_RANKS.
    """

    name: str
    counts: tuple[int, ...]
    ranks: tuple[int, ...]
    inputs: int
    outputs: int
    table: bool = False
    graph: bool = False

    @property
    def size(self) -> str:
        rows = f"{sum(self.counts)} tokens, {np.count_nonzero(self.ranks)} adapters to rank {max(self.ranks)}"
        return f"{rows}, {self.inputs} to {self.outputs}"


SHORT = (
    Batch("decodes", (1, 2, 1), (5, 0, 20), 300, 20),
    Batch("chunks", (17, 3, 2), (16, 0, 3), 70, 140),
    Batch("table", (2, 1, 3), (8, 20, 0), 11, 20, table=True),
    Batch("graph", (1, 2, 1), (5, 0, 20), 300, 20, graph=True),
)
FULL = (
    Batch("one decode", (1,), (16,), 4096, 4096),
    Batch("decodes, one adapter", (64,), (16,), 4096, 4096),
    Batch("decodes, rank 8", (1,) * 64, (8,) * 64, 4096, 4096),
    Batch("decodes, rank 64", (4,) * 16, (64,) * 16, 4096, 4096),
    Batch("decodes, uneven", (1,) * 256, (8, 0, 16, 64) * 64, 4096, 14336),
    Batch("decodes, narrow", (1,) * 64, (16,) * 64, 14336, 1024),
    Batch("chunks", (4096, 2048, 2048), (16, 64, 0), 4096, 14336),
    Batch("mixed", (4096, *(1,) * 31), (16,) * 32, 4096, 4096),
    Batch("table", (2048, *(1,) * 15), (16,) * 16, 128256, 4096, table=True),
    Batch("graph, one decode", (1,), (16,), 4096, 4096, graph=True),
    Batch("graph, one adapter", (64,), (16,), 4096, 4096, graph=True),
    Batch("graph, one of 64 rows", (1, 63), (16, 0), 4096, 4096, graph=True),
    Batch("graph, rank 64", (8,) * 8, (64,) * 8, 4096, 4096, graph=True),
    Batch("graph, rank 8", (1,) * 64, (8,) * 64, 4096, 4096, graph=True),
)


def cases(device: torch.device, dtype: torch.dtype, short: bool) -> list[Case]:
    """Of all batches."""
    return [
        Case(f"LoRA: {batch.name}", batch.size, dtype, not short, partial(_work, batch, device, dtype))
        for batch in (SHORT if short else FULL)
    ]


def _work(batch: Batch, device: torch.device, dtype: torch.dtype) -> Work:
    rng = np.random.default_rng()
    num_units = [-(-rank // LORA_RANK_UNIT) for rank in batch.ranks]
    order = rng.permutation(sum(num_units) + SPARE_UNITS)
    units = np.split(order, np.cumsum(num_units))[:-1]
    site = _site(batch, units, device, dtype)
    exact = LoraSite("exact", site.inputs, site.outputs, site.offset, table=site.table)
    exact.filled, exact.a, exact.b = site.filled, site.a.float(), site.b.float()

    tokens = np.split(rng.permutation(sum(batch.counts)), np.cumsum(batch.counts))[:-1]
    of_tokens = np.full((sum(batch.counts), max(num_units)), -1, dtype=np.int64)
    for members, held in zip(tokens, units, strict=True):
        of_tokens[members, : len(held)] = held
    groups = [group for group in zip(tokens, units, strict=True) if len(group[1])]

    x = torch.randn(len(of_tokens), batch.inputs, device=device).to(dtype)
    ids = torch.randint(batch.inputs, (len(of_tokens),), device=device)
    out = torch.randn(len(of_tokens), batch.outputs + 2 * site.offset, device=device).to(dtype)

    def change(planned: TritonLora, out: torch.Tensor) -> Tensors:
        if batch.table:
            planned.add_rows(site, ids, out)
        else:
            planned.add(site, x, out)
        return [out]

    def reference() -> Tensors:
        changed, of_batch = out.float().clone(), LoraBatch(of_tokens)
        if batch.table:
            of_batch.add_rows(exact, ids, changed)
        else:
            of_batch.add(exact, x.float(), changed)
        return [changed]

    def planned() -> TritonLora:
        if not batch.graph:
            return TritonLora.plan(groups, len(of_tokens), device)
        step = DecodeLora(len(of_tokens), MOST_RANKS // LORA_RANK_UNIT, MOST_RANK // LORA_RANK_UNIT, device)
        step.fill(LoraBatch(of_tokens))
        return step.kernels(device)

    plan, timed = planned(), out.clone()
    changed_tokens = sum(len(members) for members, _ in groups)
    ranks = sum(num_units) * LORA_RANK_UNIT  # of all adapters
    products = sum(len(members) * len(held) * LORA_RANK_UNIT for members, held in groups)  # tokens by their ranks
    read = products if batch.table else ranks * batch.inputs + changed_tokens * batch.inputs
    return Work(
        kernel=lambda: change(planned(), out.clone()),
        reference=reference,
        again=lambda: change(plan, timed),
        # `b` is read, what is changed is read and written
        bytes=(read + ranks * batch.outputs + 2 * changed_tokens * batch.outputs) * dtype.itemsize,
        operations=2 * products * (batch.outputs + (0 if batch.table else batch.inputs)),
    )


def _site(batch: Batch, units: list[Ints], device: torch.device, dtype: torch.dtype) -> LoraSite:
    """With all adapters; results are of about the size of what they change."""
    site = LoraSite("site", batch.inputs, batch.outputs, 0 if batch.table else OFFSET, table=batch.table)
    site.allocate(sum(map(len, units)) + SPARE_UNITS, dtype, device)
    site.a.fill_(float("nan"))
    site.b.fill_(float("nan"))
    for rank, held in zip(batch.ranks, units, strict=True):
        if rank:
            a = torch.randn(rank, batch.inputs, device=device)
            b = torch.randn(batch.outputs, rank, device=device) / rank**0.5
            site.write(torch.from_numpy(held).to(device), a if batch.table else a / batch.inputs**0.5, b)
    return site
