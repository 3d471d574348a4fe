"""`hybrid serve` as a process: what happens at SIGTERM and Ctrl-C, and what it says about wrong arguments."""

import json
import signal
import socket
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

from hybrid.cli import app
from tests.server.serving import PATIENCE, process

LONG = {"model": "tiny", "prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": True}
SHORT = {**LONG, "max_tokens": 200}


def events(lines: Iterator[str]) -> list[str]:
    return [line.removeprefix("data: ") for line in lines if line]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_running_requests_may_finish(number: signal.Signals, code: int) -> None:
    with process() as (running, url), httpx.Client(base_url=url, timeout=PATIENCE) as client:
        with client.stream("POST", "/v1/completions", json=SHORT) as answer:
            lines = answer.iter_lines()
            next(lines)
            running.send_signal(number)
            *_, last, done = events(lines)
        assert json.loads(last)["choices"][0]["finish_reason"] == "length" and done == "[DONE]"
        assert running.wait(PATIENCE) == code
        with pytest.raises(httpx.ConnectError):
            client.get("/health")


def test_after_the_timeout_requests_end_with_an_error() -> None:
    with process("--shutdown-timeout", "0") as (running, url), httpx.Client(base_url=url, timeout=PATIENCE) as client:
        with client.stream("POST", "/v1/completions", json=LONG) as answer:
            lines = answer.iter_lines()
            next(lines)
            running.terminate()
            *_, last, done = events(lines)
        assert json.loads(last)["error"]["code"] == "aborted" and done == "[DONE]"
        assert running.wait(PATIENCE) == -signal.SIGTERM


def test_the_second_signal_ends_at_once() -> None:
    with process() as (running, url), httpx.Client(base_url=url, timeout=PATIENCE) as client:
        with client.stream("POST", "/v1/completions", json=LONG) as answer:
            lines = answer.iter_lines()
            next(lines)
            running.terminate()
            assert running.stderr is not None
            assert any("have 30 s to finish: 1. A second signal" in line for line in running.stderr)
            running.terminate()
            with pytest.raises(httpx.RemoteProtocolError):
                events(lines)
        running.wait(PATIENCE)


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-model-here",),
        ("--max-model-len", "1"),
        ("--max-num-seqs", "0"),
        ("--request-timeout", "-1"),
        ("--lora-modules", "tiny=here"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output and len(result.output.strip().splitlines()) <= 2


def test_an_address_in_use_is_found_before_loading() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["serve", "tiny", "--port", port])
    assert result.exit_code == 2 and f"cannot listen on 127.0.0.1:{port}: Address already in use" in result.output
