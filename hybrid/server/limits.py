"""Limits: what a request must pass before any route sees it: key, body size, length of the queue, time.

Pure ASGI. Knows no route beyond their paths and no engine: numbers come through callables.
"""

import asyncio
import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, ClientGoneError

OPEN_PATHS = frozenset({"/health", "/metrics", "/ping", "/version"})  # without a key
GENERATING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
MAX_RETRY_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """api_keys: any of them opens the server; none: it is open. max_body_bytes: of one request's body. max_waiting:
    requests that may wait; None: any number. max_num_seqs: requests that run at once. timeout: seconds from a
    request's first byte to its answer's last; None: no end. Raises ValueError for what can never be right."""

    api_keys: Sequence[str] = ()
    max_body_bytes: int = 64 * 2**20
    max_waiting: int | None = None
    max_num_seqs: int = 1
    timeout: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.api_keys, str) or not all(isinstance(key, str) and key for key in self.api_keys):
            raise ValueError("api_keys must be a list of strings of one character or more")
        if self.max_body_bytes < 1:
            raise ValueError(f"max_body_bytes {self.max_body_bytes} is less than 1")
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs {self.max_num_seqs} is less than 1")
        if self.max_waiting is not None and self.max_waiting < 0:
            raise ValueError(f"max_waiting {self.max_waiting} is negative")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout {self.timeout} is not more than 0 seconds")


class LimitsMiddleware:
    """`app.add_middleware(LimitsMiddleware, limits=..., num_waiting=..., expected_wait=...)`.

    num_waiting: requests that wait in the engine, as last published. expected_wait: seconds that a new one would wait.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: RequestLimits,
        num_waiting: Callable[[], int] = lambda: 0,
        expected_wait: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._app = app
        self._limits = limits
        self._num_waiting = num_waiting
        self._expected_wait = expected_wait
        self._keys = [key.encode() for key in limits.api_keys]
        self._num_active = 0  # generating requests inside the app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and self._keys:
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._within_time(scope, receive, send)

    async def _within_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = ended = streams = False

        async def watched(message: Message) -> None:
            nonlocal started, ended, streams
            if message["type"] == "http.response.start":
                started = True
                streams = dict(message.get("headers", ())).get(b"content-type", b"").startswith(b"text/event-stream")
            elif message["type"] == "http.response.body":
                ended = not message.get("more_body", False)
            await send(message)

        try:
            async with asyncio.timeout(self._limits.timeout) as limit:
                await self._checked(scope, receive, watched)
        except TimeoutError:
            if not limit.expired():
                raise
            late = ApiError(504, f"the request took longer than {self._limits.timeout:g} seconds")
            if not started:
                await late.response()(scope, receive, send)
            elif streams and not ended:
                await send({"type": "http.response.body", "body": b"data: " + late.body() + b"\n\n"})
            elif not ended:
                raise  # the client must not take a part for the whole: the connection breaks

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        generates = scope["path"] in GENERATING_PATHS and scope["method"] == "POST"
        try:
            self._check_key(scope)
            if generates:
                self._check_queue()
            self._num_active += generates
            try:
                body = await _read_body(scope, receive, self._limits.max_body_bytes)
                await self._app(scope, _replay(body, receive), send)
            finally:
                self._num_active -= generates
        except ApiError as error:
            await error.response()(scope, receive, send)
        except ClientGoneError:
            pass

    def _check_key(self, scope: Scope) -> None:
        """Raises ApiError, 401."""
        if self._keys and scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS" and not self._has_key(scope):
            text = "a valid API key is needed: Authorization: Bearer KEY"
            raise ApiError(401, text, headers={"www-authenticate": "Bearer"})

    def _check_queue(self) -> None:
        """Raises ApiError, 429, for a request whose place in the queue would be too far back."""
        most, told = self._limits.max_waiting, self._num_waiting()
        # those inside that cannot all run wait, also before the engine has told
        place = max(told + 1 if told else 0, self._num_active + 1 - self._limits.max_num_seqs)
        if most is not None and place > most:
            seconds = min(MAX_RETRY_SECONDS, max(1, math.ceil(self._expected_wait())))
            text = f"{place - 1} requests wait, at most {most} may; retry in {seconds} seconds"
            raise ApiError(429, text, headers={"retry-after": str(seconds)})

    def _has_key(self, scope: Scope) -> bool:
        """In constant time per key: how much of a key is right does not show."""
        header = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, given = header.partition(b" ")
        matches = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


async def _read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises ClientGoneError, and ApiError, 413, when it is larger than `limit` bytes, whether or not
    its length was announced."""
    too_large = ApiError(413, f"the body is larger than {limit} bytes", headers={"connection": "close"})
    announced = dict(scope["headers"]).get(b"content-length", b"")
    if announced.isdigit() and int(announced) > limit:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, then what comes after it."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
