"""`hybrid plan calibrate` as a user calls it: the real engine, for a few seconds."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from hybrid.calibration.execution import Execution
from hybrid.calibration.measure import pictures
from hybrid.calibration.plans import request_id
from hybrid.calibration.shapes import design
from hybrid.capacity.model_file import open_model
from hybrid.capacity.step_time.calibrated import Calibrated
from hybrid.capacity.step_time.fitting import fit_execution
from hybrid.capacity.step_time.layer_costs import LayerCosts
from hybrid.capacity.step_time.step_work import StepWork
from hybrid.cli import app
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import set_up
from hybrid.pools.sizing import Kinds
from hybrid.sampling_params import SamplingParams


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", "calibrate", *arguments], env={"COLUMNS": "160"})


def test_tiny_is_measured(tmp_path: Path) -> None:
    """How far it gets in a second depends on the machine; some steps are measured in any case."""
    out = tmp_path / "tiny.json"
    limits = ("--max-model-len", "96", "--max-num-seqs", "4", "--max-num-batched-tokens", "48", "--memory", "32MiB")
    done = run("tiny", "--out", str(out), "--seconds", "1", *limits)
    assert done.exit_code == 0, done.output
    assert str(out) in done.stdout
    made = Calibrated.load(out)
    made.check_model("tiny", open_model("tiny"), "float32")
    assert made.conditions.device == "cpu"
    assert made.conditions.threads >= 1
    assert "served" in made.residuals
    assert all(kind in done.stdout for kind in made.residuals)
    assert made.overhead["step"] + made.overhead["token"] > 0
    small = StepWork(np.array([1]), np.array([10]), 1)
    assert 0 < made.execution.seconds(small) < made.seconds(small)


def test_the_smallest_engine_is_measured(tmp_path: Path) -> None:
    """Every request has one step, and none follows another."""
    out = tmp_path / "tiny.json"
    limits = ("--max-model-len", "2", "--max-num-seqs", "1", "--max-num-batched-tokens", "1", "--memory", "32MiB")
    done = run("tiny", "--out", str(out), "--seconds", "1", *limits)
    assert done.exit_code == 0, done.output
    assert set(Calibrated.load(out).overhead.values()) == {0.0}


def test_every_shape_is_measured_where_there_is_time() -> None:
    setup = set_up(
        EngineArgs(
            model="tiny", skip_tokenizer_init=True, max_model_len=96, max_num_seqs=4, max_num_batched_tokens=48,
            memory="32MiB", num_threads=1,
        )
    )  # fmt: skip
    spec = open_model("tiny").spec("float32")
    kinds, params = Kinds.of(spec), SamplingParams(temperature=1.0)
    images = pictures(setup.processor.images, setup.sizes.encoder_tokens)
    execution = Execution(setup.runner, kinds, setup.processor.vocab_size, params, images)
    tokens = images[0].runs[0]
    shapes = design(setup.sizes, kinds, 48, tokens)
    chosen = [next(shape for shape in shapes if shape.kind == kind) for kind in {shape.kind for shape in shapes}]
    measured = execution.measure(sorted(chosen, key=lambda shape: shape.num_tokens), seconds=1e6)
    execution.close()
    counts = [entry.work.num_tokens.tolist() for entry in measured]
    again = [entry for entry in measured if not entry.work.new_num_tokens]
    assert len(again) == len(chosen)  # and some sizes when they were new as well
    assert len(again) < len(measured) <= 2 * len(chosen)
    assert all(entry.work.num_tokens.tolist() in counts for entry in again)
    assert {"decode", "prefill", "mixed", "entering", "images"} <= {entry.kind for entry in measured}
    assert all(entry.seconds > 0 for entry in measured)
    found = fit_execution(measured, LayerCosts.of(open_model("tiny"), spec).windows)
    assert min(found.tokens.seconds) >= 0
    # The engine is as new: the runner knows none of these requests.
    for row in range(setup.sizes.num_rows):
        setup.runner.add_request(request_id(row), params)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "'nowhere' is neither a folder nor a bundled checkpoint"),
        (("tiny", "--seconds", "0"), "seconds must be at least 1, got 0"),
        (("tiny", "--seconds", "inf"), "seconds must be at least 1, got inf"),
        (("tiny", "--temperature", "-1"), "temperature"),
        (("tiny", "--num-threads", "0"), "num_threads must be an integer of at least 1, got 0"),
        (("tiny", "--max-num-seqs", "9", "--max-num-batched-tokens", "8"), "max_num_seqs 9 is more than"),
        (("tiny", "--out", "no/such/folder/file.json"), "no folder that exists"),
        (("tiny", "--out", "/"), "out '/' is a folder, not a file"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_planning_itself_still_takes_a_model() -> None:
    done = CliRunner().invoke(app, ["plan", "tiny", "--memory", "64MiB", "--context", "100"], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "requests at once" in done.stdout


def test_help_lists_both() -> None:
    done = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "160"})
    assert "plan calibrate" in done.stdout
