"""X-Request-Id: every request has one, its own or a new one, and every answer tells it."""

import re
from uuid import uuid4

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
_USABLE = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestIds:
    """ASGI middleware. An id that has other characters than letters, digits, `.`, `_` and `-` is replaced."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _USABLE.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, tell)


def request_id_of(request: Request) -> str:
    """The id that the middleware gave."""
    request_id = request.state.request_id
    assert isinstance(request_id, str)
    return request_id
