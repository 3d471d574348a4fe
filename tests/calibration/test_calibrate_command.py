"""`hybrid plan calibrate` as a user calls it: the real engine, for a few seconds."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from hybrid.capacity.calibration import Calibrated
from hybrid.capacity.model_file import open_model
from hybrid.capacity.step_work import StepWork
from hybrid.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", "calibrate", *arguments], env={"COLUMNS": "160"})


def test_tiny_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    limits = ("--max-model-len", "96", "--max-num-seqs", "4", "--max-num-batched-tokens", "48", "--memory", "32MiB")
    done = run("tiny", "--out", str(out), "--seconds", "6", *limits)
    assert done.exit_code == 0, done.output
    assert str(out) in done.stdout
    made = Calibrated.load(out)
    made.check_model("tiny", open_model("tiny"), "float32")
    assert made.conditions.device == "cpu"
    assert made.conditions.threads >= 1
    assert {"decode", "prefill", "mixed", "images", "served"} <= set(made.residuals)
    assert all(kind in done.stdout for kind in made.residuals)
    assert made.tokens.sizes[0] == 1
    assert made.tokens.sizes[-1] == 48
    small = StepWork(np.array([1]), np.array([10]), 1)
    large = StepWork(np.array([1, 40]), np.array([10, 0]), 2, new_rows=1)
    assert 0 < made.execution(small) < made.execution(large)
    assert made.seconds(small) >= made.execution(small)


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
