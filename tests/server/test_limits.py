"""Requests over real HTTP against a minimal app behind the limits."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from hybrid.server.limits import LimitsMiddleware, RequestLimits
from tests.server.http import served


def app_with(limits: RequestLimits, waiting: int = 0) -> FastAPI:
    app = FastAPI()
    app.add_middleware(LimitsMiddleware, limits=limits, num_waiting=lambda: waiting, expected_wait=lambda: 2.5)

    @app.post("/v1/completions")
    async def completions(request: Request) -> int:
        return len(await request.body())

    @app.get("/v1/models")
    @app.get("/health")
    @app.get("/metrics")
    async def fine() -> str:
        return "fine"

    @app.get("/never")
    async def never() -> None:
        await asyncio.Event().wait()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            yield "data: 1\n\n"
            await asyncio.Event().wait()

        return StreamingResponse(events(), media_type="text/event-stream")

    return app


def test_any_key_opens_and_health_and_metrics_are_open() -> None:
    with served(app_with(RequestLimits(api_keys=["one", "two"]))) as base, httpx.Client(base_url=base) as client:
        for header, status in (
            ({"Authorization": "Bearer one"}, 200),
            ({"authorization": "bearer two"}, 200),
            ({"Authorization": "Bearer on"}, 401),
            ({"Authorization": "Basic one"}, 401),
            ({}, 401),
        ):
            assert client.get("/v1/models", headers=header).status_code == status
        assert client.get("/v1/models").json()["error"]["type"] == "authentication_error"
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200


def test_large_bodies_are_refused_announced_or_not() -> None:
    def pieces(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield bytes(10)

    with served(app_with(RequestLimits(max_body_bytes=100))) as base:
        assert httpx.post(f"{base}/v1/completions", content=bytes(100)).json() == 100
        assert httpx.post(f"{base}/v1/completions", content=pieces(10)).json() == 100
        for content in (bytes(101), pieces(11)):
            refused = httpx.post(f"{base}/v1/completions", content=content)
            assert refused.status_code == 413
            assert "100 bytes" in refused.json()["error"]["message"]


@pytest.mark.parametrize(("waiting", "status"), [(0, 200), (2, 200), (3, 429), (9, 429)])
def test_a_full_queue_says_when_to_come_again(waiting: int, status: int) -> None:
    with served(app_with(RequestLimits(max_waiting=3, max_num_seqs=4), waiting)) as base:
        answer = httpx.post(f"{base}/v1/completions", content=b"{}")
        assert answer.status_code == status
        if status == 429:
            assert answer.headers["retry-after"] == "3"
            assert answer.json()["error"]["type"] == "rate_limit_error"
        assert httpx.get(f"{base}/v1/models").status_code == 200


def test_a_burst_is_counted_before_the_engine_tells() -> None:
    async def run() -> list[int]:
        limits = RequestLimits(max_waiting=1, max_num_seqs=2)
        entered, release = asyncio.Semaphore(0), asyncio.Event()

        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            entered.release()
            await release.wait()

        middleware = LimitsMiddleware(inner, limits)
        statuses: list[int] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(int(str(message["status"])))

        scope: Scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        tasks = [asyncio.create_task(middleware(scope, receive, send)) for _ in range(5)]
        for _ in range(3):
            await entered.acquire()
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert done
        release.set()
        await asyncio.gather(*tasks)
        return statuses

    assert asyncio.run(run()) == [429, 429]


def test_what_takes_too_long_ends_with_an_error() -> None:
    with served(app_with(RequestLimits(timeout=1.0))) as base:
        late = httpx.get(f"{base}/never")
        assert late.status_code == 504 and late.json()["error"]["type"] == "timeout_error"
        stream = httpx.get(f"{base}/stream")
        assert stream.status_code == 200
        assert stream.text.startswith("data: 1\n\n") and "timeout_error" in stream.text


@pytest.mark.parametrize(
    "wrong", [{"api_keys": "key"}, {"api_keys": [""]}, {"max_body_bytes": 0}, {"max_waiting": -1}, {"timeout": 0}]
)
def test_wrong_limits_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RequestLimits(**wrong)  # type: ignore[arg-type]
