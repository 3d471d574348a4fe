"""Cases of the recurrent operations: steps of many rows, and chunks with snapshots."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hybrid.models.context import StateCache
from hybrid.models.ops.dispatch import RecurrentRun
from hybrid.models.ops.recurrent import TorchRecurrent
from hybrid.models.ops.recurrent_plan import RecurrentRows
from hybrid.models.ops.triton.recurrent import TritonRecurrent
from hybrid.models.ops.triton.recurrent_tables import LONG_BLOCK

from .gpu_case import Case, Tensors, Work, written

KERNEL = 4
NO_CONV = (KERNEL - 1, 1)  # of operations that leave it alone
Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """draw: inputs of so many tokens, the constants among them. call: with inputs. conv and ssm: shapes of a state.

    token_bytes: of inputs and results, per token; operations: of products, per token of a chunk.
    """

    name: str
    size: str
    draw: Callable[[int], Inputs]
    call: Callable[[RecurrentRun, Inputs, StateCache], torch.Tensor]
    conv: tuple[int, ...]
    ssm: tuple[int, ...]
    token_bytes: float
    operations: float = 0.0


def cases(device: torch.device, dtype: torch.dtype, short: bool) -> list[Case]:
    """Every operation over decodes, over chunks and over both."""
    mixes: dict[str, tuple[int, ...]] = {"steps": (1,) * 3, "mixed": (1, 70, 5)}
    if not short:
        mixes = {"steps": (1,) * 256, "chunks": (4096, 4096), "mixed": (1,) * 31 + (2048,)}
    return [
        Case(
            f"{operation.name}: {mix}",
            f"{len(lens)} rows, {sum(lens)} tokens, {operation.size}",
            dtype,
            not short,
            partial(_work, operation, lens, device, dtype),
        )
        for operation in _operations(device, dtype, short)
        for mix, lens in mixes.items()
    ]


def _operations(device: torch.device, dtype: torch.dtype, short: bool) -> list[Operation]:
    """Real sizes: of Nemotron-H-8B, Falcon-Mamba-7B, RecurrentGemma-9B and Qwen3-Next."""
    channels = 37 if short else 10240
    heads, width, groups, states = (4, 10, 2, 7) if short else (128, 64, 8, 128)
    inner, small = (37, 5) if short else (8192, 16)
    k_heads, v_heads, k_size, v_size = (1, 2, 5, 7) if short else (16, 32, 128, 128)
    item, float32 = dtype.itemsize, torch.float32

    def random(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, device=device).to(kind)

    def decays(*shape: int) -> torch.Tensor:
        return -3 * torch.rand(shape, device=device)

    def conv(tokens: int) -> Inputs:
        return random(tokens, channels), random(KERNEL, channels), random(channels)

    def scan(tokens: int) -> Inputs:
        x, dt = random(tokens, heads, width), random(tokens, heads, kind=float32).abs()
        return x, dt, decays(heads), random(tokens, groups, states), random(tokens, groups, states)

    def selective(tokens: int) -> Inputs:
        x, dt = random(tokens, inner), random(tokens, inner, kind=float32).abs()
        return x, dt, decays(small, inner), random(tokens, small), random(tokens, small)

    def gated(tokens: int) -> Inputs:
        return random(tokens, inner, kind=float32), decays(tokens, inner)

    def delta(tokens: int) -> Inputs:
        query, key = (random(tokens, k_heads, k_size, kind=float32) for _ in range(2))
        value = random(tokens, v_heads, v_size, kind=float32)
        keys = key / key.norm(dim=-1, keepdim=True)
        return (
            query * k_size**-0.5,
            keys,
            value,
            decays(tokens, v_heads) / 6,
            torch.rand(tokens, v_heads, device=device),
        )

    return [
        Operation(
            name="conv",
            size=f"{channels} channels",
            draw=conv,
            call=lambda run, x, cache: run.conv(x[0], x[1], x[2], cache),
            conv=(KERNEL - 1, channels),
            ssm=(0,),
            token_bytes=2 * channels * item,
        ),
        Operation(
            name="Mamba-2 scan",
            size=f"state {heads}/{width}/{states}",
            draw=scan,
            call=lambda run, x, cache: run.scan(x[0], x[1], x[2], x[3], x[4], cache),
            conv=NO_CONV,
            ssm=(heads, width, states),
            token_bytes=heads * width * (item + 4) + 4 * heads + 2 * groups * states * item,
            operations=groups * LONG_BLOCK * states + heads * width * (LONG_BLOCK + 4 * states),
        ),
        Operation(
            name="Mamba-1 scan",
            size=f"state {small}/{inner}",
            draw=selective,
            call=lambda run, x, cache: run.selective_scan(x[0], x[1], x[2], x[3], x[4], cache),
            conv=NO_CONV,
            ssm=(small, inner),
            token_bytes=inner * (item + 8) + 2 * small * item,
        ),
        Operation(
            name="gated scan",
            size=f"state {inner}",
            draw=gated,
            call=lambda run, x, cache: run.gated_scan(x[0], x[1], cache),
            conv=NO_CONV,
            ssm=(inner,),
            token_bytes=12 * inner,
        ),
        Operation(
            name="delta rule",
            size=f"state {v_heads}/{k_size}/{v_size}",
            draw=delta,
            call=lambda run, x, cache: run.delta_rule(x[0], x[1], x[2], x[3], x[4], cache),
            conv=NO_CONV,
            ssm=(v_heads, k_size, v_size),
            token_bytes=4 * (2 * k_heads * k_size + 2 * v_heads * v_size + 2 * v_heads),
            operations=v_heads * (LONG_BLOCK * (3 * k_size + 2 * v_size) + 6 * k_size * v_size),
        ),
    ]


def _work(operation: Operation, lens: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Work:
    rows = _rows(lens, device)
    inputs = operation.draw(sum(lens))
    conv, ssm = (
        torch.full((2 * len(lens) + 2, *shape), float("nan"), device=device, dtype=kind)
        for shape, kind in ((operation.conv, dtype), (operation.ssm, torch.float32))
    )
    resumed = torch.from_numpy(rows.slots[rows.num_computed > 0]).to(device)
    for states in (conv, ssm):
        states[resumed] = torch.randn(len(resumed), *states.shape[1:], device=device).to(states.dtype)

    def run(plan: RecurrentRun, inputs: Inputs, kind: torch.dtype) -> Tensors:
        cache = StateCache(conv.to(kind, copy=True), ssm.clone())
        return operation.call(plan, inputs, cache), written(cache.conv), written(cache.ssm)

    plan, timed = TritonRecurrent.of(rows), StateCache(conv.clone(), ssm.clone())
    state = conv if operation.name == "conv" else ssm
    state_bytes = state[0].numel() * state.element_size()
    in_chunks = sum(length for length in lens if length > 1)
    return Work(
        kernel=lambda: run(TritonRecurrent.of(rows), inputs, dtype),
        reference=lambda: run(TorchRecurrent.of(rows, KERNEL - 1), tuple(x.float() for x in inputs), torch.float32),
        again=lambda: operation.call(plan, inputs, timed),
        bytes=sum(lens) * operation.token_bytes + (2 * len(lens) + len(rows.snapshot_slots)) * state_bytes,
        operations=in_chunks * operation.operations,
    )


def _rows(lens: tuple[int, ...], device: torch.device) -> RecurrentRows:
    """All but the last one are resumed; the first and the last one leave a snapshot. Slots lie in no order."""
    rng = np.random.default_rng()
    order, owner = rng.permutation(2 * len(lens) + 2), np.array([0, len(lens) - 1])
    return RecurrentRows(
        lens=np.array(lens),
        num_computed=np.array([10] * (len(lens) - 1) + [0]),
        slots=order[: len(lens)],
        writes=np.ones(len(lens), dtype=np.bool_),
        snapshot_rows=owner,
        snapshot_lengths=rng.integers(1, np.array(lens)[owner] + 1),
        snapshot_slots=order[len(lens) : len(lens) + 2],
        device=device,
    )
