"""`hybrid plan` as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hybrid.capacity.sizing.sweep import parse_sweep
from hybrid.cli import app
from tests.capacity.questions import BY_NAME

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
        ((JAMBA, "--gpu", "h100", "--gpu-memory", "100GB"), "--gpu-memory", ("--tp",)),
        (("tiny", "--gpu", "h100", "--gpu-memory", "1MiB", "--context", "100"), "--gpu-memory", ()),
        ((JAMBA, "--gpu", "h200", "--gpu-memory", "105GiB", "--gpu-memory-utilization", "0.9"), "--gpu-memory", ()),
        ((JAMBA, "--gpu", "h200", "--gpu-memory-utilization", "0.5"), "--gpu-memory-utilization", ("--tp",)),
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
        (("tiny", "--memory", "1GiB", "--gpu-memory", "1GiB"), "change a --gpu"),
        (("tiny", "--memory", "1GiB", "--gpu-memory-utilization", "1"), "change a --gpu"),
        (("tiny", "--gpu", "l4", "--gpu-memory-utilization", "1.5"), "must be more than 0 and at most 1, got 1.5"),
        (("tiny", "--memory", "1GiB", "--plot", "a.png"), "--plot draws a --sweep"),
        (
            ("tiny", "--memory", "1GiB", "--sweep", "context=1..2", "--plot", "a"),
            "plot must be a file such as plan.png",
        ),
        (("tiny", "--memory", "1GiB", "--sweep", "context=1..2", "--plot", ""), "plot must be a file such as plan.png"),
        ((JAMBA, "--memory", "1GiB", "--images", "1"), "is served without images"),
        ((JAMBA, "--memory", "1GiB", "--image-size", "10x10"), "is served without images"),
        ((JAMBA, "--memory", "1GiB", "--lora-target-modules", "query"), "the model has no 'query'; it has"),
    ],
)
def test_wrong_questions(arguments: tuple[str, ...], why: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2 and why in done.stderr and done.stderr.count("\n") == 1, done.output


@pytest.mark.parametrize(
    ("option", "values", "why"),
    [
        ("--memory", ("0", "-1GiB", "nan", "1e400GiB"), "memory must be"),
        ("--gpu", ("", "h999"), "is not one of a100-40"),
        ("--gpu-memory", ("0", "x"), "memory must be"),
        ("--bandwidth", ("0", "-1", "nan", "inf", "5e-324"), "bandwidth must be a positive number"),
        ("--flops", ("0", "-1", "nan", "inf", "1e-300"), "flops must be a positive number"),
        ("--tp", ("0", "-1"), "tp must be at least 1"),
        ("--tp", ("3", "999999999999"), "does not divide num_heads 8 of"),
        ("--context", ("0",), "context must be at least 1"),
        ("--context", ("-1", "1.5k", "", "nan"), "context must be a number of tokens"),
        ("--context", ("999999999k", "2k"), "exceeds the model's limit of 2048"),
        ("--context", ("uniform:5", "poisson:3"), "context must be such as 512, uniform:100-900"),
        (
            "--context",
            ("uniform:0-3", "normal:0,1", "lognormal:mean=0,p95=1"),
            "context must be 1 to 16,777,216 tokens",
        ),
        ("--context", ("uniform:3000-4000",), "none of these requests fits into the model's limit of 2048 tokens"),
        ("--context", ("trace:nothing.csv",), "nothing.csv cannot be read"),
        ("--output", ("0", "-5", "99999999999"), "output must be"),
        ("--output", ("exponential:0",), "output must be 1 to 16,777,216 tokens"),
        ("--max-tokens", ("0", "-1", "x"), "max_tokens must be"),
        ("--images", ("-1",), "images must be at least 0"),
        ("--images", ("1000000", "9" * 30), "exceeds the model's limit of 2048"),
        ("--image-size", ("0x5", "1024", "1024x-1", "999999x1"), "image_size must be pixels such as 1024x768"),
        ("--shared-prefix", ("100",), "leaves nothing of a context of 100 tokens"),
        ("--shared-prefix", ("-1", "x"), "shared_prefix must be a number of tokens"),
        ("--adapters", ("-1",), "adapters must be at least 0"),
        ("--adapters", ("1000000000",), "the smallest change that fits: --memory"),
        ("--rank", ("0", "-2"), "rank must be at least 1"),
        ("--lora-target-modules", ("",), "the model has no ''"),
        ("--weights-dtype", ("int3", ""), "is not one of float64"),
        ("--kv-dtype", ("float",), "dtype 'float' is not one of float64"),
        ("--state-dtype", ("x",), "dtype 'x' is not one of float64"),
        ("--max-num-batched-tokens", ("0", "-1"), "max_num_batched_tokens must be an integer of at least 1"),
        ("--max-num-batched-tokens", ("1" + "0" * 13,), "the smallest change that fits: --memory"),
        ("--max-num-seqs", ("0", "-1"), "max_num_seqs must be at least 1"),
        ("--block-size", ("0", "-16"), "block_size must be an integer of at least 1"),
        ("--block-size", ("1" + "0" * 13,), "the smallest change that fits: --memory"),
        ("--sweep", ("context", "context=", "foo=1..2", "rows=1..4"), "sweep must be such as context=1k..128k"),
        ("--sweep", ("context=0..4", "context=4..2"), "from at least 1 upwards"),
        ("--sweep", ("images=1..2x",), "must be a number of tokens"),
        ("--compare", ("nothing",), "model 'nothing' is neither"),
    ],
)
def test_absurd_values(option: str, values: tuple[str, ...], why: str) -> None:
    """Every option: one sentence, exit code 2, nothing on standard output."""
    for value in values:
        given = {"--memory": "1GiB", "--gpu": "h100", "--context": "100"}
        if option in ("--rank", "--lora-target-modules"):
            given["--adapters"] = "1"
        words = [word for pair in (given | {option: value}).items() for word in pair]
        done = run("tiny", *words)
        assert done.exit_code == 2 and why in done.stderr, (value, done.output)
        assert done.stderr.count("\n") == 1 and not done.stdout, (value, done.output)


def test_many_lengths() -> None:
    """Distributions give what runs at once on average, and a number that is permitted beyond an answer counts."""
    arguments = (GPT_OSS, "--memory", "4GiB", "--weights-dtype", "bfloat16", "--context", "uniform:100-3k")
    made = document(*arguments, "--output", "exponential:200")
    assert made["traffic"]["requests"] + made["traffic"]["left_out"] == 10_000
    assert 1500 < made["traffic"]["mean_context"] < 1600 and 190 < made["traffic"]["mean_output"] < 210
    assert made["expected"]["concurrency"] > made["concurrency"] > 1
    assert made["sizes"]["max_model_len"] > 3 * 1024 + 200
    assert document(*arguments, "--output", "50", "--max-tokens", "1k")["traffic"]["mean_max_tokens"] == 1024
    done = run(*arguments, "--output", "exponential:200")
    assert f"{made['expected']['concurrency']:,.1f} requests at once on average" in done.stdout
    done = run(*arguments, "--sweep", "context=1k..2k")
    assert done.exit_code == 2 and "a sweep of context needs numbers of tokens" in done.stderr


def test_a_trace_keeps_its_pairs(tmp_path: Path) -> None:
    """The longest prompt has the shortest answer: together they are no longer than the others."""
    trace = tmp_path / "trace.csv"
    rows = [f"2024-05-10 00:00:0{i}.0,{1000 - 100 * i},{100 + 100 * i}\n" for i in range(8)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows), encoding="utf-8")
    arguments = ("tiny", "--memory", "16MiB", "--context", f"trace:{trace}", "--output", f"trace:{trace}")
    made = document(*arguments)
    assert (made["traffic"]["requests"], made["traffic"]["left_out"], made["sizes"]["max_model_len"]) == (8, 0, 1100)


def test_images_of_a_size() -> None:
    """The bundled model lays every image on a square."""
    made = document("tiny", "--memory", "8MiB", "--context", "60", "--images", "1", "--image-size", "640x480")
    assert made["request"]["image_size"] == [640, 480] and made["request"]["image_tokens"] == 16
    done = run("tiny", "--memory", "8MiB", "--context", "60", "--images", "1", "--image-size", "640x480")
    assert "of an image of 640x480 pixels, 16 tokens, in all pools" in done.stdout


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


def test_a_narrow_terminal_cuts_no_figure() -> None:
    """Nor a pipe, which counts as one of 80 columns."""
    arguments = ("plan", GPT_OSS, "--memory", "40GiB", "--weights-dtype", "bfloat16", "--compare", JAMBA)
    wide, narrow = (CliRunner().invoke(app, arguments, env={"COLUMNS": columns}).stdout for columns in ("160", "40"))
    assert narrow == wide and "41,829,514,368" in wide


def test_a_name_like_markup_is_a_name(tmp_path: Path) -> None:
    strange = tmp_path / "a[" / "b]:smile:[red].json"
    strange.parent.mkdir()
    strange.write_bytes(Path(JAMBA).read_bytes())
    assert str(strange) in run(str(strange), "--memory", "1GiB").stdout
    assert strange.stem in run(str(strange), "--memory", "1GiB", "--compare", JAMBA).stdout
    assert strange.stem in run(str(strange), "--memory", "1GiB", "--sweep", "output=1..2").stdout


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_full_disk_is_a_sentence(more: tuple[str, ...]) -> None:
    arguments = [sys.executable, "-m", "hybrid", "plan", JAMBA, "--memory", "40GiB", *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and done.stderr == "the answer cannot be written: No space left on device\n"


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    done = run(str(tmp_path / "none.json"), "--memory", "1GiB")
    assert done.exit_code == 2 and done.stderr.startswith(f"{tmp_path / 'none.json'} cannot be read as JSON")


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
