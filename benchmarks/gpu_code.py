"""What Triton's compiler makes of the launches of real models, without a GPU: `python -m benchmarks.gpu_code`.

Steps of models run on tensors without values; kernels are compiled for a GPU and not run. Printed is one line per
compiled variant of a kernel: what its instructions say, nothing that was measured. See `docs/performance.md`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from tqdm import tqdm

from hybrid.models.context import AttentionCache, BlockTables, DecodeContext, ForwardContext, Snapshots, StateCache
from hybrid.models.decoder import Decoder
from hybrid.models.ops.lora import LoraBatch
from hybrid.models.ops.triton import attention, decode_attention, delta_rule, device, lora
from hybrid.models.weights import Weights
from hybrid.pools.specs import MambaSpec

from .gpu_case import ops
from .gpu_launches import compiling
from .gpu_models import BLOCK_SIZE, real_model, tiny_model
from .machine_code import PROCESSORS, MachineCode

META = torch.device("meta")
MODELS = (
    "Llama-3.1-8B",
    "gemma-3-4b-it",
    "gemma-4-26B-A4B",
    "gpt-oss-20b",
    "Nemotron-H-8B-Base-8K",
    "granite-4.0-h-tiny",
    "Falcon-H1-7B",
    "Jamba-v0.1",
    "Qwen3.5-27B",
)
TINY = "tiny hybrid"  # for tests
MULTIPROCESSORS = 132  # of an H200
CONTEXT = 2047  # before each token that decodes
STEPS = {"decode": (1,) * 32, "one": (1,), "short": (16,) * 4, "chunks": (2048,) * 4}  # tokens of each row
ADAPTERS = {"decode, LoRA": (1,) * 32, "chunk, LoRA": (2048,)}  # steps of the first model with an adapter of rank 16


@dataclass(slots=True)
class Variant:
    """One compiled kernel. launches: of each step in which it takes part; programs: of its smallest grid there."""

    code: MachineCode
    launches: Counter[str] = field(default_factory=Counter)
    programs: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        code = self.code
        widths = [f"{8 * size}:{count}" for size, count in sorted(code.loads.items(), reverse=True)]
        stores = [f"{8 * size}:{count}" for size, count in sorted(code.stores.items(), reverse=True)]
        steps = [f"{step} {count}x{self.programs[step]}" for step, count in self.launches.items()]
        products = "+".join(sorted(code.products)) or "-"
        spilled = f"{code.stack}{'!' if code.spills else ''}" if code.stack else "-"
        return (
            f"{code.name:<23}{code.registers:>4}{spilled:>6}{code.shared / 1024:>7.1f}{code.warps:>3}"
            f"{code.resident:>4}{code.resident * code.warps:>6}{code.in_flight / 1024:>6.0f}  "
            f"{products:<9} {code.asynchronous:>4}  {' '.join(widths):<32} {' '.join(stores):<22} {', '.join(steps)}"
        )


HEADER = (
    f"{'kernel':<23}{'regs':>4}{'stack':>6}{'KB':>7}{'w':>3}{'res':>4}{'warps':>6}{'KB/SM':>6}  {'products':<9} async  "
    f"{'loads by bits':<32} {'stores by bits':<22} launches x programs"
)


@contextmanager
def pretended(arch: int) -> Iterator[None]:
    """Plans are cut for a GPU of that kind."""
    programs = 4 * MULTIPROCESSORS
    with ExitStack() as stack:
        for module in (attention, decode_attention, lora):
            stack.enter_context(patch.object(module, "num_programs", lambda _: programs))
        for module in (attention, delta_rule):
            stack.enter_context(patch.object(module, "shared_memory", lambda _: PROCESSORS[arch].per_program))
        stack.enter_context(ops("triton"))
        stack.enter_context(patch.object(device, "check", lambda _: None))
        yield


def variants(name: str, arch: int, steps: Sequence[str] = (*STEPS, *ADAPTERS)) -> Iterator[Variant]:
    """Of a model's steps."""
    found: dict[Any, Variant] = {}
    with torch.inference_mode(), pretended(arch):
        model = decoder(name)
        for step, counts in {**STEPS, **(ADAPTERS if name == MODELS[0] else {})}.items():
            if step not in steps:
                continue
            caches = _caches(model, len(counts) + 2)
            in_graph = set(counts) == {1} and step in STEPS
            context = _decodes(len(counts), caches) if in_graph else _context(counts, caches)
            if isinstance(context, ForwardContext) and step in ADAPTERS:
                for site in model.lora_sites:
                    site.allocate(2, model.dtype, META)
                    site.filled[:] = True
                context = replace(context, lora=LoraBatch(np.tile([1, 0], (sum(counts), 1))))
            with compiling(arch) as launches:
                model.forward(context)
            for launch in tqdm(launches, desc=step, unit="launch", leave=False):
                if launch.kernel not in found:
                    found[launch.kernel] = Variant(MachineCode.of(launch.kernel))
                variant = found[launch.kernel]
                variant.launches[step] += 1
                variant.programs[step] = min(launch.programs, variant.programs.get(step, launch.programs))
    yield from found.values()


