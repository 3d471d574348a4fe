"""Calibrated: a file of coefficients; and the fit, which finds those that were planted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybrid.capacity.model_file import open_model
from hybrid.capacity.step_time.calibrated import OVERHEADS, Calibrated, Conditions, Residual, fingerprint
from hybrid.capacity.step_time.execution_time import TERMS, WINDOW_TERMS, Curve, ExecutionTime
from hybrid.capacity.step_time.fitting import Measured, fit_execution, fit_overhead, residuals, variation
from hybrid.capacity.step_time.step_work import Adapted, StepWork
from tests.capacity.questions import BY_NAME

EXECUTION = ExecutionTime(
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
)
CALIBRATED = Calibrated(
    model="tiny",
    fingerprint="of tiny",
    dtype="float32",
    conditions=Conditions(machine="x86_64", device="cpu", threads=1, temperature=1.0, date="2026-11-30 10:00"),
    execution=EXECUTION,
    overhead={"step": 4e-4, "token": 3e-5, "request": 2e-4},
    variation=(0.75, 1.0, 1.25),
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
    return [Measured(work, EXECUTION.seconds(work) * factor, "any") for work, factor in zip(works, factors)]


def off(fitted: ExecutionTime, factor: float = 1.0) -> NDArray[np.float64]:
    """How far it is off for steps that were not measured: terms may stand in for one another."""
    rng = np.random.default_rng(1)
    works = [step(rng) for _ in range(200)]
    return np.array([fitted.seconds(work) / EXECUTION.seconds(work) / factor - 1 for work in works])


def test_the_fit_finds_what_was_planted() -> None:
    # The two curves have other points, and bend between them.
    assert np.abs(off(fit_execution(measured(), EXECUTION.windows))).max() < 0.02


def test_noise_is_averaged_out() -> None:
    found = off(fit_execution(measured(noise=0.1), EXECUTION.windows))
    assert abs(found.mean()) < 0.03
    assert np.percentile(np.abs(found), 95) < 0.1


def test_served_steps_say_how_long_all_take_but_for_the_strangest() -> None:
    rng = np.random.default_rng(3)
    works = [step(rng) for _ in range(400)]
    served = [Measured(work, 1.2 * EXECUTION.seconds(work), "served") for work in works]
    disturbed = [replace(entry, seconds=30 * entry.seconds) for entry in served[:4]] + served[4:]
    for entries in (served, disturbed):
        found = off(fit_execution(measured(), EXECUTION.windows, entries), factor=1.2)
        assert abs(found.mean()) < 0.03
        assert np.percentile(np.abs(found), 90) < 0.08


def test_what_disturbs_some_served_steps_is_in_the_mean() -> None:
    rng = np.random.default_rng(4)
    works = [step(rng) for _ in range(400)]
    factors = np.where(rng.random(400) < 0.2, 2.0, 1.0)
    served = [Measured(work, EXECUTION.seconds(work) * f, "served") for work, f in zip(works, factors)]
    fitted = fit_execution(measured(), EXECUTION.windows, served)
    total = sum(fitted.seconds(work) for work in works)
    assert total == pytest.approx(sum(entry.seconds for entry in served), rel=0.02)


def test_variation_is_that_of_served_steps() -> None:
    works = [step(np.random.default_rng(6)) for _ in range(100)]
    served = [Measured(work, EXECUTION.seconds(work) * (3 if n % 4 else 1), "served") for n, work in enumerate(works)]
    found = np.array(variation(EXECUTION, served))
    assert found.mean() == pytest.approx(1, abs=1e-3)
    assert found.max() / found.min() == pytest.approx(3, rel=1e-3)
    assert 0.2 < (found < 1).mean() < 0.3
    assert variation(EXECUTION, []) == (1.0,)


def test_a_whole_execution_is_scaled() -> None:
    work = replace(step(np.random.default_rng(5)), new_num_tokens=True, image_tokens=(3,))
    made = replace(EXECUTION, terms=dict(EXECUTION.terms) | {"new_num_tokens": 2e-3, "with_images": 1e-3})
    assert made.scaled(1.5).seconds(work) == pytest.approx(1.5 * made.seconds(work))


def test_new_sizes() -> None:
    made = replace(EXECUTION, terms=dict(EXECUTION.terms) | {"new_num_tokens": 2.0, "new_num_sampled": 0.5})
    plain = StepWork(np.array([4]), np.array([0]), 1)
    assert made.seconds(replace(plain, new_num_tokens=True)) - made.seconds(plain) == pytest.approx(2.0)
    assert made.seconds(replace(plain, new_num_sampled=True)) - made.seconds(plain) == pytest.approx(0.5)


def test_residuals_are_told_by_kind() -> None:
    exact = [replace(entry, kind="exact") for entry in measured()[:50]]
    high = [replace(entry, seconds=entry.seconds * 2, kind="doubled") for entry in exact]
    assert residuals(EXECUTION, exact + high) == {
        "exact": Residual(50, 0.0, 0.0),
        "doubled": Residual(50, 0.5, 0.5),
    }


def test_overhead_is_found_though_some_intervals_were_something_else() -> None:
    rng = np.random.default_rng(0)
    counts = [(int(rng.integers(0, 33)), int(rng.integers(0, 3))) for _ in range(200)]
    beside = [4e-4 + 3e-5 * tokens + 2e-4 * requests for tokens, requests in counts]
    disturbed = [seconds + (0.05 if index % 20 == 0 else 0.0) for index, seconds in enumerate(beside)]
    assert fit_overhead(counts, disturbed) == pytest.approx(dict(CALIBRATED.overhead), rel=1e-6)


def test_an_engine_that_never_had_two_steps_in_a_row() -> None:
    assert fit_overhead([], []) == dict.fromkeys(OVERHEADS, 0.0)


def test_nothing_measured_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="no step with sampled rows was measured"):
        fit_execution([Measured(StepWork(np.array([3]), np.array([0]), 0), 1.0, "prefill")], ())


def test_a_step_is_the_sum_of_its_parts() -> None:
    work = StepWork(np.array([1, 1, 10]), np.array([9, 49, 0]), 2, snapshots=2, new_rows=1)
    execution = EXECUTION.tokens(12) + EXECUTION.logits(2)
    execution += 3e-4 + 2 * 2e-5 + 4e-4 + 2e-4 + 5e-5 + 1e-4 + 2 * 6e-5
    execution += 3e-7 * (10 + 50) + 2e-8 * 55 + 1e-7 * 10 + 1e-7 * (10 + 24) + 4e-8 * 55
    assert EXECUTION.seconds(work) == pytest.approx(execution)
    assert CALIBRATED.seconds(work) == pytest.approx(execution + 4e-4 + 2 * 3e-5 + 2e-4)


def test_adapters_and_images() -> None:
    made = replace(
        EXECUTION,
        terms=dict(EXECUTION.terms)
        | {"with_images": 0.5, "image_token": 0.25, "adapter": 0.125, "adapted_unit": 1.0, "loaded_unit": 8.0},
    )
    plain = StepWork(np.array([4]), np.array([0]), 0)
    work = replace(plain, image_tokens=(16, 16), adapted=(Adapted(3, 2), Adapted(1, 1)), loaded_units=2)
    assert made.seconds(work) - made.seconds(plain) == pytest.approx(0.5 + 32 * 0.25 + 2 * 0.125 + 7 + 16)


def test_curves_go_through_their_points_and_on() -> None:
    curve = Curve((2, 4, 8), (1.0, 2.0, 6.0))
    assert [curve(n) for n in (1, 2, 3, 4, 6, 8, 16)] == pytest.approx([0.5, 1, 1.5, 2, 4, 6, 12])
    assert Curve((4,), (1.0,))(8) == 2


def test_json_and_back(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(CALIBRATED.to_json(), encoding="utf-8")
    assert Calibrated.load(path) == CALIBRATED
    told = json.loads(path.read_text())
    assert (told["model"], told["dtype"], told["conditions"]["threads"]) == ("tiny", "float32", 1)
    assert told["residuals"]["decode"] == {"count": 20, "p50": 0.01, "p95": 0.05}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "version must be 2, got 1"),
        ({"variation": []}, r"factors of the variation must not be negative, and 1 in the mean, got \(\)"),
        ({"variation": [-1, 3]}, r"1 in the mean, got \(-1.0, 3.0\)"),
        ({"variation": [1, 3]}, r"1 in the mean, got \(1.0, 3.0\)"),
        ({"execution": {"terms": {"decode": 1.0}}}, "terms must have exactly .*, got decode"),
        ({"overhead": dict.fromkeys(OVERHEADS, -1.0)}, r"overhead.step must be .* from 0 to 1e\+06, got -1.0"),
        ({"overhead": dict.fromkeys(OVERHEADS, 1e300)}, r"overhead.step must be .* from 0 to 1e\+06, got 1e\+300"),
        ({"overhead": dict.fromkeys(OVERHEADS, 10**400)}, "overhead.step must be .* got 10000"),
        ({"execution": {"tokens": {"sizes": [float("inf")], "seconds": [1]}}}, "not what hybrid plan calibrate writes"),
        ({"execution": {"attention": [dict.fromkeys(WINDOW_TERMS, "much")] * 2}}, "got 'much'"),
        ({"execution": {"windows": [None]}}, "1 windows need as many entries of attention, got 2"),
        ({"execution": {"tokens": {"sizes": [4, 2], "seconds": [1, 2]}}}, "must grow from 1 on"),
        ({"execution": {"tokens": {"sizes": [4], "seconds": [float("nan")]}}}, "got nan"),
        ({"execution": {"tokens": 3}}, "not what hybrid plan calibrate writes"),
        ({"execution": {"more": 3}}, "not what hybrid plan calibrate writes"),
        ({"surprise": 3}, "not what hybrid plan calibrate writes"),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "calibration.json"
    document = json.loads(CALIBRATED.to_json())
    inner = {"execution": document["execution"] | change["execution"]} if "execution" in change else change
    path.write_text(json.dumps(document | inner))
    with pytest.raises(ValueError, match=f"^calibration {path} cannot be read: .*{message}"):
        Calibrated.load(path)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", '{"version": 2}', "[" * 100_000])
def test_what_is_no_file_of_ours_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="cannot be read"):
        Calibrated.load(path)
    with pytest.raises(ValueError, match="cannot be read"):
        Calibrated.load(tmp_path)


def test_another_model_or_dtype_is_refused() -> None:
    tiny, other = open_model("tiny"), open_model(BY_NAME["Llama-3.1-8B"])
    made = replace(CALIBRATED, fingerprint=fingerprint(tiny))
    made.check_model("tiny", tiny, "float32")
    with pytest.raises(ValueError, match="is of tiny, not of llama; run hybrid plan calibrate llama"):
        made.check_model("llama", other, "float32")
    with pytest.raises(ValueError, match="is of tiny in float32, not in bfloat16: give --weights-dtype float32, or"):
        made.check_model("tiny", tiny, "bfloat16")
    prints = {name: fingerprint(open_model(path)) for name, path in BY_NAME.items()}
    assert len(set(prints.values())) == len(prints)
