"""/v1/pools speaks of the engine's pools as `hybrid plan --json` does."""

import json
import os
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner

from hybrid import LLM
from hybrid.cli import app
from hybrid.engine_args import EngineArgs

from .serving import serving


def test_an_engine_made_as_planned_shows_the_plan() -> None:
    """The planner's flags give an engine that reports the planner's figures, under the same keys."""
    question = [
        "plan",
        "tiny",
        "--memory",
        "24MiB",
        "--context",
        "60",
        "--output",
        "40",
        "--max-num-batched-tokens",
        "64",
    ]
    made = json.loads(CliRunner().invoke(app, [*question, "--json"]).stdout)
    names = ("memory", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")
    split = ("num_full_blocks", "num_window_blocks", "num_state_slots")
    words = made["flags"].split()
    given: dict[str, Any] = {
        name: int(words[words.index("--" + name.replace("_", "-")) + 1]) for name in (*names, *split)
    }
    with serving(EngineArgs(model="tiny", num_threads=1, dtype="float32", **given)) as server:
        body = server.http.get("/v1/pools").json()
    shown = body["plan"]
    assert shown.keys() < made.keys()
    same = [name for name in shown if name not in ("binding_pool", "shortages")]
    assert {name: shown[name] for name in same} == {name: made[name] for name in same}
    assert shown["binding_pool"] == "request row", "max_num_seqs is what was planned"
    assert body["limits"]["max_num_seqs"] == shown["concurrency"] == made["concurrency"] > 10
    full = next(pool for pool in body["pools"] if pool["pool"] == "full attention")
    assert full["bytes"] == shown["pool_bytes"]["full"]


def test_the_server_says_it_when_it_starts() -> None:
    command = [sys.executable, "-c", "from hybrid.cli import main; main()", "serve", "tiny", "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--memory", "64MiB"], stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stderr is not None
        try:
            said = next(line for line in server.stderr if "maximum concurrency" in line)
        finally:
            server.kill()
    assert said.strip() == str(LLM("tiny", device="cpu", memory="64MiB").limits)
