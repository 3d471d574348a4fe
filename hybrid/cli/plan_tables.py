"""What `hybrid plan` shows: one plan, a sweep, several models side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hybrid.capacity.hardware import GIB
from hybrid.capacity.sizing.mix import TOKEN_BUDGET
from hybrid.capacity.sizing.planning import Plan
from hybrid.capacity.sizing.sweep import Point

from .tables import figures_table, print_table, say


def short_name(model: str) -> str:
    """What tells a model from others in a table: the last part of its path or id."""
    path = Path(model.removesuffix("/config.json"))
    return path.stem if path.suffix == ".json" else path.name


def show(made: Plan) -> None:
    """Prints one plan."""
    sizes, pools, one, question = made.sizes, made.pools, made.request_bytes, made.question
    device = "" if question.tp == 1 else f" on each of {question.tp} devices"
    say(f"{question.name}: {made.parameters:,} parameters, {made.weights_bytes:,} bytes of weights{device}")
    if made.working is None:
        say(f"about {made.activations_bytes:,} bytes of activations; {made.memory_bytes:,} bytes for the pools")
    else:
        say(f"{made.memory_bytes:,} bytes for the pools; steps hold {made.working}")
    table = figures_table("pool", "units", "bytes", "one request", "per GiB", "1 GiB more")
    signed = "+,d" if made.expected is None else "+,.1f"
    for name, units, size, each in (
        ("full attention", f"{sizes.num_full_blocks:,} blocks", pools.full, one.full),
        ("sliding window", f"{sizes.num_window_blocks:,} blocks", pools.window, one.window),
        ("recurrent state", f"{sizes.num_state_slots:,} slots", pools.state, one.state),
        ("encoder", f"{sizes.encoder_tokens:,} tokens", pools.encoder, one.encoder),
        ("LoRA", f"{sizes.lora_units:,} rank units", pools.lora, 0),
    ):
        if size:
            per_gib = f"{GIB / each:,.2f}" if each else ""
            more = f"{made.marginal[name]:{signed}}" if name in made.marginal else ""
            table.add_row(name, units, f"{size:,}", f"{each:,}", per_gib, more)
    per_gib = f"{GIB / one.total:,.2f}" if one.total else ""
    table.add_row("all", "", f"{pools.total:,}", f"{one.total:,}", per_gib, f"{made.marginal['all']:{signed}}")
    print_table(table)
    if made.expected is not None and question.traffic is not None:
        say(f"{made.expected.concurrency:,.1f} requests at once on average; {_binds(made.expected.binding_pool)}")
        if left_out := question.traffic.left_out:
            drawn = left_out + len(question.traffic.prompts)
            say(f"{left_out:,} of {drawn:,} requests are longer than the model's limit, and not counted")
    longest = "" if made.expected is None else f" of {made.need.max_total_tokens:,} tokens, the longest,"
    say(
        f"{made.concurrency:,} requests{longest} at once; {_binds(made.binding_pool)}; "
        f"{made.chunk_bytes:,} bytes more while a chunk is in flight"
    )
    of_size = "" if question.image_size is None else " of {}x{} pixels".format(*question.image_size)
    for size, what in (
        (made.shared_bytes, "of the shared prefix, once"),
        (made.adapter_bytes, f"of an adapter of rank {question.rank}"),
        (made.image_bytes, f"of an image{of_size}, {question.image_tokens:,} tokens, in all pools"),
    ):
        if size:
            say(f"{size:,} bytes {what}")
    for note in question.what_if:
        say(f"what if: {note}")
    if flags := made.flags():
        say(flags)


def _at_once(made: Plan) -> tuple[str, str]:
    """How many run, on average where they are of many lengths, and what binds."""
    if made.expected is None:
        return f"{made.concurrency:,}", made.binding_pool
    return f"{made.expected.concurrency:,.1f}", made.expected.binding_pool


def _binds(pool: str) -> str:
    return f"the {pool} binds" if pool == TOKEN_BUDGET else f"the {pool} pool binds"


def show_sweep(axis: str, curves: Mapping[str, Sequence[Point]]) -> None:
    """Prints a row for each value and model."""
    table = figures_table(axis.replace("_", " "), "model", "at once", "one request", "binding pool")
    table.columns[1].justify = "left"
    for points in zip(*curves.values()):
        for name, point in zip(curves, points):
            made = point.plan
            if made is None:
                table.add_row(f"{point.value:,}", name, "0", "", "does not fit")
            else:
                count, pool = _at_once(made)
                table.add_row(f"{point.value:,}", name, count, f"{made.request_bytes.total:,}", pool)
    print_table(table)


def show_side_by_side(plans: Mapping[str, Plan | None]) -> None:
    """Prints a row for each model; None: nothing fits."""
    table = figures_table("model", "weights", "per token", "window", "state", "one request", "at once", "binding pool")
    for name, made in plans.items():
        if made is None:
            table.add_row(short_name(name), "", "", "", "", "", "0", "does not fit")
            continue
        one = made.request_bytes
        sizes = (made.weights_bytes, made.spec.full_bytes_per_token, one.window, one.state, one.total)
        table.add_row(short_name(name), *(f"{size:,}" for size in sizes), *_at_once(made))
    print_table(table)
