"""`hybrid plan --simulate`: how a planned engine would serve a workload. Reads the options, simulates, prints."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from .options import complain

if TYPE_CHECKING:
    from hybrid.capacity.question import Question
    from hybrid.capacity.step_time import StepTime
    from hybrid.capacity.workload.workload import Workload

PANEL = "Simulation"
DEFAULT_DURATION = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """As the user wrote them."""

    workload: str
    rate: str | None
    slo: str | None
    duration: str | None
    requests: int | None
    warmup: str | None
    max_tokens: int | None
    seed: int
    vary: list[str] | None
    calibration: Path | None
    plot: Path | None
    as_json: bool


def simulate(ask: Callable[[int, int], "Question"], context: str, output: str, options: SimulateOptions) -> None:
    """ask: the question about prompts and answers of so many tokens. Raises ValueError."""
    from hybrid.capacity.simulation.document import document
    from hybrid.capacity.simulation.goodput import parse_rates
    from hybrid.capacity.simulation.plot import draw
    from hybrid.capacity.simulation.settings import parse_settings, planned_for
    from hybrid.capacity.simulation.simulation import Conditions
    from hybrid.capacity.simulation.study import Case, Study, best
    from hybrid.capacity.simulation.targets import Targets, parse_seconds, parse_targets

    from .simulate_tables import show

    rates = parse_rates(options.rate) if options.rate is not None else None
    settings = parse_settings(options.vary or [])
    targets = parse_targets(options.slo) if options.slo is not None else Targets()
    given = parse_seconds("duration", options.duration) if options.duration is not None else None
    conditions = Conditions(
        targets=targets,
        duration=given if given is not None else DEFAULT_DURATION if options.requests is None else math.inf,
        warmup=parse_seconds("warmup", options.warmup) if options.warmup is not None else 0.0,
        max_tokens=options.max_tokens,
    )
    if options.max_tokens is not None and options.max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {options.max_tokens}")
    question = ask(1, 1)
    workload = _workload(question, context, output, options, rates, conditions.duration)
    study = Study(
        question=planned_for(question, workload),
        workload=workload,
        step_time=_step_time(options.calibration),
        conditions=conditions,
        rates=rates,
    )
    cases: list[Case] = []
    for setting in settings:
        with tqdm(total=1.0, desc=setting.text, bar_format=BAR, disable=None, leave=False) as bar:
            cases.append(study.case(setting, _progress(bar, setting.text, study)))
    chosen = best(cases)
    if chosen is None:
        raise ValueError(cases[0].why_not)
    if options.plot is not None:
        draw(options.plot, cases[chosen], f"{question.name} {cases[chosen].setting.text}")
    if options.as_json:
        print(json.dumps(document(study, cases), indent=2))
    else:
        show(study, cases)
    for case in cases:
        if case.why_not:
            complain(case.why_not)
