"""`hybrid plan` as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hybrid.capacity.sweep import parse_sweep
from hybrid.cli import app

from .questions import BY_NAME

GPT_OSS, JAMBA = str(BY_NAME["gpt-oss-20b"]), str(BY_NAME["Jamba-v0.1"])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "160"})


def document(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_table() -> None:
    done = run(GPT_OSS, "--memory", "40GiB", "--context", "8k", "--output", "512", "--weights-dtype", "bfloat16")
    assert done.exit_code == 0, done.output
    count = document(GPT_OSS, "--memory", "40GiB", "--context", "8192", "--weights-dtype", "bfloat16")["concurrency"]
    said = ("full attention", "sliding window", f"{count} requests at once", f"--num-full-blocks {544 * count} ")
    assert [words for words in said if words not in done.stdout] == []


def test_a_document_has_integers_and_formulas() -> None:
    made = document(GPT_OSS, "--gpu", "h100", "--context", "8k", "--weights-dtype", "bfloat16", "--adapters", "2")
    pools = made["pool_bytes"]
    assert pools["total"] <= made["memory_bytes"]
    assert pools["total"] == sum(size for name, size in pools.items() if name != "total")
    sizes = made["sizes"]
    names = {"blocks": sizes["num_full_blocks"], "rank_units": sizes["lora_units"]}
    assert eval(made["formulas"]["full"], names) == pools["full"]
    assert eval(made["formulas"]["lora"], names) == pools["lora"]
    assert made["hardware"]["source"].startswith("https://www.nvidia.com")
    assert document("tiny", "--gpu", "cpu", "--context", "100", "--bandwidth", "2e10")["hardware"]["bandwidth"] == 2e10


@pytest.mark.parametrize(
    ("arguments", "option", "also"),
    [
        (("tiny", "--memory", "100KiB", "--context", "100"), "--memory", ()),
        ((JAMBA, "--memory", "3GiB", "--context", "250k"), "--memory", ("--context",)),
        ((JAMBA, "--gpu", "h100"), "--gpu", ("--tp",)),
        ((GPT_OSS, "--memory", "1GiB", "--weights-dtype", "bfloat16", "--adapters", "3"), "--memory", ("--adapters",)),
    ],
)
def test_what_does_not_fit_says_what_would(arguments: tuple[str, ...], option: str, also: tuple[str, ...]) -> None:
    """Exit code 2 and one line; and what it says is true."""
    done = run(*arguments)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1, done.output
    words = done.stderr.split("the smallest change that fits: ")[1].replace("(or", "").replace(")", "").replace(",", "")
    options = [word for word in words.split() if word != "or"]
    changes = dict(zip(options[::2], options[1::2], strict=True))
    assert next(iter(changes)) == option and set(also) <= set(changes)
    for name, value in changes.items():
        kept = list(arguments)
        if name in kept:
            kept[kept.index(name) + 1] = value
        else:
            kept += [name, value]
        assert run(*kept).exit_code == 0, (name, value)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("tiny",), "give --gpu or --memory"),
        (("nothing", "--memory", "1GiB"), "model 'nothing' is neither"),
        (("tiny", "--memory", "0"), "memory must be positive"),
        (("tiny", "--memory", "1GiB", "--context", "many"), "context must be a number of tokens"),
        (("tiny", "--memory", "1GiB", "--flops", "1e12"), "change a --gpu"),
        (("tiny", "--memory", "1GiB", "--plot", "a.png"), "--plot draws a --sweep"),
        (("tiny", "--memory", "1GiB", "--sweep", "rows=1..4"), "sweep must be such as context=1k..128k"),
        (("tiny", "--memory", "1GiB", "--sweep", "context=4..2"), "from at least 1 upwards"),
        (("tiny", "--memory", "1GiB", "--context", "100", "--max-num-seqs", "0"), "max_num_seqs must be at least 1"),
        ((JAMBA, "--memory", "1GiB", "--images", "1"), "is served without images"),
        ((JAMBA, "--memory", "1GiB", "--lora-target-modules", "query"), "the model has no 'query'; it has"),
    ],
)
def test_wrong_questions(arguments: tuple[str, ...], why: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2 and why in done.stderr and done.stderr.count("\n") == 1, done.output


def test_an_unknown_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "nothing"}), encoding="utf-8")
    done = run(str(config), "--memory", "1GiB")
    assert done.exit_code == 2 and "model_type 'nothing' is not supported" in done.stderr


def test_a_sweep_with_a_plot(tmp_path: Path) -> None:
    picture = tmp_path / "plan.png"
    arguments = (GPT_OSS, "--memory", "10GiB", "--sweep", "context=1k..200k", "--compare", JAMBA)
    done = run(*arguments, "--plot", str(picture))
    assert done.exit_code == 0, done.output
    assert done.stdout.count("Jamba-v0.1") == done.stdout.count("gpt-oss-20b") == 9
    assert "does not fit" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    points = document(*arguments)
    counts = [point["plan"]["concurrency"] for point in points if point["model"] == "Jamba-v0.1"]
    assert len(counts) == 9 and counts == sorted(counts, reverse=True)
    assert points[8]["plan"] is None and "exceeds the model's limit" in points[8]["why_not"]
    assert run(*arguments, "--plot", str(tmp_path / "no folder" / "plan.png")).exit_code == 2


def test_quantised_weights_are_what_if() -> None:
    """The engine does not load them; in a dtype that it computes in, they are another checkpoint."""
    made = document(GPT_OSS, "--memory", "40GiB")
    assert made["flags"] == "" and made["what_if"][0].startswith("the engine loads no weights quantised by mxfp4")
    assert document(GPT_OSS, "--memory", "40GiB", "--weights-dtype", "bfloat16")["what_if"] == []


def test_sweep_ranges() -> None:
    assert parse_sweep("context=1k..5k") == ("context", (1024, 2048, 4096, 5120))
    assert parse_sweep("shared-prefix=3..3") == ("shared_prefix", (3,))


def test_side_by_side() -> None:
    """A model that cannot be served so long has its row, and why on standard error."""
    arguments = (GPT_OSS, "--memory", "40GiB", "--compare", JAMBA, "--compare", "tiny")
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    rows = [line.split()[0] for line in done.stdout.splitlines()]
    assert rows == ["model", "gpt-oss-20b", "Jamba-v0.1", "tiny"]
    assert "exceeds the model's limit" in done.stderr
    assert [made["model"] for made in document(*arguments)] == [GPT_OSS, JAMBA]


def test_no_torch() -> None:
    """A process that plans, sweeps and draws a configuration never imports it."""
    program = f"""
import sys
from hybrid.cli import app
for more in ([], ["--sweep", "context=1k..4k"]):
    try:
        app(["plan", {JAMBA!r}, "--memory", "40GiB", *more])
    except SystemExit as ended:
        assert not ended.code
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
