"""Which recurrent operations of a model other packages compute: a contest for each, at the model's own sizes.

A package's function is used where it wins at every size that the model has.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from tqdm import tqdm

from ..recurrent_plan import RecurrentRows
from ..triton.recurrent_kernels import OURS, RecurrentKernels
from . import conv, ssd
from .contest import Contest, Kernel, Round, Timer
from .rounds import conv_round, random_rows, ssd_round
from .shapes import RecurrentShapes

Drawn = list[tuple[tuple[int, ...], bool]]  # tokens of the rows, and whether they resume


@dataclass(frozen=True, slots=True)
class Batches:
    """Of the contests: rows of a step; tokens of a chunk that is alone and resumed, and of several that begin."""

    rows: int = 32
    alone: int = 2000
    together: tuple[int, ...] = (700, 2, 33, 500)


def choose_kernels(
    device: torch.device,
    shapes: RecurrentShapes,
    timer: Timer,
    always: bool = False,
    batches: Batches | None = None,
) -> RecurrentKernels:
    """Who computes a model's recurrent operations. always: a package's function need not be faster."""
    winners: dict[str, Kernel] = {}
    contests = list(_contests(device, shapes, batches or Batches()))
    bar = tqdm(contests, desc="comparing kernels", unit="operation", dynamic_ncols=True, leave=False)
    for name, contest in bar:
        if winners.get(name) is not contest.ours:
            winners[name] = contest.winner(timer, always)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # pools are sized by what is free
    return replace(OURS, **winners)


def gpu_seconds(run: Callable[[], object]) -> float:
    """Median over several runs with nothing in the GPU's cache, by CUDA events."""
    from triton.testing import do_bench

    return float(do_bench(run, warmup=5, rep=20, return_mode="median")) / 1e3


def _contests(device: torch.device, shapes: RecurrentShapes, batches: Batches) -> Iterator[tuple[str, Contest]]:
    """Each with the name of the kernel in `RecurrentKernels`."""
    drawn: dict[str, Drawn] = {
        "decodes": [((1,) * batches.rows, True)],
        "chunks": [((batches.alone,), True), (batches.together, False)],
    }
    dtype = shapes.dtype
    rounds: list[tuple[str, object, Callable[[RecurrentRows], Round]]] = []
    rounds += [("conv", shape, partial(conv_round, shape, dtype)) for shape in shapes.convs]
    rounds += [("ssd", shape, partial(ssd_round, shape, dtype)) for shape in shapes.ssds]
    for operation, shape, new_round in rounds:
        for part in drawn:
            name = f"{operation}_{part}"
            title, package, load = CONTESTANTS[name]
            size = f"{shape}, {dtype}".replace("torch.", "")
            draw = partial(_draw, new_round, drawn[part], device)
            yield name, Contest(f"{title} ({size})", package, load, getattr(OURS, name), draw, dtype)


def _draw(new_round: Callable[[RecurrentRows], Round], batches: Drawn, device: torch.device) -> list[Round]:
    return [new_round(random_rows(lens, resumed, device)) for lens, resumed in batches]


def _conv_decodes() -> Kernel:
    from causal_conv1d import causal_conv1d_update

    return conv.decodes(causal_conv1d_update)


def _conv_chunks() -> Kernel:
    from causal_conv1d import causal_conv1d_fn

    return conv.chunks(causal_conv1d_fn)


def _ssd_decodes() -> Kernel:
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    return ssd.decodes(selective_state_update)


def _ssd_chunks() -> Kernel:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return ssd.chunks(mamba_chunk_scan_combined)


CONTESTANTS: dict[str, tuple[str, str, Callable[[], Kernel]]] = {
    "conv_decodes": ("convolution of single tokens", "causal_conv1d", _conv_decodes),
    "conv_chunks": ("convolution of chunks", "causal_conv1d", _conv_chunks),
    "ssd_decodes": ("Mamba-2 scan of single tokens", "mamba_ssm", _ssd_decodes),
    "ssd_chunks": ("Mamba-2 scan of chunks", "mamba_ssm", _ssd_chunks),
}
