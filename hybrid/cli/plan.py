"""`hybrid plan`: how many requests fit, which pool binds and the flags for it, from `config.json` alone. No torch."""

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .options import complain

if TYPE_CHECKING:
    from hybrid.capacity.planning import Plan

GIB = 2**30


def plan(
    model: Annotated[str, typer.Argument(help="A folder, a config.json, tiny, or an id of the model hub.")],
    gpu: Annotated[str | None, typer.Option(help="A device of the hardware table, such as h100.")] = None,
    memory: Annotated[str | None, typer.Option(help="Of all pools together, such as 40GiB.")] = None,
    context: Annotated[str, typer.Option(help="Tokens of a prompt, such as 8k.")] = "8k",
    output: Annotated[str, typer.Option(help="Tokens of an answer.")] = "512",
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens per step.")] = 2048,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests at once. Default: what fits.")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    dtype: Annotated[str, typer.Option(help="Of weights, keys and values: auto, float32, bfloat16, float16.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Integer bytes and formulas instead of a table.")] = False,
) -> None:
    """How many requests of one shape fit, and how to split the memory for them."""
    from hybrid.capacity.hardware import find_hardware
    from hybrid.capacity.model_file import open_model, weight_bytes
    from hybrid.capacity.planning import Request
    from hybrid.capacity.planning import plan as make_plan
    from hybrid.engine_memory import gpu_pool_memory
    from hybrid.memory_size import parse_memory

    try:
        if (gpu is None) == (memory is None):
            raise ValueError("give either --gpu or --memory")
        blueprint = open_model(model)
        if memory is not None:
            budget = parse_memory(memory)
        else:
            free = find_hardware(str(gpu)).memory_bytes
            free -= weight_bytes(blueprint, blueprint.dtype if dtype == "auto" else dtype)
            if free <= 0:
                raise ValueError(f"the weights of {model} need {-free:,} bytes more than {gpu} has")
            budget = gpu_pool_memory(free)
        made = make_plan(
            model,
            blueprint,
            budget,
            Request(_tokens("context", context), _tokens("output", output)),
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            dtype=dtype,
        )
    except ValueError as error:
        complain(error)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(_document(made), indent=2))
    else:
        _show(made)


def _tokens(name: str, value: str) -> int:
    """ "8k" is 8,192. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,9})(k?)", value.strip().lower())
    if match is None:
        raise ValueError(f"{name} must be a number of tokens such as 512 or 8k, got {value!r}")
    return int(match[1]) * (1024 if match[2] else 1)


def _document(made: "Plan") -> dict[str, Any]:
    return {
        "model": made.model,
        "parameters": made.parameters,
        "weights_bytes": made.weights_bytes,
        "memory_bytes": made.memory_bytes,
        "concurrency": made.concurrency,
        "binding_pool": made.binding_pool,
        "sizes": asdict(made.sizes),
        "pool_bytes": asdict(made.pools) | {"total": made.pools.total},
        "request_units": asdict(made.life),
        "request_bytes": asdict(made.request_bytes) | {"total": made.request_bytes.total},
        "admission_peak_bytes": made.request_bytes.total + made.chunk_bytes,
        "formulas": {
            "full": f"blocks * {made.sizes.block_size} * {made.spec.full_bytes_per_token}",
            "window": f"blocks * {made.sizes.block_size} * {made.spec.window_bytes_per_token}",
            "state": f"slots * {made.spec.state_bytes_per_slot}",
        },
        "flags": made.flags(),
    }


def _show(made: "Plan") -> None:
    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("pool")
    for column in ("units", "bytes", "one request", "requests per GiB"):
        table.add_column(column, justify="right")
    sizes, pools, one = made.sizes, made.pools, made.request_bytes
    for name, units, size, each in (
        ("full attention", f"{sizes.num_full_blocks:,} blocks", pools.full, one.full),
        ("sliding window", f"{sizes.num_window_blocks:,} blocks", pools.window, one.window),
        ("recurrent state", f"{sizes.num_state_slots:,} slots", pools.state, one.state),
        ("encoder", f"{sizes.encoder_tokens:,} tokens", pools.encoder, one.encoder),
    ):
        if size:
            table.add_row(name, units, f"{size:,}", f"{each:,}", f"{GIB / each:,.2f}" if each else "")
    table.add_row("all", "", f"{pools.total:,}", f"{one.total:,}", f"{GIB / one.total:,.2f}" if one.total else "")
    console.print(
        f"{made.model}: {made.parameters:,} parameters, {made.weights_bytes:,} bytes of weights", soft_wrap=True
    )
    console.print(table)
    console.print(
        f"{made.concurrency:,} requests at once; the {made.binding_pool} pool binds; "
        f"{made.chunk_bytes:,} bytes more while a chunk is in flight",
        soft_wrap=True,
    )
    console.print(made.flags(), soft_wrap=True)
