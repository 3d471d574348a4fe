"""Projections on a CPU: dense matrices against oneDNN's packed layout: `python -m benchmarks.linear`.

Shapes of SmolLM2-135M; several copies of each weight, so that they come from memory and not from a cache.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from hybrid.models.layers.linear import Linear, can_pack

SHAPES = {"qkv": (960, 576), "gate and up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}  # [out, in]
ROWS = (1, 8, 32, 128)
BYTES = 60e6  # of all copies of a weight together


def main() -> None:
    """Measure and print a table of milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if not can_pack(torch.zeros(1, 1)):
        raise SystemExit("this build of torch has no packed layout")
    table = Table(title=f"float32, {args.threads} threads, milliseconds")
    for column in ("projection", "rows", "F.linear", "x @ transposed", "packed"):
        table.add_column(column, justify="right")
    for name, shape in tqdm(SHAPES.items(), leave=False):
        dense = [torch.randn(shape) for _ in range(max(1, int(BYTES / (shape[0] * shape[1] * 4))))]
        transposed = [weight.t().contiguous() for weight in dense]
        packed = [Linear((weight,)) for weight in dense]
        for rows in ROWS:
            x = torch.randn(rows, shape[1])
            times = (
                fastest([partial(F.linear, x, weight) for weight in dense]),
                fastest([partial(torch.matmul, x, weight) for weight in transposed]),
                fastest([partial(linear, x) for linear in packed]),
            )
            table.add_row(name, str(rows), *(f"{milliseconds:.3f}" for milliseconds in times))
    Console().print(table)


def fastest(calls: Sequence[Callable[[], object]], repeat: int = 15) -> float:
    """Milliseconds per call of the fastest of several rounds over all calls."""
    rounds = []
    for _ in range(repeat):
        start = perf_counter()
        for call in calls:
            call()
        rounds.append(perf_counter() - start)
    return min(rounds) / len(calls) * 1e3


if __name__ == "__main__":
    main()
