"""Calibrated: a file of coefficients; and the fit, which finds those that were planted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybrid.capacity.calibration import (
    OVERHEADS,
    TERMS,
    WINDOW_TERMS,
    Calibrated,
    Conditions,
    Curve,
    Residual,
    fingerprint,
)
from hybrid.capacity.fitting import Measured, fit_execution, fit_overhead, fit_slowdown, residuals
from hybrid.capacity.model_file import open_model
from hybrid.capacity.step_work import Adapted, StepWork

from .questions import BY_NAME

CONDITIONS = Conditions(machine="x86_64", device="cpu", threads=1, temperature=1.0, date="2026-11-30 10:00")
PLANTED = Calibrated(
    model="tiny",
    fingerprint="of tiny",
    dtype="float32",
    conditions=CONDITIONS,
    tokens=Curve((1, 4, 16, 64, 256), (2e-3, 2.2e-3, 4e-3, 9e-3, 3e-2)),
    logits=Curve((1, 8, 32), (1e-4, 5e-4, 1.5e-3)),
    terms=dict.fromkeys(TERMS, 0.0)
    | {
        "with_decodes": 3e-4,
        "decode": 2e-5,
        "chunk": 4e-4,
        "mixed": 2e-4,
        "new_row": 5e-5,
        "with_snapshots": 1e-4,
        "snapshot": 6e-5,
        "state_copy": 9e-5,
    },
    windows=(None, 24),
    attention=(
        {"decode_key": 3e-7, "chunk_pair": 2e-8, "chunk_key": 1e-7},
        {"decode_key": 1e-7, "chunk_pair": 4e-8, "chunk_key": 0.0},
    ),
    overhead={"step": 4e-4, "token": 3e-5, "request": 2e-4},
    slowdown=1.25,
    residuals={"decode": Residual(20, 0.01, 0.05)},
)


def step(rng: np.random.Generator) -> StepWork:
    decodes, chunks = int(rng.integers(0, 30)), int(rng.integers(0, 3))
    tokens = np.concatenate((np.ones(decodes + (decodes + chunks == 0), np.int64), rng.integers(2, 70, chunks)))
    computed = rng.integers(0, 200, len(tokens))
    return StepWork(
        tokens,
        computed,
        num_sampled=decodes + int(rng.integers(0, chunks + 1)),
        snapshots=int(rng.integers(0, 3)) if chunks else 0,
        state_copies=int(rng.integers(0, 3)) if chunks else 0,
        new_rows=chunks,
    )


def singles() -> list[StepWork]:
    """Small steps that tell a term from the next."""
    works = [StepWork(np.array([n]), np.array([at]), sampled) for n in (1, 4, 16, 64, 256) for at in (0, 50)
             for sampled in (0, 1)]  # fmt: skip
    works += [StepWork(np.ones(n, np.int64), np.full(n, at), n) for n in (1, 4, 8, 16, 32) for at in (0, 100)]
    return works


def measured(noise: float = 0.0) -> list[Measured]:
    rng = np.random.default_rng(0)
    works = singles() + [step(rng) for _ in range(300)]
    factors = 1 + noise * rng.normal(size=len(works))
    return [Measured(work, PLANTED.execution(work) * factor, "any") for work, factor in zip(works, factors)]


def fitted(noise: float = 0.0) -> Calibrated:
    found = fit_execution(measured(noise), PLANTED.windows)
    return replace(
        PLANTED, tokens=found.tokens, logits=found.logits, terms=found.terms, attention=found.attention, residuals={}
    )


def test_the_fit_finds_what_was_planted() -> None:
    """Terms may stand in for one another; what they say together of steps that were not measured may not differ."""
    made, rng = fitted(), np.random.default_rng(1)
    # Between points of the planted curve and beside those of the fitted one the two bend differently.
    for work in (step(rng) for _ in range(200)):
        assert made.execution(work) == pytest.approx(PLANTED.execution(work), rel=0.02)


def test_noise_is_averaged_out() -> None:
    made, rng = fitted(noise=0.1), np.random.default_rng(2)
    off = [made.execution(work) / PLANTED.execution(work) - 1 for work in (step(rng) for _ in range(300))]
    assert abs(np.mean(off)) < 0.03
    assert np.percentile(np.abs(off), 95) < 0.1


def test_residuals_are_told_by_kind() -> None:
    exact = [replace(entry, kind="exact") for entry in measured()[:50]]
    high = [replace(entry, seconds=entry.seconds * 2, kind="doubled") for entry in exact]
    served = [Measured(entry.work, PLANTED.seconds(entry.work), "served") for entry in exact]
    assert residuals(PLANTED, exact + high, served) == {
        "exact": Residual(50, 0.0, 0.0),
        "doubled": Residual(50, 0.5, 0.5),
        "served": Residual(50, 0.0, 0.0),
    }


def test_overhead_is_found_though_some_intervals_were_something_else() -> None:
    rng = np.random.default_rng(0)
    works = [step(rng) for _ in range(200)]
    beside = [PLANTED.seconds(work) - 1.25 * PLANTED.execution(work) for work in works]
    disturbed = [seconds + (0.05 if index % 20 == 0 else 0.0) for index, seconds in enumerate(beside)]
    assert fit_overhead(works, disturbed) == pytest.approx(dict(PLANTED.overhead), rel=1e-6)


def test_a_slowdown_is_found_though_some_executions_were_something_else() -> None:
    rng = np.random.default_rng(0)
    works = [step(rng) for _ in range(200)]
    taken = [1.25 * PLANTED.execution(work) * (9 if index % 25 == 0 else 1) for index, work in enumerate(works)]
    assert fit_slowdown(PLANTED, works, taken) == pytest.approx(1.25)


def test_nothing_measured_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="no step with sampled rows was measured"):
        fit_execution([Measured(StepWork(np.array([3]), np.array([0]), 0), 1.0, "prefill")], ())


def test_a_step_is_the_sum_of_its_parts() -> None:
    work = StepWork(np.array([1, 1, 10]), np.array([9, 49, 0]), 2, snapshots=2, new_rows=1)
    execution = PLANTED.tokens(12) + PLANTED.logits(2)
    execution += 3e-4 + 2 * 2e-5 + 4e-4 + 2e-4 + 5e-5 + 1e-4 + 2 * 6e-5
    execution += 3e-7 * (10 + 50) + 2e-8 * 55 + 1e-7 * 10 + 1e-7 * (10 + 24) + 4e-8 * 55
    assert PLANTED.execution(work) == pytest.approx(execution)
    assert PLANTED.seconds(work) == pytest.approx(1.25 * execution + 4e-4 + 2 * 3e-5 + 2e-4)


def test_adapters_and_images() -> None:
    made = replace(
        PLANTED,
        terms=dict(PLANTED.terms)
        | {"with_images": 0.5, "image_token": 0.25, "adapter": 0.125, "adapted_unit": 1.0, "loaded_unit": 8.0},
    )
    plain = StepWork(np.array([4]), np.array([0]), 0)
    work = replace(plain, image_tokens=(16, 16), adapted=(Adapted(3, 2), Adapted(1, 1)), loaded_units=2)
    assert made.execution(work) - made.execution(plain) == pytest.approx(0.5 + 32 * 0.25 + 2 * 0.125 + 7 + 16)


def test_curves_go_through_their_points_and_on() -> None:
    curve = Curve((2, 4, 8), (1.0, 2.0, 6.0))
    assert [curve(n) for n in (1, 2, 3, 4, 6, 8, 16)] == pytest.approx([0.5, 1, 1.5, 2, 4, 6, 12])
    assert Curve((4,), (1.0,))(8) == 2


def test_json_and_back(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(PLANTED.to_json(), encoding="utf-8")
    assert Calibrated.load(path) == PLANTED
    told = json.loads(path.read_text())
    assert (told["model"], told["dtype"], told["conditions"]["threads"]) == ("tiny", "float32", 1)
    assert told["residuals"]["decode"] == {"count": 20, "p50": 0.01, "p95": 0.05}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version must be 1, got 2"),
        ({"terms": {"decode": 1.0}}, "terms must have exactly .*, got decode"),
        ({"overhead": dict.fromkeys(OVERHEADS, -1.0)}, r"overhead.step must be .* at least 0, got -1.0"),
        ({"attention": [dict.fromkeys(WINDOW_TERMS, "much")] * 2}, "got 'much'"),
        ({"windows": [None]}, "1 windows need as many entries of attention, got 2"),
        ({"tokens": {"sizes": [4, 2], "seconds": [1, 2]}}, "must grow from 1 on"),
        ({"tokens": {"sizes": [4], "seconds": [float("nan")]}}, "got nan"),
        ({"tokens": 3}, "not what hybrid plan calibrate writes"),
        ({"surprise": 3}, "not what hybrid plan calibrate writes"),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(json.loads(PLANTED.to_json()) | change))
    with pytest.raises(ValueError, match=f"^calibration {path} cannot be read: .*{message}"):
        Calibrated.load(path)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", '{"version": 1}', "[" * 100_000])
def test_what_is_no_file_of_ours_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="cannot be read"):
        Calibrated.load(path)
    with pytest.raises(ValueError, match="cannot be read"):
        Calibrated.load(tmp_path)


def test_another_model_or_dtype_is_refused() -> None:
    tiny, other = open_model("tiny"), open_model(BY_NAME["Llama-3.1-8B"])
    made = replace(PLANTED, fingerprint=fingerprint(tiny))
    made.check_model("tiny", tiny, "float32")
    with pytest.raises(ValueError, match="is of tiny, not of llama; run hybrid plan calibrate llama"):
        made.check_model("llama", other, "float32")
    with pytest.raises(ValueError, match="is of tiny in float32, not in bfloat16: give --weights-dtype float32, or"):
        made.check_model("tiny", tiny, "bfloat16")
    prints = {name: fingerprint(open_model(path)) for name, path in BY_NAME.items()}
    assert prints.pop("LFM2-VL-450M") == prints["LFM2-350M"]  # the same decoder beside a vision tower
    assert len(set(prints.values())) == len(prints)
