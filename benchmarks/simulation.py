"""The simulation against the engine, on the same arrivals: `python -m benchmarks.simulation [--models tiny ...]`.

Each model is calibrated here first, as `hybrid plan calibrate` does. Then three workloads, steady, bursty and
multi-turn chats, are simulated with these step times and served for real, by the clock, at `--load` of what the
simulation says the engine can do. All this `--rounds` times, as machines are faster at one time than at another.
Throughput and the median and 95th percentile of TTFT and ITL should agree within 15%, in the median of the rounds; the
exit code is 1 where they do not. Nothing else should run meanwhile. Models but `tiny` have random weights.

"at its speed": simulated with steps that take as much longer or shorter, all by one factor, as those that were served.
What it is off by is the simulation's own fault, and the rest is the machine's, which had another speed than before.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from hybrid.calibration.measure import calibrate
from hybrid.capacity.simulation.engine_model import EngineModel
from hybrid.capacity.simulation.outcome import Outcome
from hybrid.capacity.simulation.simulation import simulate
from hybrid.capacity.step_time.calibrated import Calibrated
from hybrid.capacity.workload.generate import Pattern, Shape, generate
from hybrid.capacity.workload.lengths import parse_distribution
from hybrid.capacity.workload.workload import Workload
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import set_up
from hybrid.sampling_params import SamplingParams

from .served import Served, percentiles, serve
from .throughput import MODELS

Figures = dict[str, list[float]]  # by name: served, simulated, simulated at the speed of then

TINY = "tiny"
TOLERANCE = 0.15
MAX_NUM_SEQS = 32
MAX_MODEL_LEN = 1024
MAX_NUM_BATCHED_TOKENS = 256
TRIAL_REQUESTS = 200  # from which the load is found

MESSAGE, ANSWER = "lognormal:mean=64,p95=160", "lognormal:mean=32,p95=80"
WORKLOADS: dict[str, tuple[dict[str, Any], float]] = {  # shape, coefficient of variation of the gaps
    "steady": ({"message": MESSAGE, "answer": ANSWER, "turns": "1"}, 0.0),
    "bursty": ({"message": MESSAGE, "answer": ANSWER, "turns": "1"}, 3.0),
    "multi-turn": (
        {"message": "uniform:8-48", "answer": ANSWER, "turns": "uniform:2-5", "system": 96, "think": 2.0},
        1.0,
    ),
}


def main() -> None:
    """Parse the command line, measure, print a table per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = (TINY, *MODELS)
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    parser.add_argument("--workloads", nargs="+", choices=tuple(WORKLOADS), default=tuple(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals, per workload")
    parser.add_argument("--calibrate-seconds", type=float, default=90.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    agree = [measure(name, args) for name in args.models]
    sys.exit(0 if all(agree) else 1)


def measure(name: str, args: argparse.Namespace) -> bool:
    """Prints one model's table. Whether everything agrees."""
    with TemporaryDirectory() as folder:
        if name != TINY:
            save(name, Path(folder))
        engine_args = EngineArgs(
            model=TINY if name == TINY else folder,
            skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            memory="1GiB",
            num_threads=args.threads,
        )
        rounds = [one_round(name, engine_args, args) for _ in range(args.rounds)]
    table = Table("workload", "figure", "served", "least to most", "simulated", "off by", "at its speed", "off by")
    table.title = f"{name}, load {args.load:g}, medians of {args.rounds} rounds"
    for column in table.columns[2:]:
        column.justify = "right"
    agrees = True
    for workload in args.workloads:
        for number, figure in enumerate(rounds[0][workload]):
            of_rounds = np.array([found[workload][figure] for found in rounds])
            served, simulated, at_speed = np.median(of_rounds, axis=0).tolist()
            agrees &= abs(simulated / served - 1) <= TOLERANCE
            table.add_row(
                "" if number else workload,
                figure,
                f"{served:.4g}",
                f"{of_rounds[:, 0].min():.4g} to {of_rounds[:, 0].max():.4g}",
                f"{simulated:.4g}",
                off_by(simulated, served),
                f"{at_speed:.4g}",
                off_by(at_speed, served),
            )
        table.add_section()
    Console().print(table)
    return agrees


def one_round(name: str, engine_args: EngineArgs, args: argparse.Namespace) -> dict[str, Figures]:
    """By workload, with step times that were measured just before. Arrivals are the same in every round but for their
    rate, which follows the step times."""
    params = SamplingParams(temperature=args.temperature)
    calibrated = calibrate(engine_args, args.calibrate_seconds, args.temperature)
    for kind, residual in calibrated.residuals.items():
        print(f"{name}: {residual.count} {kind} steps, off by {residual.p50:.1%}, 95% within {residual.p95:.1%}")
    engine = engine_model(engine_args, calibrated)
    found = {}
    for workload in args.workloads:
        drawn = workload_for(workload, engine, args)
        served = serve(engine_args, drawn, workload_for(workload, engine, args, seed=args.seed + 1), params)
        steps = served.executed
        factor = sum(step.end - step.begin for step in steps)
        factor /= sum(calibrated.execution.seconds(step.work) for step in steps)
        at_speed = replace(engine, step_time=replace(calibrated, execution=calibrated.execution.scaled(factor)))
        print(f"{name}, {workload}: steps took {factor:.3f} times as long as fitted")
        found[workload] = figures(served, simulate(engine, drawn), simulate(at_speed, drawn))
    return found


def save(name: str, folder: Path) -> None:
    """A model with random weights."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(MODELS[name], dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)


def engine_model(args: EngineArgs, calibrated: Calibrated) -> EngineModel:
    """What the simulation needs to know of the engine that these arguments give."""
    setup = set_up(args)
    scheduler = setup.engine.scheduler
    return EngineModel(
        config=scheduler.config,
        sizes=setup.sizes,
        kinds=scheduler.memory.kinds,
        step_time=calibrated,
        vocab_size=setup.processor.vocab_size,
    )


def workload_for(name: str, engine: EngineModel, args: argparse.Namespace, seed: int | None = None) -> Workload:
    """At the load that was asked for, for about as many seconds."""
    given, cv = WORKLOADS[name]
    lengths = {key: parse_distribution(key, given[key]) for key in ("message", "answer", "turns")}
    shape = Shape(**{**given, **lengths})
    seed = args.seed if seed is None else seed

    def drawn(rate: float, count: int) -> Workload:
        return generate(name, shape, Pattern(cv=cv), rate=rate, num_requests=count, seed=seed)

    trial = drawn(1.0, TRIAL_REQUESTS)
    trial = replace(trial, times=np.zeros(len(trial)))  # all that may come at once does
    rate = args.load * TRIAL_REQUESTS / simulate(engine, trial).totals.busy
    return drawn(rate, max(20, round(rate * args.seconds)))


def figures(served: Served, *simulated: Outcome) -> Figures:
    found = {"tokens/s": [served.num_tokens / served.seconds]}
    found["tokens/s"] += [outcome.totals.new_tokens / outcome.totals.time for outcome in simulated]
    for name, field in (("TTFT", "ttft"), ("ITL", "gaps")):
        of_all = [percentiles(getattr(one, field)) for one in (served, *(outcome.records for outcome in simulated))]
        for p, values in zip(("median", "p95"), zip(*of_all)):
            found[f"{name} {p}, ms"] = [1e3 * value for value in values]
    return found


def off_by(simulated: float, served: float) -> str:
    off = simulated / served - 1
    return f"{off:+.1%}" + ("" if abs(off) <= TOLERANCE else " !")


if __name__ == "__main__":
    main()
