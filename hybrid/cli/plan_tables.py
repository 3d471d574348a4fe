"""What `hybrid plan` shows: one plan, a sweep, several models side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hybrid.capacity.planning import Plan
from hybrid.capacity.sweep import Point

GIB = 2**30


def short_name(model: str) -> str:
    """What tells a model from others in a table: the last part of its path or id."""
    path = Path(model.removesuffix("/config.json"))
    return path.stem if path.suffix == ".json" else path.name


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def show(made: Plan) -> None:
    """Prints one plan."""
    sizes, pools, one, question = made.sizes, made.pools, made.request_bytes, made.question
    console = Console()

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    device = "" if question.tp == 1 else f" on each of {question.tp} devices"
    say(f"{question.name}: {made.parameters:,} parameters, {made.weights_bytes:,} bytes of weights{device}")
    say(f"about {made.activations_bytes:,} bytes of activations; {made.memory_bytes:,} bytes for the pools")
    table = _table("pool", "units", "bytes", "one request", "per GiB")
    for name, units, size, each in (
        ("full attention", f"{sizes.num_full_blocks:,} blocks", pools.full, one.full),
        ("sliding window", f"{sizes.num_window_blocks:,} blocks", pools.window, one.window),
        ("recurrent state", f"{sizes.num_state_slots:,} slots", pools.state, one.state),
        ("encoder", f"{sizes.encoder_tokens:,} tokens", pools.encoder, one.encoder),
        ("LoRA", f"{sizes.lora_units:,} rank units", pools.lora, 0),
    ):
        if size:
            table.add_row(name, units, f"{size:,}", f"{each:,}", f"{GIB / each:,.2f}" if each else "")
    table.add_row("all", "", f"{pools.total:,}", f"{one.total:,}", f"{GIB / one.total:,.2f}" if one.total else "")
    console.print(table)
    say(
        f"{made.concurrency:,} requests at once; the {made.binding_pool} pool binds; "
        f"{made.chunk_bytes:,} bytes more while a chunk is in flight"
    )
    for size, what in (
        (made.shared_bytes, "of the shared prefix, once"),
        (made.adapter_bytes, f"of an adapter of rank {question.rank}"),
        (made.image_bytes, "of an image, in all pools"),
    ):
        if size:
            say(f"{size:,} bytes {what}")
    for note in question.what_if:
        say(f"what if: {note}")
    if flags := made.flags():
        say(flags)


def show_sweep(axis: str, curves: Mapping[str, Sequence[Point]]) -> None:
    """Prints a row for each value and model."""
    table = _table(axis.replace("_", " "), "model", "at once", "one request", "binding pool")
    table.columns[1].justify = "left"
    for points in zip(*curves.values()):
        for name, point in zip(curves, points):
            made = point.plan
            if made is None:
                table.add_row(f"{point.value:,}", name, "0", "", "does not fit")
            else:
                request = f"{made.request_bytes.total:,}"
                table.add_row(f"{point.value:,}", name, f"{made.concurrency:,}", request, made.binding_pool)
    Console().print(table)


def show_side_by_side(plans: Mapping[str, Plan | None]) -> None:
    """Prints a row for each model; None: nothing fits."""
    table = _table("model", "weights", "per token", "window", "state", "one request", "at once", "binding pool")
    for name, made in plans.items():
        if made is None:
            table.add_row(short_name(name), "", "", "", "", "", "0", "does not fit")
            continue
        one = made.request_bytes
        sizes = (made.weights_bytes, made.spec.full_bytes_per_token, one.window, one.state, one.total, made.concurrency)
        table.add_row(short_name(name), *(f"{size:,}" for size in sizes), made.binding_pool)
    Console().print(table)
