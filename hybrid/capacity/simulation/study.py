"""Study: settings of an engine compared under one workload, each at one rate or at the highest that it can bear.

Knows how to simulate; shows nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..question import Question
from ..step_time import StepTime
from ..workload.workload import Workload
from .engine_model import EngineModel
from .goodput import Goodput, search
from .settings import Setting, engine_model, planned_for
from .simulation import Conditions, simulate
from .summary import Summary, summarise

Progress = Callable[[str, float], Callable[[float], None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One setting: what came of it, or why there is no such engine."""

    setting: Setting
    engine: EngineModel | None
    goodput: Goodput | None
    why_not: str = ""

    @property
    def shown(self) -> Summary | None:
        """The simulation that stands for the setting: at the goodput; where there is none, at the lowest rate."""
        if self.goodput is None:
            return None
        return self.goodput.best or self.goodput.curve[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """rates: lowest and highest, requests per second; None: the workload as it is."""

    question: Question
    workload: Workload
    step_time: Callable[[Question], StepTime]
    conditions: Conditions
    rates: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.conditions.warmup >= self.conditions.duration:
            raise ValueError(
                f"a warm-up of {self.conditions.warmup:g} s leaves nothing of a duration of "
                f"{self.conditions.duration:g} s"
            )
        if self.rates is not None and self.rates[0] < self.rates[1] and not self.conditions.targets:
            raise ValueError("a range of rates is searched for what meets targets: give --slo, such as ttft=2s")

    def case(self, setting: Setting, progress: Progress = lambda what, seconds: lambda now: None) -> Case:
        """Simulates. progress: given what begins and the seconds in which requests will arrive, what to tell the time
        of the simulation."""
        try:
            question = planned_for(self.question, self.workload, self.conditions.max_tokens)
            engine = engine_model(question, setting, self.step_time)
        except ValueError as error:
            return Case(setting, None, None, str(error))

        def run(rate: float) -> Summary:
            traffic = self.workload if self.rates is None else self.workload.scaled(rate)
            seconds = min(self.conditions.duration, float(traffic.times[traffic.after < 0][-1]))
            told = progress(f"{setting}, {rate:.3g} requests/s", seconds)
            summary = summarise(simulate(engine, traffic, self.conditions, told), rate, self.conditions.targets)
            if not summary.requests:
                raise ValueError(
                    f"no request arrives after a warm-up of {self.conditions.warmup:g} s at {rate:g} a second"
                )
            return summary

        low, high = self.rates or (self.workload.mean_rate,) * 2
        try:
            return Case(setting, engine, search(run, low, high))
        except ValueError as error:  # of a setting that no scheduler takes; others may do
            return Case(setting, None, None, f"{setting}: {error}" if setting.values else str(error))


def best(cases: Sequence[Case]) -> int | None:
    """Index of the case with the highest goodput; of several, of the one that meets its targets most often, then of the
    fastest; None: there is none."""

    def merit(index: int) -> tuple[float, ...]:
        shown, goodput = cases[index].shown, cases[index].goodput
        if shown is None or goodput is None:
            return (-math.inf,)
        rate = goodput.best.rate if goodput.best is not None else 0.0
        return rate, shown.attainment or 0.0, shown.output_tokens_per_second, -(shown.e2e.mean or math.inf)

    chosen = max(range(len(cases)), key=merit, default=None)
    return chosen if chosen is not None and cases[chosen].shown is not None else None
