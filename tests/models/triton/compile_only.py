"""Runs every launch of the Triton operations up to the machine code of a GPU that is not there: what the interpreter
cannot see (types, shapes of products, shared memory) fails here. Run as a program, without TRITON_INTERPRET.
"""

import functools
import math
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from hybrid.models.context import AttentionCache, DecodeContext, StateCache
from hybrid.models.lora_site import LoraSite
from hybrid.models.ops.decode_lora import DecodeLora
from hybrid.models.ops.experts import ExpertChanges, ExpertStacks
from hybrid.models.ops.triton import activation, experts, norm, rotation, sampling
from hybrid.models.ops.triton.attention import TritonAttention, chunk_tiling, decode_tiling
from hybrid.models.ops.triton.decode_attention import plan_decodes
from hybrid.models.ops.triton.device import LEAST_SHARED_MEMORY
from hybrid.models.ops.triton.lora import TritonLora
from hybrid.models.ops.triton.recurrent import TritonRecurrent
from hybrid.models.ops.workspace import Workspace
from hybrid.pools.specs import LORA_RANK_UNIT
from tests.models.triton.batches import SLOTS, Sizes, make, recurrent_rows

CPU = torch.device("cpu")
SHARED_MEMORY = 227 * 1024  # bytes that a program may have on the GPU that it is compiled for