def decoder(name: str) -> Decoder:
    """Without values, in bfloat16."""
    model = tiny_model() if name == TINY else real_model(name)
    tensors = {name: torch.empty(shape, dtype=torch.bfloat16, device=META) for name, shape in model.tensors().items()}
    return Decoder(model, Weights(tensors, torch.bfloat16, META))


def _caches(model: Decoder, rows: int) -> tuple[AttentionCache | StateCache, ...]:
    caches: list[AttentionCache | StateCache] = []
    for spec in (spec for layer in model.spec.layers for spec in layer):
        if isinstance(spec, MambaSpec):
            channels, tail = spec.conv_shape
            conv = torch.empty(rows, tail, channels, dtype=model.dtype, device=META)
            caches.append(StateCache(conv, torch.empty(rows, *(spec.ssm_shape or (0,)), device=META)))
        else:
            blocks = rows * ((CONTEXT + 1) // BLOCK_SIZE) + 1
            shape = (blocks, 2, spec.num_kv_heads, BLOCK_SIZE, spec.head_size)
            caches.append(AttentionCache(torch.empty(shape, dtype=model.dtype, device=META)))
    return tuple(caches)


def _context(counts: tuple[int, ...], caches: tuple[Any, ...]) -> ForwardContext:
    """Rows of several tokens leave a snapshot each."""
    computed = np.array([CONTEXT if count == 1 else 0 for count in counts])
    starts = np.concatenate(([0], np.cumsum(counts)))
    owner = np.repeat(np.arange(len(counts)), counts)
    width = (CONTEXT + 1) // BLOCK_SIZE
    table = np.arange(len(counts) * width).reshape(len(counts), width)
    tables = BlockTables(table, np.zeros(len(owner), dtype=np.int64), BLOCK_SIZE)
    chunks = np.flatnonzero(np.array(counts) > 1)
    ids = torch.empty(len(owner), dtype=torch.int64, device=META)
    return ForwardContext(
        token_ids=ids,
        positions=ids,
        query_start_loc=starts,
        num_computed_tokens=computed,
        num_decodes=counts.count(1),
        state_slots=np.arange(len(counts)),
        full=tables,
        window=tables,
        snapshots=Snapshots(chunks, np.array(counts)[chunks], np.full(len(chunks), len(counts))),
        images=None,
        caches=caches,
    )


def _decodes(rows: int, caches: tuple[Any, ...]) -> DecodeContext:
    """As a graph has it."""
    ids = torch.empty(rows, dtype=torch.int64, device=META)
    table = torch.empty((rows + 1, (CONTEXT + 1) // BLOCK_SIZE), dtype=torch.int32, device=META)
    slots = torch.empty(rows + 1, dtype=torch.int64, device=META)
    return DecodeContext(ids, ids, ids, table, table, slots, caches)


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if some launch spills registers in a loop, or needs more shared memory than a program has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = (*STEPS, *ADAPTERS)
    models = f"default all of: {', '.join(MODELS)}; '{TINY}' too, which is quick"
    parser.add_argument("--models", nargs="+", choices=(*MODELS, TINY), default=MODELS, metavar="NAME", help=models)
    steps = f"default all of: {', '.join(map(repr, every))}; those of LoRA are the first model's alone"
    parser.add_argument("--steps", nargs="+", choices=every, default=every, metavar="STEP", help=steps)
    kinds = "compute capability times ten: 80 A100, 89 L4 and RTX 4090, 90 H100 and H200 (default), 100 B200"
    parser.add_argument("--arch", nargs="+", type=int, choices=sorted(PROCESSORS), default=[90], help=kinds)
    args = parser.parse_args(arguments)
    failures = []
    for arch in args.arch:
        for name in tqdm(args.models, desc=f"sm_{arch}", unit="model"):
            tqdm.write(f"\n{name}, sm_{arch}\n{HEADER}")
            for variant in variants(name, arch, args.steps):
                tqdm.write(str(variant))
                if variant.code.spills or not variant.code.resident:
                    failures.append(f"{name}, sm_{arch}: {variant}")
    for failure in failures:
        print(f"failed: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
