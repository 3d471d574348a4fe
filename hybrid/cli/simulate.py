"""`hybrid plan --simulate`: how a planned engine would serve a workload. Reads the options, simulates, prints."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

from .options import complain

if TYPE_CHECKING:
    from hybrid.capacity.question import Question
    from hybrid.capacity.step_time import StepTime
    from hybrid.capacity.workload.workload import Workload

PANEL = "Simulation"
DEFAULT_DURATION = 120.0
MOST_REQUESTS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """As the user wrote them."""

    rate: str | None = None
    slo: str | None = None
    workload: str = "poisson"
    duration: str | None = None
    requests: int | None = None
    warmup: str | None = None
    seed: int = 0
    vary: tuple[str, ...] = ()
    calibration: Path | None = None


def simulate(
    question: "Question",
    context: str,
    output: str,
    max_tokens: str | None,
    options: SimulateOptions,
    plot: Path | None,
    as_json: bool,
) -> None:
    """question: whose context and output do not matter; those of the workload do. context, output: of what is drawn, as
    the user wrote them. Raises ValueError."""
    from hybrid.capacity.simulation.document import document
    from hybrid.capacity.simulation.goodput import parse_rates
    from hybrid.capacity.simulation.plot import draw
    from hybrid.capacity.simulation.settings import parse_settings
    from hybrid.capacity.simulation.simulation import Conditions
    from hybrid.capacity.simulation.study import Study, best
    from hybrid.capacity.simulation.targets import Targets, parse_seconds, parse_targets
    from hybrid.capacity.tokens import parse_tokens

    from .simulate_tables import show

    rates = parse_rates(options.rate) if options.rate is not None else None
    settings = parse_settings(options.vary)
    given = parse_seconds("duration", options.duration) if options.duration is not None else None
    permitted = parse_tokens("max_tokens", max_tokens) if max_tokens is not None else None
    if permitted == 0:
        raise ValueError("max_tokens must be at least 1, got 0")
    conditions = Conditions(
        targets=parse_targets(options.slo) if options.slo is not None else Targets(),
        duration=given if given is not None else DEFAULT_DURATION if options.requests is None else math.inf,
        warmup=parse_seconds("warmup", options.warmup) if options.warmup is not None else 0.0,
        max_tokens=permitted,
    )
    study = Study(
        question=question,
        workload=_workload(question, context, output, options, rates, conditions.duration),
        step_time=_step_time(options.calibration),
        conditions=conditions,
        rates=rates,
    )
    with _Bar() as bar:
        cases = [study.case(setting, bar.simulation) for setting in settings]
    chosen = best(cases)
    if chosen is None:
        raise ValueError(cases[0].why_not)
    if plot is not None:
        draw(plot, cases[chosen], question.name)
    if as_json:
        print(json.dumps(document(study, cases), indent=2))
    else:
        show(study, cases)
    for case in cases:
        if case.why_not:
            complain(case.why_not)


class _Bar:
    """A progress bar on standard error for one simulation after the other; none where that is no terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def simulation(self, what: str, seconds: float) -> Callable[[float], None]:
        """Mutates: another simulation begins, of so many seconds and what then is left. What to tell its time."""
        self.__exit__()
        told, total = 0, round(seconds)
        bar = self._bar = tqdm(total=total, desc=what, unit="s", disable=None, leave=False)

        def tell(now: float) -> None:
            nonlocal told
            if told + 1 <= now and told < total:
                bar.update(min(int(now), total) - told)
                told = min(int(now), total)

        return tell


def _workload(
    question: "Question",
    context: str,
    output: str,
    options: SimulateOptions,
    rates: tuple[float, float] | None,
    duration: float,
) -> "Workload":
    """As many requests as can come at the highest rate. Raises ValueError."""
    from hybrid.capacity.workload.parse import KEYS, Surroundings, parse_workload

    if rates is None and options.workload.partition(":")[0] in KEYS:
        raise ValueError(f"workload {options.workload!r} has no rate of its own: give --rate, such as 8 or 1..50")
    num_requests = options.requests
    if num_requests is None and rates is not None:
        num_requests = math.ceil(rates[1] * duration)
        if num_requests > MOST_REQUESTS:
            raise ValueError(
                f"{num_requests:,} requests would come in {duration:g} s at {rates[1]:g} a second; at most "
                f"{MOST_REQUESTS:,} are simulated: choose a shorter --duration"
            )
    given = Surroundings(
        context=context,
        output=output,
        shared_prefix=question.shared_prefix,
        images=question.images,
        image_tokens=question.image_tokens,
        adapters=question.adapters,
        ranks=(question.rank,),
        num_requests=num_requests,
        seed=options.seed,
    )
    workload = parse_workload(options.workload, given)
    if workload.adapters and not question.adapters:
        raise ValueError(f"{workload.name} names adapters: give --adapters, how many are on the device at once")
    if (highest := max(workload.ranks, default=0)) > question.rank:
        raise ValueError(f"{workload.name} has adapters of rank {highest}: --rank {question.rank} is too low")
    return workload


def _step_time(calibration: Path | None) -> Callable[["Question"], "StepTime"]:
    """From a file of measurements, else from the device's rates. Raises ValueError."""
    from hybrid.capacity.calibration import Calibrated
    from hybrid.capacity.roofline import Roofline

    if calibration is None:
        return Roofline.of
    measured = Calibrated.load(calibration)

    def step_time(question: "Question") -> "StepTime":
        measured.check_model(question.name, question.model, question.computed_dtype)
        return measured

    return step_time