class NoDriver:
    """What compilation asks of a driver."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only() -> list[Any]:
    """Mutates triton: launches compile and run nothing. The list grows by what they compiled."""
    compiled: list[Any] = []
    run = JITFunction.run

    @functools.wraps(run)
    def compile_it(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        compiled.append(kernel)
        return kernel

    JITFunction.run = compile_it
    triton.runtime.driver.set_active(NoDriver())
    return compiled


def attention(
    head_size: int,
    dtype: torch.dtype,
    computed: list[int],
    counts: list[int],
    shared_memory: int = LEAST_SHARED_MEMORY,
) -> None:
    """With everything that a model may have, cut as a device with so much shared memory has it."""
    batch = make(Sizes(8, 2, head_size, 16), computed, counts, None, CPU, dtype)
    cache = AttentionCache(batch.kv)
    sizes = (4, head_size, dtype.itemsize)
    tilings = decode_tiling(*sizes), chunk_tiling(*sizes, shared_memory)
    run = TritonAttention.plan(batch.context, batch.tables, None, cache, 8, Workspace(), tilings)
    run(batch.query, batch.key_value, cache, 1.0, 30.0, torch.ones(8))


def decode_step() -> None:
    """The plan that a graph holds."""
    cache, two = AttentionCache(torch.ones(5, 2, 2, 16, 128)), torch.ones(2, dtype=torch.int64)
    table = torch.zeros(3, 500, dtype=torch.int32)
    plan_decodes(DecodeContext(two, two, two, table, None, torch.zeros(3), ()), table, None, cache, 8)


def elementwise(dtype: torch.dtype) -> None:
    """Sizes of a model with 4096 hidden units and heads of 128."""
    x, weight, heads = torch.ones(2, 4096, dtype=dtype), torch.ones(4096), torch.ones(2, 6, 128, dtype=dtype)
    norm.rms_norm(x, weight, 1e-5, 1)
    norm.rms_norm(heads[:, :4], weight[:128], 1e-5, 1)
    norm.add_rms_norm(x, x, 0.5, weight, 1e-5)
    rotation.rotate(heads, 4, heads[:, 0, :32].contiguous(), heads[:, 1, :32].contiguous(), False)
    activation.activate_and_multiply("gelu", x)


def recurrent(dtype: torch.dtype, lens: list[int]) -> None:
    """Sizes of Mamba-2 (heads of 64 and 128 channels, states of 128 and 256), Mamba, Qwen3-Next and RecurrentGemma."""
    run = TritonRecurrent.of(recurrent_rows(lens, CPU))
    tokens, cut = sum(lens), 16  # what lies between tokens

    def view(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        size = math.prod(shape)
        return torch.ones(tokens, size + cut, dtype=kind)[:, :size].view(tokens, *shape)

    def cache(*shape: int) -> StateCache:
        return StateCache(torch.ones(SLOTS, 3, 256, dtype=dtype), torch.ones(SLOTS, *shape))

    float32 = torch.float32
    run.conv(view(256), torch.ones(4, 256, dtype=dtype), torch.ones(256, dtype=dtype), cache(0))
    for heads, channels, size in ((8, 64, 128), (4, 128, 256)):
        b, c = view(1, size), view(1, size)
        dt = view(heads, kind=float32)
        run.scan(view(heads, channels), dt, torch.ones(heads), b, c, cache(heads, channels, size))
    b, c, dt = view(16), view(16), view(256, kind=float32)
    run.selective_scan(view(256), dt, torch.ones(16, 256), b, c, cache(16, 256))
    run.gated_scan(dt, dt, cache(256))
    q, v, g = view(2, 128, kind=float32), view(4, 128, kind=float32), view(4, kind=float32)
    run.delta_rule(q, q, v, g, g, cache(4, 128, 128))


def lora(dtype: torch.dtype, tokens: int) -> None:
    """Ranks 16 and 64, at a projection of 4096 hidden units and at a table."""
    groups = [(np.arange(tokens), np.arange(2)), (np.arange(tokens, 2 * tokens), np.arange(2, 10))]
    for run in (TritonLora.plan(groups, 2 * tokens, CPU), DecodeLora(2 * tokens, 10, 8, CPU).kernels(CPU)):
        for table in (False, True):
            site = LoraSite("site", 4096, 4096, table=table)
            site.allocate(10, dtype, CPU)
            out = torch.zeros(2 * tokens, 4096, dtype=dtype)
            if table:
                run.add_rows(site, torch.zeros(2 * tokens, dtype=torch.int64), out)
            else:
                run.add(site, out, out)


def routed_experts(
    dtype: torch.dtype, tokens: int, stacks: tuple[int, int, int], gated: bool, gpt_oss: bool, rank: int = 0
) -> None:
    """stacks: E, H, I. Tensors without values: that anybody asks for one on the way to the kernels fails here. rank: of
    an adapter; 0: there is none."""
    count, size, inner = stacks
    rows = 2 * inner if gated else inner
    with torch.device("meta"):
        weights = ExpertStacks(
            inward=torch.empty(count, rows, size, dtype=dtype),
            down=torch.empty(count, size, inner, dtype=dtype),
            inward_bias=torch.empty(count, rows, dtype=dtype) if gpt_oss else None,
            down_bias=torch.empty(count, size, dtype=dtype) if gpt_oss else None,
            activation="gpt_oss" if gpt_oss else "silu",
            gated=gated,
        )
        x, chosen = torch.empty(tokens, size, dtype=dtype), torch.empty(tokens, 4, dtype=torch.int64)
        changes, units = None, rank // LORA_RANK_UNIT
        if rank:
            sites = LoraSite("into", size, rows, experts=count), LoraSite("out", inner, size, experts=count)
            for site in sites:
                site.allocate(2 * units, dtype, x.device)
            changes = ExpertChanges(DecodeLora(tokens, 2 * units, units, x.device), *sites)
        experts.run(x, chosen, torch.empty(tokens, 4), weights, changes)


def main() -> None:
    """Prints the names of the kernels."""
    compiled = compile_only()
    attention(128, torch.bfloat16, [600, 9], [1, 20])
    attention(512, torch.bfloat16, [9], [20])
    attention(64, torch.float32, [9, 9], [1, 20])
    decode_step()
    elementwise(torch.bfloat16)
    recurrent(torch.bfloat16, [1, 70, 20])
    lora(torch.bfloat16, 5)
    lora(torch.bfloat16, 70)
    lora(torch.float32, 70)
    for tokens in (2, 64, 600, 4000):
        for rank in (0, 64):
            routed_experts(torch.bfloat16, tokens, (64, 2048, 768), True, False, rank)
    for rank in (0, 16):
        routed_experts(torch.bfloat16, 70, (8, 2880, 2880), True, True, rank)
        routed_experts(torch.float32, 4000, (64, 100, 70), False, False, rank)
    for by_weight in (False, True):
        sampling.threshold(torch.ones(2, 5000), torch.ones(2, dtype=torch.float64), by_weight)
    for kernel in compiled:
        assert kernel.metadata.shared <= LEAST_SHARED_MEMORY, (kernel.name, kernel.metadata)
    for head_size in (128, 256, 512):
        attention(head_size, torch.bfloat16, [9], [20], SHARED_MEMORY)
    for kernel in compiled:
        assert kernel.metadata.shared <= SHARED_MEMORY, (kernel.name, kernel.metadata)
    print("\n".join(sorted({kernel.name for kernel in compiled})))


if __name__ == "__main__":
    main()
