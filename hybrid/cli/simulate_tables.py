"""What `hybrid plan --simulate` shows: the goodput, one simulation in figures, settings side by side."""

import math
from collections.abc import Sequence

from rich.table import Table

from hybrid.capacity.simulation.simulation import ATTAINMENT
from hybrid.capacity.simulation.study import Case, Study, best
from hybrid.capacity.simulation.summary import PERCENTILES, Spread, Summary

from .plan_tables import plain_console

WIDTH = 160  # of the table of settings, so that a row is a line
PERCENT = f"{ATTAINMENT:.0%}"


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _say(line: str) -> None:
    plain_console().print(line, soft_wrap=True)


def _time(seconds: float | None) -> str:
    """ "12.3 ms" or "4.56 s"."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def show(study: Study, cases: Sequence[Case]) -> None:
    """Prints one case in full, or several in a table and the best in full."""
    chosen = best(cases)
    assert chosen is not None
    case = cases[chosen]
    _say(_about(study))
    if len(cases) > 1:
        _compare(cases, chosen)
        _say(f"best: {case.setting}")
    _goodput(study, case)
    shown = case.shown
    assert shown is not None
    _figures(shown)


def _about(study: Study) -> str:
    workload, conditions = study.workload, study.conditions
    prompts, outputs = workload.prompt_lengths.mean(), workload.output_lengths.mean()
    lasting = f" for {conditions.duration:g} s" if math.isfinite(conditions.duration) else ""
    return (
        f"{study.question.name}, workload {workload.name}{lasting}: "
        f"{prompts:,.0f} tokens in, {outputs:,.0f} out on average"
    )


def _goodput(study: Study, case: Case) -> None:
    goodput, targets = case.goodput, study.conditions.targets
    assert goodput is not None
    if len(goodput.curve) > 1:
        table = _table("requests/s", "met", "TTFT p95", "ITL p95", "e2e p95", "tokens/s out", "")
        for summary in goodput.curve:
            mark = "goodput" if summary is goodput.best else "gave up" if summary.stopped else ""
            table.add_row(
                f"{summary.rate:.3g}",
                _share(summary.attainment),
                _time(summary.ttft.p95),
                _time(summary.itl.p95),
                _time(summary.e2e.p95),
                f"{summary.output_tokens_per_second:,.0f}",
                mark,
            )
        plain_console().print(table)
    if study.rates is None or study.rates[0] == study.rates[1]:
        return
    if goodput.best is None:
        _say(f"goodput: less than {study.rates[0]:g} requests/s: fewer than {PERCENT} of the requests meet {targets}")
    else:
        least = "at least " if goodput.at_least else ""
        _say(f"goodput: {least}{goodput.best.rate:.3g} requests/s, of which {PERCENT} meet {targets}")


def _figures(summary: Summary) -> None:
    lost = {"failed": summary.failed, "refused": summary.refused, "not finished": summary.unfinished}
    said = [f"{summary.requests:,} requests at {summary.rate:.3g}/s in {summary.seconds:,.1f} s"]
    said += [f"{count:,} {what}" for what, count in lost.items() if count]
    if summary.attainment is not None:
        said.append(f"{summary.attainment:.1%} met the targets")
    _say(", ".join(said))
    if summary.stopped:
        _say(f"ended early: {summary.stopped}")
    if summary.error:
        _say(f"the first that got no answer: {summary.error}")
    if summary.cut:
        _say(f"{summary.cut:,} answers were cut at max_model_len")
    table = _table("", "mean", *(f"p{percent}" for percent in PERCENTILES), "max")
    rows: tuple[tuple[str, Spread], ...] = (
        ("queue", summary.queue),
        ("TTFT", summary.ttft),
        ("ITL", summary.itl),
        ("e2e", summary.e2e),
    )
    for name, spread in rows:
        values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
        table.add_row(name, *map(_time, values))
    plain_console().print(table)
    _say(
        f"{summary.requests_per_second:.3g} requests/s, {summary.output_tokens_per_second:,.0f} tokens/s out, "
        f"{summary.total_tokens_per_second:,.0f} in all; {summary.batch:,.1f} requests and "
        f"{summary.step_tokens:,.1f} tokens in a step of {_time(summary.step_seconds)}; {_share(summary.busy)} busy"
    )
    _say(
        f"{_share(summary.hit_rate)} of prompt tokens from the cache; {summary.retractions:,} retractions, "
        f"{summary.recomputed_tokens:,} tokens computed again"
    )
    waited = ", ".join(f"{cause} {share:.0%}" for cause, share in summary.waiting_for.items() if share >= 0.005)
    if waited:
        _say(f"waited for: {waited}")
    table = _table("pool", "in use", "at most", "cached")
    for pool, occupancy in summary.occupancy.items():
        table.add_row(pool, _share(occupancy.mean), _share(occupancy.max), _share(occupancy.cached))
    plain_console().print(table)


def _compare(cases: Sequence[Case], chosen: int) -> None:
    searched = any(case.goodput is not None and len(case.goodput.curve) > 1 for case in cases)
    figures = ("met", "TTFT p95", "ITL p95", "e2e p95", "tokens/s out", "hits", "retracted")
    table = _table("", *cases[0].setting.words, *(("goodput",) if searched else ()), *figures)
    for index, case in enumerate(cases):
        shown, goodput = case.shown, case.goodput
        row = ["best" if index == chosen else "", *case.setting.words.values()]
        if shown is None or goodput is None:
            table.add_row(*row, "none")
            continue
        if searched:
            sign = "< " if goodput.best is None else ">= " if goodput.at_least else ""
            row.append(f"{sign}{shown.rate:.3g}")
        table.add_row(
            *row,
            _share(shown.attainment),
            _time(shown.ttft.p95),
            _time(shown.itl.p95),
            _time(shown.e2e.p95),
            f"{shown.output_tokens_per_second:,.0f}",
            _share(shown.hit_rate),
            f"{shown.retractions:,}",
        )
    console = plain_console()
    console.width = max(console.width, WIDTH)
    console.print(table)
