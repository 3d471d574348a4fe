"""Prints what the family tests found as a table, one row per family; MODELS_MD=1 writes it into docs/models.md."""

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"
BEGIN, END = "<!-- begin: written by tests/models/families -->\n", "<!-- end -->\n"
COLUMNS = {  # test -> heading
    "test_logits_of_every_position": "logits",
    "test_greedy_tokens_are_those_of_the_oracle": "greedy",
    "test_chunks_in_mixed_batches": "chunks, mixed",
    "test_resume_points": "resume points",
    "test_forced_retraction": "retraction",
    "test_short_dtypes_stay_close": "bf16, fp16",
}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table, if family tests ran."""
    results: dict[tuple[str, str], list[bool]] = defaultdict(list)  # (family, test) -> passed
    cases: dict[str, set[str]] = defaultdict(set)
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            name = report.nodeid.partition("]@")[0].removesuffix("]")  # xdist adds the group
            test, _, parameters = name.rpartition("::")[2].partition("[")
            if "families/test_families" in report.nodeid and test in COLUMNS:
                family, _, case = parameters.partition(": ")
                results[family, test].append(outcome == "passed")
                cases[family].add(case.rpartition("-")[0] if test in _PARAMETRISED else case.removesuffix("]"))
    if not cases:
        return
    lines = [f"| model_type | {' | '.join(COLUMNS.values())} | cases |", "|---" * (len(COLUMNS) + 2) + "|"]
    for family in sorted(cases):
        marks = (_mark(results[family, test]) for test in COLUMNS)
        lines.append(f"| `{family}` | {' | '.join(marks)} | {'; '.join(sorted(cases[family]))} |")
    terminalreporter.section("model families against transformers")
    terminalreporter.write_line("\n".join(lines))
    if os.environ.get("MODELS_MD"):
        before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        DOCUMENT.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


_PARAMETRISED = ("test_logits_of_every_position", "test_chunks_in_mixed_batches", "test_short_dtypes_stay_close")


def _mark(passed: list[bool]) -> str:
    """How many of a test's runs passed, as short as can be."""
    if passed and all(passed):
        return f"{len(passed)} pass"
    return f"{sum(passed)} of {len(passed)} pass" if passed else "not run"
