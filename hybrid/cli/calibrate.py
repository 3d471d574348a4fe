"""`hybrid plan calibrate`: measures this machine's step times with the real engine, for the planner's simulation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from .options import Device, Dtype, Memory, Threads, complain, default_threads

if TYPE_CHECKING:
    from hybrid.capacity.calibration import Calibrated


def calibrate(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, tiny, smollm2, or an id of the model hub.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("calibration.json"),
    seconds: Annotated[float, typer.Option(help="To measure for, beside loading and compiling.")] = 90.0,
    temperature: Annotated[float, typer.Option(help="Of the requests; 0 takes the most likely token.")] = 1.0,
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of prompt and answer together.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests that run at once.")] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens per step.")] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens per block of the attention pools.")] = 16,
    memory: Memory = None,
    device: Device = None,
    num_threads: Threads = None,
    dtype: Dtype = "auto",
) -> None:
    """Measure how long steps of a model take here, and write it to a file for hybrid plan --calibration.

    The other options should be those that the engine will have. Nothing else should run meanwhile.
    """
    from hybrid.engine_args import EngineArgs

    try:
        if not out.absolute().parent.is_dir():
            raise ValueError(f"out {str(out)!r} lies in no folder that exists")
        if out.is_dir():
            raise ValueError(f"out {str(out)!r} is a folder, not a file")
        args = EngineArgs(
            model=model,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            memory=memory,
            dtype=dtype,
            device=device,
            num_threads=num_threads if num_threads is not None else default_threads(model),
            skip_tokenizer_init=True,
        )
        from hybrid.calibration.measure import calibrate as measure

        made = measure(args, seconds, temperature)
        out.write_text(made.to_json(), encoding="utf-8")
    except (ValueError, OSError) as error:
        complain(error)
        raise typer.Exit(2) from None
    _show(made)
    print(out)


def _show(made: "Calibrated") -> None:
    """How far the fit is off, and some steps."""
    table = Table("steps", "measured", "off by, median", "95% within", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, residual in made.residuals.items():
        table.add_row(kind, f"{residual.count:,}", f"{residual.p50:.1%}", f"{residual.p95:.1%}")
    Console().print(table)
