"""Server-sent events, and work that ends when its client goes. Knows no request's contents."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from .errors import ClientGoneError, as_api_error

T = TypeVar("T")

# Of each event, as OpenAPI before 3.2 has it.
DESCRIBED_EVENTS = {
    "text/event-stream": {
        "schema": {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
    }
}
DONE = b"data: [DONE]\n\n"


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises. Raises ClientGoneError, with `work` cancelled, when the client goes first."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: BaseModel) -> bytes:
    """One event; fields that were not set are left out."""
    return b"data: " + data.model_dump_json(exclude_unset=True).encode() + b"\n\n"


class EventStream(Response):
    """Events as they come, then [DONE]. An error ends them with an event of its own.

    `close` is called at the end, whatever happens, also when the client goes while nothing comes.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send(send))
        except (ClientGoneError, OSError):
            pass
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for data in self._events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except OSError:
                raise
            except Exception as error:
                data = b"data: " + as_api_error(error).body() + b"\n\n"
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": DONE, "more_body": False})
        finally:
            await self._events.aclose()
