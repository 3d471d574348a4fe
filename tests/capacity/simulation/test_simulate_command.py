"""`hybrid plan --simulate` as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hybrid.cli import app
from tests.capacity.questions import BY_NAME

LLAMA, GRANITE = str(BY_NAME["Llama-3.1-8B"]), str(BY_NAME["granite-4.0-h-tiny"])
SHORT = ("--gpu", "h100", "--weights-dtype", "bfloat16", "--context", "500", "--output", "50", "--simulate")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "120"})


def document(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_rate() -> None:
    done = run(LLAMA, *SHORT, "--rate", "4", "--requests", "40", "--slo", "ttft=1s,itl=50ms")
    assert done.exit_code == 0, done.output
    said = (
        "500 tokens in, 50 out on average",
        "40 requests at 4/s in",
        "100.0% met the targets",
        "TTFT",
        "full attention",
    )
    assert [words for words in said if words not in done.stdout] == []
    assert "goodput" not in done.stdout


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("SmolVLM-256M-Instruct", 13 * 64 + 24 + 3 + 3), ("gemma-3-4b-it", 256 + 4), ("Qwen3-VL-4B-Instruct", 768 + 2)],
)
def test_images_of_many_entries_and_with_marks(name: str, tokens: int) -> None:
    arguments = ("--images", "2", "--image-size", "1024x768", "--rate", "4", "--requests", "5")
    (setting,) = document(str(BY_NAME[name]), *SHORT, *arguments)["settings"]
    assert setting["sizes"]["max_model_len"] == 500 + 2 * tokens + 50
    assert [summary["completed"] for summary in setting["curve"]] == [5]


def test_a_range_and_its_picture(tmp_path: Path) -> None:
    picture = tmp_path / "occupancy.png"
    arguments = ("--rate", "20..400", "--requests", "40", "--slo", "ttft=300ms", "--plot", str(picture))
    done = run(LLAMA, *SHORT, *arguments)
    assert done.exit_code == 0, done.output
    assert "goodput: " in done.stdout and "requests/s, of which 95% meet ttft 0.3 s" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    (setting,) = document(LLAMA, *SHORT, *arguments)["settings"]
    rates, attained = [], []
    for summary in setting["curve"]:
        rates.append(summary["rate"])
        attained.append(summary["attainment"] >= 0.95)
    assert rates == sorted(rates) and attained == sorted(attained, reverse=True) and not attained[-1]
    assert setting["goodput"] == max(rate for rate, met in zip(rates, attained, strict=True) if met)
    assert 0 < max(setting["timeline"]["in_use"]["full attention"]) <= 1


def test_settings_side_by_side() -> None:
    varied = ("--vary", "max_num_seqs=1,64", "--vary", "composition=decode-first,prefill-first")
    arguments = ("--rate", "30", "--requests", "60", "--slo", "ttft=1s", *varied)
    done = run(LLAMA, *SHORT, *arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("decode-first") >= 2
    (best,) = [line for line in done.stdout.splitlines() if line.startswith("best ")]
    assert " 64 " in best
    made = document(LLAMA, *SHORT, *arguments)
    assert [setting["setting"]["max_num_seqs"] for setting in made["settings"]] == [1, 1, 64, 64]
    assert [setting["best"] for setting in made["settings"]].count(True) == 1


def test_equal_seeds_are_equal_runs() -> None:
    arguments = (LLAMA, *SHORT, "--rate", "20", "--duration", "3s", "--slo", "ttft=1s")
    assert document(*arguments) == document(*arguments)
    assert document(*arguments) != document(*arguments, "--seed", "1")


def test_chats_hit_and_adapters_wait() -> None:
    made = document(
        GRANITE, "--gpu", "l4", "--weights-dtype", "bfloat16", "--context", "100", "--output", "30", "--simulate",
        "--workload", "chat:turns=3,system=500,think=1", "--rate", "3", "--duration", "20s", "--adapters", "2",
        "--rank", "8",
    )  # fmt: skip
    (setting,) = made["settings"]
    (summary,) = setting["curve"]
    assert summary["hit_rate"] > 0.4 and summary["waiting_for"]["gate"] > 0 and summary["refused"] == 0
    assert setting["sizes"]["lora_units"] == 2
    assert summary["attainment"] is None and setting["goodput"] is None


def test_a_trace_at_its_own_rate(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:00:{second:02}.0,{400 + 10 * second},{20 + second}" for second in range(30)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n", encoding="utf-8")
    made = document(LLAMA, *SHORT, "--workload", str(trace))
    (summary,) = made["settings"][0]["curve"]
    assert summary["completed"] == 30 and summary["rate"] == pytest.approx(1.0)
    assert made["settings"][0]["sizes"]["max_model_len"] == 400 + 290 + 49
    faster = document(LLAMA, *SHORT, "--workload", str(trace), "--rate", "10")["settings"][0]["curve"][0]
    assert faster["rate"] == 10 and faster["seconds"] < summary["seconds"] / 5


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--rate", "0"), "rate must be requests per second such as 8, or a range upwards such as 1..50, got '0'"),
        (("--rate", "9..1"), "got '9..1'"),
        ((), "workload 'poisson' has no rate of its own: give --rate, such as 8 or 1..50"),
        (("--rate", "1..5"), "a range of rates is searched for what meets targets: give --slo"),
        (("--rate", "1", "--slo", "ttft=0s"), "slo ttft must be a positive time such as 50ms, 2s or 10m, got '0s'"),
        (("--rate", "1", "--slo", "speed=1"), "slo must be such as ttft=2s,itl=50ms, over ttft, itl, tpot, e2e, each"),
        (("--rate", "1", "--vary", "speed=1"), "vary must be such as policy=fcfs,lpm, over "),
        (("--rate", "1", "--vary", "block_size=0"), "block_size=0: block_size must be an integer of at least 1, got 0"),
        (("--rate", "1", "--duration", "0"), "duration must be a positive time such as 50ms, 2s or 10m, got '0'"),
        (("--rate", "1", "--requests", "0"), "the number of requests must be 1 to 10,000,000, got 0"),
        (("--rate", "1", "--max-tokens", "0"), "max_tokens must be at least 1, got 0"),
        (("--rate", "1", "--warmup", "3m"), "a warm-up of 180 s leaves nothing of a duration of 120 s"),
        (
            ("--rate", "4", "--requests", "9", "--warmup", "9"),
            "no request arrives after a warm-up of 9 s at 4 a second",
        ),
        (("--rate", "999999", "--duration", "60m"), "at most 2,000,000 are simulated: choose a shorter --duration"),
        (("--rate", "1", "--workload", "storm"), "workload must be poisson, steady"),
        (("--rate", "1", "--calibration", "nowhere.json"), "calibration nowhere.json cannot be read"),
        (("--rate", "1", "--sweep", "context=1k..2k"), "--simulate takes one model and no --sweep"),
        (("--rate", "1", "--requests", "1", "--plot", "/nowhere/a.png"), "plot '/nowhere/a.png' lies in no folder"),
        (("--rate", "1", "--requests", "1", "--plot", "/"), "plot must be a file such as plan.png"),
        (("--rate", "1", "--requests", "1", "--plot", "a.xyz"), "plot must be a file such as plan.png"),
        (("--rate", "1", "--requests", "1", "--shared-prefix", "500"), "leaves nothing of a context of 500 tokens"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: tuple[str, ...], why: str) -> None:
    done = run(LLAMA, *SHORT, *arguments)
    assert done.exit_code == 2
    assert why in done.stderr and done.stderr.count("\n") == 1


def test_without_a_device_there_are_no_step_times() -> None:
    done = run(LLAMA, "--memory", "4GiB", "--simulate", "--rate", "1", "--requests", "1", "--weights-dtype", "bfloat16")
    assert done.exit_code == 2 and "step times need a gpu whose rates count" in done.stderr


def test_a_setting_that_no_scheduler_takes_leaves_the_others() -> None:
    """The encoder pool must hold an image of the model, even where no request has one."""
    arguments = ("tiny", *SHORT[:2], "--context", "50", "--output", "5", "--simulate", "--rate", "4", "--requests", "2")
    done = run(*arguments, "--vary", "encoder_tokens=0,64")
    assert done.exit_code == 0 and done.stderr.startswith("encoder_tokens=0: "), done.output
    assert run(*arguments, "--vary", "encoder_tokens=0").exit_code == 2


def test_adapters_of_a_trace(tmp_path: Path) -> None:
    """It keeps its own; as many as --adapters are on the device at once."""
    trace = tmp_path / "own.jsonl"
    line = '{{"time": {0}, "input_length": 50, "output_length": 5, "adapter": "a{0}", "rank": 8}}\n'
    trace.write_text("".join(line.format(number) for number in range(6)), encoding="utf-8")
    arguments = ("tiny", *SHORT[:2], "--simulate", "--workload", str(trace), "--adapters", "2")
    assert "6 requests at 1/s" in run(*arguments).stdout
    (setting,) = document(*arguments)["settings"]
    assert "refused" not in run(*arguments).stdout and setting["sizes"]["lora_units"] == 4, setting["sizes"]
    for given, why in ((arguments[:-2], "names adapters: give --adapters"), ((*arguments, "--rank", "4"), "of rank 8")):
        done = run(*given)
        assert done.exit_code == 2 and why in done.stderr and done.stderr.count("\n") == 1, done.output


def test_options_of_a_simulation_without_one() -> None:
    done = run(LLAMA, "--memory", "40GiB", "--rate", "1")
    assert done.exit_code == 2 and "--rate, --slo and others of a simulation need --simulate" in done.stderr


def test_no_torch() -> None:
    code = (
        "import sys\n"
        "from hybrid.cli import app\n"
        f"app(['plan', {LLAMA!r}, *{SHORT!r}, '--rate', '1', '--requests', '2'], standalone_mode=False)\n"
        "print(sorted(name for name in ('torch', 'transformers') if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
