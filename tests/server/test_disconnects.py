"""Whoever goes takes its request along: nothing of it stays in the engine, whatever it waited for."""

from collections.abc import Iterator
from typing import Any

import pytest

from hybrid.engine_args import EngineArgs
from hybrid.scheduler.stats import SchedulerStats
from tests.server.serving import Running, serving

LONG: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """Rows for two requests: a third one waits."""
    with serving(EngineArgs(model="tiny", max_num_seqs=2, memory="64MiB", num_threads=1)) as running:
        yield running


def at_rest(stats: SchedulerStats) -> bool:
    """Nobody is there, and every unit is free or cached."""
    return stats.num_running == stats.num_waiting == stats.num_in_flight == 0 and all(
        ledger.free + ledger.cached == ledger.total for ledger in stats.ledgers.values()
    )


def test_a_stream_that_nobody_reads_any_more(server: Running) -> None:
    with server.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as answer:
        lines = answer.iter_lines()  # which closes the connection when it goes
        assert next(lines).startswith("data: ")
        assert not at_rest(server.stats())
    server.wait_for(at_rest)


@pytest.mark.parametrize("stream", [False, True])
def test_waiting_for_an_answer_or_for_a_row(server: Running, stream: bool) -> None:
    """Two run and two wait; whoever waits has no status line yet, in a stream as well."""
    sockets = [server.post_and_leave_open("/v1/completions", {**LONG, "stream": stream}) for _ in range(4)]
    server.wait_for(lambda stats: stats.num_running == 2 and stats.num_waiting == 2)
    sockets.pop().close()
    server.wait_for(lambda stats: stats.num_running == 2 and stats.num_waiting == 1)
    for one in sockets:
        one.close()
    server.wait_for(at_rest)


def test_several_sequences_of_several_prompts(server: Running) -> None:
    one = server.post_and_leave_open("/v1/completions", {**LONG, "prompt": ["a", "b", "c"], "n": 2})
    server.wait_for(lambda stats: stats.num_running + stats.num_waiting == 6)
    one.close()
    server.wait_for(at_rest)


def test_explain_knows_a_request_by_its_id(server: Running) -> None:
    one = server.post_and_leave_open("/v1/completions", LONG, {"X-Request-Id": "here"})
    server.wait_for(lambda stats: stats.num_running == 1)
    explained = server.http.get("/v1/requests/cmpl-here/explain")
    assert explained.status_code == 200 and explained.json()["status"] == "running"
    one.close()
    server.wait_for(at_rest)
    assert server.http.get("/v1/requests/cmpl-here/explain").status_code == 404


def test_a_request_id_is_unique_while_it_runs(server: Running) -> None:
    one = server.post_and_leave_open("/v1/completions", LONG, {"X-Request-Id": "twice"})
    server.wait_for(lambda stats: stats.num_running == 1)
    second = server.http.post("/v1/completions", json=LONG, headers={"X-Request-Id": "twice"})
    assert second.status_code == 400 and "exists already" in second.json()["error"]["message"]
    assert server.stats().num_running == 1
    one.close()
    server.wait_for(at_rest)
