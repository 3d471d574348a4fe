"""`hybrid plan`: how many requests fit, which pool binds and the flags for it, from `config.json` alone. No torch."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import close_output, complain
from .simulate import PANEL, SimulateOptions
from .simulate import simulate as run_simulation

if TYPE_CHECKING:
    from hybrid.capacity.question import Question
    from hybrid.capacity.sizing.planning import Plan


def plan(
    model: Annotated[str, typer.Argument(help="A folder, a config.json, a GGUF file, tiny, smollm2, or a hub id.")],
    gpu: Annotated[str | None, typer.Option(help="A device of the hardware table, such as h100, or cpu.")] = None,
    memory: Annotated[str | None, typer.Option(help="Of all pools together, such as 40GiB.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="Of the device, instead of the table's.")] = None,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of a GPU's memory for weights, pools and steps. Default: all of it.")
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Bytes per second, instead of the table's.")] = None,
    flops: Annotated[float | None, typer.Option(help="Operations per second, instead of the table's.")] = None,
    tp: Annotated[int, typer.Option(help="Devices that share the model.")] = 1,
    context: Annotated[
        str, typer.Option(help="Tokens of a prompt: 8k, lognormal:mean=512,p95=2000, uniform:100-900, trace:FILE, ...")
    ] = "8k",
    output: Annotated[str, typer.Option(help="Tokens of an answer, in the same ways.")] = "512",
    max_tokens: Annotated[
        str | None, typer.Option(help="Tokens of an answer that requests permit. Default: as many as it has.")
    ] = None,
    images: Annotated[int, typer.Option(help="Of a prompt; their tokens come on top of --context.")] = 0,
    image_size: Annotated[str | None, typer.Option(help="Pixels of each image, such as 1024x768.")] = None,
    shared_prefix: Annotated[str, typer.Option(help="Tokens with which every prompt begins.")] = "0",
    adapters: Annotated[int, typer.Option(help="LoRA adapters on the device at once.")] = 0,
    rank: Annotated[int, typer.Option(help="Of each adapter.")] = 16,
    lora_target_modules: Annotated[
        list[str] | None, typer.Option(help="Ends of names of modules that adapters may change. Default: all.")
    ] = None,
    weights_dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16, float8_e4m3fn, ...")] = "auto",
    kv_dtype: Annotated[str | None, typer.Option(help="Of keys and values. Default: as the weights.")] = None,
    state_dtype: Annotated[str, typer.Option(help="Of recurrent states.")] = "float32",
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens per step.")] = 2048,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests at once. Default: what fits.")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    sweep: Annotated[str | None, typer.Option(help="A range, each value twice the last: context=1k..128k.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the sweep into this file, such as plan.png.")] = None,
    compare: Annotated[list[str] | None, typer.Option(help="Another model; may be given several times.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Integer bytes and formulas instead of a table.")] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Serve a workload with what is planned.", rich_help_panel=PANEL)
    ] = False,
    rate: Annotated[
        str | None,
        typer.Option(help="Requests per second: 8, or 1..50 for the highest that meets --slo.", rich_help_panel=PANEL),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(help="What 95 % must meet: ttft=2s,itl=50ms,tpot=40ms,e2e=30s.", rich_help_panel=PANEL),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(help="poisson, steady, bursts:cv=3, chat:turns=5, azure:FILE, ...", rich_help_panel=PANEL),
    ] = "poisson",
    duration: Annotated[
        str | None, typer.Option(help="Requests arrive for so long, such as 10m. Default: 2m.", rich_help_panel=PANEL)
    ] = None,
    requests: Annotated[
        int | None, typer.Option(help="So many requests instead of a duration.", rich_help_panel=PANEL)
    ] = None,
    warmup: Annotated[
        str | None, typer.Option(help="What arrives so early is not measured, such as 30s.", rich_help_panel=PANEL)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.", rich_help_panel=PANEL)] = 0,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="Compare settings: policy=fcfs,lpm; several make combinations.", rich_help_panel=PANEL),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Step times from hybrid plan calibrate.", rich_help_panel=PANEL)
    ] = None,
) -> None:
    """How many requests of one shape fit, and how to split the memory for them."""
    from hybrid.capacity.ask import ask, parse_image_size
    from hybrid.capacity.hardware import find_hardware
    from hybrid.capacity.model_file import open_model, quant_method
    from hybrid.capacity.picture import check_picture
    from hybrid.capacity.tokens import parse_tokens
    from hybrid.memory_size import parse_memory

    try:
        if gpu is None and memory is None:
            raise ValueError("give --gpu or --memory")
        if gpu is None and any(value is not None for value in (gpu_memory, gpu_memory_utilization, bandwidth, flops)):
            raise ValueError(
                "--gpu-memory, --gpu-memory-utilization, --bandwidth and --flops change a --gpu; give one, such as cpu"
            )
        if plot is not None and sweep is None and not simulate:
            raise ValueError("--plot draws a --sweep; give one, such as context=1k..128k")
        if plot is not None:
            check_picture(plot)
        hardware = None
        if gpu is not None:
            own_memory = None if gpu_memory is None else parse_memory(gpu_memory)
            hardware = find_hardware(gpu, memory_bytes=own_memory, bandwidth=bandwidth, flops=flops)
        shared = parse_tokens("shared_prefix", shared_prefix)

        def asked(name: str, context: str, output: str) -> "Question":
            return ask(
                name=name,
                model=open_model(name),
                quant_method=quant_method(name),
                memory_bytes=None if memory is None else parse_memory(memory),
                hardware=hardware,
                gpu_memory_utilization=gpu_memory_utilization,
                tp=tp,
                context=context,
                output=output,
                max_tokens=None if simulate else max_tokens,
                images=images,
                image_size=None if image_size is None else parse_image_size(image_size),
                shared_prefix=shared,
                adapters=adapters,
                rank=rank,
                lora_target_modules=tuple(lora_target_modules) if lora_target_modules else None,
                weights_dtype=weights_dtype,
                kv_dtype=kv_dtype,
                state_dtype=state_dtype,
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                block_size=block_size,
            )

        options = SimulateOptions(
            rate=rate,
            slo=slo,
            workload=workload,
            duration=duration,
            requests=requests,
            warmup=warmup,
            seed=seed,
            vary=tuple(vary or ()),
            calibration=calibration,
        )
        if simulate:
            if compare or sweep is not None:
                raise ValueError("--simulate takes one model and no --sweep; compare settings with --vary")
            # of prompts and answers the workload decides
            run_simulation(asked(model, str(shared + 1), "1"), context, output, max_tokens, options, plot, as_json)
            sys.stdout.flush()
            return
        if options != SimulateOptions():
            raise ValueError("--rate, --slo and others of a simulation need --simulate")
        questions = [asked(name, context, output) for name in (model, *(compare or ()))]
        if sweep is None:
            _answer(questions, as_json)
        else:
            _sweep(questions, sweep, plot, as_json)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has enough
        raise
    except ValueError as error:
        complain(error)
        raise typer.Exit(2) from None
    except OSError as error:
        complain(f"the answer cannot be written: {error.strerror or error}")
        close_output()
        raise typer.Exit(2) from None


def _answer(questions: list["Question"], as_json: bool) -> None:
    """Prints the plan, or several side by side. Raises ValueError where nothing fits: what would."""
    from hybrid.capacity.question import NothingFitsError
    from hybrid.capacity.sizing.document import document
    from hybrid.capacity.sizing.planning import plan as make_plan
    from hybrid.capacity.sizing.remedies import nothing_fits

    from .plan_tables import show, show_side_by_side

    plans: dict[str, Plan | None] = {}
    errors: list[ValueError] = []
    for question in questions:
        try:
            plans[question.name] = make_plan(question)
        except ValueError as error:
            plans[question.name] = None
            can_fit = isinstance(error, NothingFitsError)
            errors.append(ValueError(nothing_fits(question, error)) if can_fit else error)
    made = [entry for entry in plans.values() if entry is not None]
    if not made:
        raise errors[0]
    if as_json:
        _print(document(entry) for entry in made)
    elif len(questions) == 1:
        show(made[0])
    else:
        show_side_by_side(plans)
    for why_not in errors:
        complain(why_not)


def _sweep(questions: list["Question"], text: str, plot: Path | None, as_json: bool) -> None:
    """Prints, and draws, the answers for a range of values. Raises ValueError."""
    from hybrid.capacity.sizing.document import document
    from hybrid.capacity.sizing.sweep import draw, parse_sweep
    from hybrid.capacity.sizing.sweep import sweep as run_sweep

    from .plan_tables import short_name, show_sweep

    axis, values = parse_sweep(text)
    curves = {short_name(question.name): list(run_sweep(question, axis, values)) for question in questions}
    if not any(point.plan for points in curves.values() for point in points):
        raise ValueError(next(iter(curves.values()))[0].why_not)
    if plot is not None:
        draw(plot, axis, curves)
    if as_json:
        _print(
            {"model": name, axis: point.value, "plan": None if point.plan is None else document(point.plan)}
            | ({"why_not": point.why_not} if point.plan is None else {})
            for name, points in curves.items()
            for point in points
        )
    else:
        show_sweep(axis, curves)


def _print(documents: Iterable[dict[str, Any]]) -> None:
    """One document by itself, several as a list."""
    listed = list(documents)
    print(json.dumps(listed[0] if len(listed) == 1 else listed, indent=2))
