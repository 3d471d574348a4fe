"""A study as a JSON document: seconds, tokens and shares as numbers."""

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from .study import Case, Study, best
from .summary import Summary
from .timeline import Timeline

MOMENTS = 200  # of a timeline, at most


def document(study: Study, cases: Sequence[Case]) -> dict[str, Any]:
    """What `hybrid plan --simulate --json` prints."""
    conditions, workload = study.conditions, study.workload
    chosen = best(cases)
    return {
        "model": study.question.name,
        "hardware": study.question.hardware.name if study.question.hardware is not None else None,
        "workload": {"name": workload.name, "requests": len(workload), "mean_rate": _finite(workload.mean_rate)},
        "targets": asdict(conditions.targets),
        "duration": _finite(conditions.duration),
        "warmup": conditions.warmup,
        "settings": [_case(case, index == chosen) for index, case in enumerate(cases)],
    }


def _case(case: Case, is_best: bool) -> dict[str, Any]:
    if case.engine is None or case.goodput is None:
        return {"setting": dict(case.setting.values), "best": False, "why_not": case.why_not}
    goodput, shown = case.goodput, case.shown
    assert shown is not None
    return {
        "setting": dict(case.setting.values),
        "best": is_best,
        "sizes": asdict(case.engine.sizes),
        "goodput": _finite(goodput.best.rate) if goodput.best is not None else None,
        "at_least": goodput.at_least,
        "curve": [summary_document(summary) for summary in goodput.curve],
        "shown_rate": _finite(shown.rate),
        "timeline": _timeline(shown.timeline),
    }


def summary_document(summary: Summary) -> dict[str, Any]:
    """One simulation, without its timeline."""
    entries = {entry.name: getattr(summary, entry.name) for entry in fields(summary) if entry.name != "timeline"}
    for name in ("ttft", "itl", "tpot", "e2e", "queue"):
        entries[name] = asdict(entries[name])
    entries["occupancy"] = {pool: asdict(occupancy) for pool, occupancy in summary.occupancy.items()}
    return entries | {"rate": _finite(summary.rate), "waiting_for": dict(summary.waiting_for)}


def _timeline(timeline: Timeline) -> dict[str, Any]:
    every = slice(None, None, -(-len(timeline.times) // MOMENTS) or 1)
    return {
        "seconds": timeline.times[every].tolist(),
        "running": timeline.running[every].tolist(),
        "waiting": timeline.waiting[every].tolist(),
        "in_use": dict(zip(timeline.pools, timeline.in_use[every].T.round(4).tolist())),
        "cached": dict(zip(timeline.pools, timeline.cached[every].T.round(4).tolist())),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
