"""`hybrid serve` as it starts: it warms up, says so, and listens when it is done; and what its pools are made of."""

import json
import sys

import httpx
import pytest
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.pools.sizing import POOL_UNITS
from hybrid.server.run import DrainingServer
from tests.server.serving import PATIENCE, Running, process


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in its order: the parts that listen and warm up only say so."""
    said: list[str] = []
    monkeypatch.setattr("hybrid.warm_up.warm_up", lambda setup: said.append("warm"))
    monkeypatch.setattr(DrainingServer, "run", lambda self: said.append("listening"))
    return said


@pytest.mark.parametrize(
    ("flags", "expected"), [((), ["warm", "listening"]), (("--skip-server-warmup",), ["listening"])]
)
def test_it_listens_when_it_is_warm(order: list[str], flags: tuple[str, ...], expected: list[str]) -> None:
    done = CliRunner().invoke(app, ["serve", "tiny", "--memory", "32MiB", "--threads", "1", *flags])
    assert done.exit_code == 0, done.stderr
    assert order == expected
    assert done.stderr.splitlines()[-1] == "models: tiny"


def test_it_takes_the_flags_of_a_plan(order: list[str]) -> None:
    question = ["tiny", "--memory", "24MiB", "--context", "60", "--output", "40", "--images", "1"]
    planned = json.loads(CliRunner().invoke(app, ["plan", *question, "--json"]).stdout)
    flags = [*planned["flags"].split(), "--encoder-tokens", "48", "--threads", "1"]
    done = CliRunner().invoke(app, ["serve", "tiny", *flags, "--skip-server-warmup"])
    assert done.exit_code == 0, done.stderr
    assert f"tokens per request: {planned['concurrency']}; the request row pool binds" in done.stderr
    assert order == ["listening"]


@pytest.mark.parametrize("package", ["fastapi", "httpx", "prometheus_client", "uvicorn"])
def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, ["serve", "tiny"])
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert f"pip install 'hybrid-pools[serve]' (import of {package}" in done.stderr


def test_help_shows_every_flag_in_full() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "80"}).stdout
    assert {"--allowed-local-media-path", "--max-num-batched-tokens", "--no-enable-prefix-caching"} <= {*shown.split()}
    ours, of_vllm = shown.split("Flags of vLLM that choose nothing here:")
    assert "--lora-modules" in ours and "--load-format" not in ours and "--load-format" in of_vllm


def test_warming_up_leaves_no_trace_in_the_counters() -> None:
    with process() as (_, url), httpx.Client(base_url=url, timeout=PATIENCE) as client:
        assert client.get("/health").status_code == 200
        assert 'hybrid:prompt_tokens_total{model_name="tiny"} 0.0' in client.get("/metrics").text


def test_pools_tell_their_bytes(server: Running) -> None:
    pools = server.http.get("/v1/pools").json()["pools"]
    told = {pool["pool"]: pool["bytes"] for pool in pools}
    assert set(told) == set(POOL_UNITS) and told["request row"] > 0 and told["LoRA"] == 0
    sizes = server.ask(lambda engine: [tensor.nbytes for tensor in engine._runner.caches.tensors()])  # type: ignore[attr-defined]
    assert sum(told.values()) - told["request row"] == sum(sizes)
