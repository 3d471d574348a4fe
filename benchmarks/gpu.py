"""Everything about a GPU in one run of less than 8 minutes: `python -m benchmarks.gpu [--json results.json]`.

1. The rates of the device: copying, and multiplying matrices. 2. Every Triton kernel against its torch reference on
new random inputs, and its time against its roofline. 3. Steps of models of real shapes with random weights against the
weight-and-state roofline. 4. Engines on tiny checkpoints against the CPU's. Every part prints as it goes; one that
fails does not stop the others, and the exit code says so.

`--short`: parts 2 to 4 in tiny sizes without any time; also on a CPU, in Triton's interpreter.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

if TYPE_CHECKING:
    from .gpu_case import Case, Rates

PARTS = ("kernels", "models", "engines")
SECONDS = 460.0  # after which nothing new begins
Entry = dict[str, object]


class Report:
    """What was found, printed at once. Entries of JSON have `part`, `name` and `ok`."""

    def __init__(self, seconds: float, head: Mapping[str, object], path: Path | None = None) -> None:
        """path: of the JSON, which has the `head` too; written at once, and again with every entry, as a run may end
        early. OSError where it cannot be."""
        self.entries: list[Entry] = []
        self._end = perf_counter() + seconds
        self._head = head
        self._path = path
        self._save()

    @property
    def failures(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry["ok"]]

    def add(self, part: str, name: str, text: str, ok: bool, **values: object) -> None:
        """Mutates: one more line of the table and entry of JSON."""
        self.entries.append({"part": part, "name": name, "ok": ok, **values})
        self._save()
        tqdm.write(f"{'ok  ' if ok else 'FAIL'} {part:<9} {name:<40} {text}")

    def attempt(self, part: str, name: str, run: Callable[[], None]) -> None:
        """`run` adds entries; where it raises, or the time is up, that is the entry."""
        if perf_counter() > self._end:
            self.add(part, name, "left out: the time is up", False, error="the time is up")
            return
        try:
            run()
        except Exception as error:  # whatever a kernel does to a device, the other parts say what they can
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self.add(part, name, reason[:300], False, error=reason)

    def _save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({**self._head, "entries": self.entries}, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run all parts. 1 if anything failed or was left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="tiny sizes, no times; also without a GPU")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="2, 3, 4 of the above; default: all")
    parser.add_argument("--only", default="", help="kernels, models, checkpoints with this in their names: attention")
    parser.add_argument("--seed", type=int, default=None, help="of the inputs; without it new ones every time")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="nothing new begins after so many; default: 460")
    parser.add_argument("--json", type=Path, default=None, help="a file; what is printed is written there, too")
    args = parser.parse_args(arguments)
    on_gpu = torch.cuda.is_available()
    if not (on_gpu or args.short):
        seen = "torch sees no GPU here" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
        parser.error(f"{seen}; --short checks the kernels in Triton's interpreter")
    if not on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
    device = torch.device("cuda" if on_gpu else "cpu")
    seed = int.from_bytes(os.urandom(4)) if args.seed is None else args.seed
    machine = torch.cuda.get_device_name() if on_gpu else "CPU, interpreted"
    head = {
        "device": machine,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "torch": torch.__version__,
        "triton": version("triton"),
        "seed": seed,
    }
    print(f"{machine}, {head['date']}, torch {torch.__version__}, triton {head['triton']}, seed {seed}", flush=True)
    try:
        report = Report(args.seconds, head, args.json)
    except OSError as error:
        parser.error(f"--json {args.json}: {error.strerror}")
    torch.manual_seed(seed)
    rates = None if args.short else measured_rates(device, report)
    for name, part in (("kernels", run_kernels), ("models", run_models), ("engines", run_engines)):
        if name in args.parts:
            part(device, rates, args.short, args.only, report)
    if not report.entries:
        parser.error(f"--only {args.only!r} is in no name of {', '.join(args.parts)}")
    print(f"{len(report.entries) - len(report.failures)} of {len(report.entries)} hold", flush=True)
    for entry in report.failures:
        print(f"failed: {entry['part']}, {entry['name']}")
    return 1 if report.failures else 0


def measured_rates(device: torch.device, report: Report) -> "Rates | None":
    """None where they cannot be measured."""
    from .gpu_case import Rates

    found: list[Rates] = []

    def run() -> None:
        rates = Rates.measure(device)
        found.append(rates)
        text = f"copies {rates.bandwidth / 1e9:.0f} GB/s, bfloat16 products {rates.matrix / 1e12:.0f} T/s"
        report.add("device", "rates", text, True, bandwidth=rates.bandwidth, matrix=rates.matrix)

    report.attempt("device", "rates", run)
    return found[0] if found else None


def run_kernels(device: torch.device, rates: "Rates | None", short: bool, only: str, report: Report) -> None:
    """Every kernel: float32 in tiny sizes, bfloat16 with times in real ones, or in short in tiny ones, too."""
    from . import gpu_attention, gpu_elementwise, gpu_experts, gpu_lora, gpu_recurrent, gpu_sampling
    from .gpu_case import ops

    found = [
        case
        for is_short in ((True,) if short else (True, False))
        for dtype in ((torch.float32, torch.bfloat16) if short else (torch.float32 if is_short else torch.bfloat16,))
        for family in (gpu_elementwise, gpu_attention, gpu_recurrent, gpu_experts, gpu_lora, gpu_sampling)
        for case in family.cases(device, dtype, is_short)
        if only in case.name
    ]
    with ops("torch"):  # of references
        for case in tqdm(found, desc="kernels", unit="case", leave=False):
            report.attempt("kernels", case.name, partial(_kernel, case, rates, report))


def _kernel(case: "Case", rates: "Rates | None", report: Report) -> None:
    from .gpu_case import TOLERANCE, error, seconds

    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # of the case before; here, as it raises once a kernel has broken the device
    work = case.make()
    found = error(work)
    ok = found < TOLERANCE[case.dtype]
    text = f"{str(case.dtype).removeprefix('torch.'):<9} error {found:.1e}"
    values: Entry = {"size": case.size, "dtype": str(case.dtype), "error": found}
    if rates is not None and case.timed:
        taken, least = seconds(work.again), rates.seconds(work)
        speed = f"{work.bytes / taken / 1e9:.0f} GB/s, {work.operations / taken / 1e12:.1f} T/s"
        text += f"  {taken * 1e6:9.1f} us, {least / taken:4.0%} of the roofline, {speed}"
        values |= {"seconds": taken, "roofline_seconds": least, "bytes": work.bytes, "operations": work.operations}
    report.add("kernels", case.name, f"{text}  ({case.size})", ok, **values)


def run_engines(device: torch.device, rates: "Rates | None", short: bool, only: str, report: Report) -> None:
    """Tiny checkpoints on the device against the CPU."""
    del rates
    from . import gpu_same

    cases = [case for case in gpu_same.CASES[: gpu_same.SHORT_CASES if short else None] if only in case]
    for case in tqdm(cases, desc="engines", unit="checkpoint", leave=False):

        def run(case: str = case) -> None:
            same = gpu_same.sameness(case, device, gpu_same.SHORT_TOKENS if short else gpu_same.TOKENS)
            ours, cpu = same.errors
            text = f"float32 tokens {'equal' if same.tokens else 'DIFFER'}, bfloat16 error {ours:.1e}, CPU's {cpu:.1e}"
            ok = same.holds(device)
            report.add("engines", case, text, ok, tokens_equal=same.tokens, error=ours, cpu_error=cpu)

        report.attempt("engines", case, run)


def run_models(device: torch.device, rates: "Rates | None", short: bool, only: str, report: Report) -> None:
    """Steps of decoding and prefill; in short a tiny model, of which only is asked that its logits are finite."""
    from . import gpu_models
    from .gpu_case import ops

    names = [name for name in (("tiny hybrid",) if short else gpu_models.REAL) if only in name]
    for name in tqdm(names, desc="models", unit="model", leave=False):

        def run(name: str = name) -> None:
            gpu_models.free(device)  # what the model before had
            if short:
                found = gpu_models.steps(gpu_models.tiny_model(), device, None, (2,), 20, 24, 1, warm_ups=0)
            else:
                found = gpu_models.steps(gpu_models.real_model(name), device, rates)
            for step in found:
                text, values = f"{step.kind}, batch {step.batch}, {step.tokens} tokens", step.values()
                if not short:
                    text += f": {step.seconds * 1e3:8.2f} ms, {step.tokens / step.seconds:8.0f} tokens/s"
                    if step.least is not None:
                        text += f", {step.least / step.seconds:4.0%} of the roofline"
                report.add("models", name, text, True, **values)

        with ops("triton"):
            report.attempt("models", name, run)


if __name__ == "__main__":
    sys.exit(main())
