"""Real servers on free ports, the bundled model behind them: in a thread, with a way to look at the engine, or as a
process, as users have them."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from hybrid.async_engine import AsyncEngine
from hybrid.engine import Engine
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import set_up
from hybrid.scheduler.stats import SchedulerStats
from hybrid.server.app import ServerOptions, build_server

T = TypeVar("T")

PATIENCE = 60.0  # seconds, on a busy machine


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()
        self.loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.listening.set()


class Running:
    """A server that runs; `url` is where."""

    def __init__(self, url: str, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.engine = engine
        self._loop = loop
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)

    def ask(self, question: Callable[[Engine], T]) -> T:
        """What the engine says between two steps."""
        return asyncio.run_coroutine_threadsafe(self.engine.inspect(question), self._loop).result(PATIENCE)

    def stats(self) -> SchedulerStats:
        return self.ask(lambda engine: engine.scheduler.stats())

    def post_and_leave_open(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> socket.socket:
        """A connection that has sent a request; nobody reads the answer."""
        content = json.dumps(body).encode()
        fields = {
            "Host": "here",
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        url = urlsplit(self.url)
        connection = socket.create_connection((url.hostname, url.port), PATIENCE)
        connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content)
        return connection

    def wait_for(self, condition: Callable[[SchedulerStats], bool]) -> None:
        """Until the engine is so, asked between its steps; fails after PATIENCE."""

        async def watch() -> None:
            while not condition(await self.engine.inspect(lambda engine: engine.scheduler.stats())):
                pass

        asyncio.run_coroutine_threadsafe(asyncio.wait_for(watch(), PATIENCE), self._loop).result()


@contextmanager
def serving(args: EngineArgs | None = None, options: ServerOptions | None = None) -> Iterator[Running]:
    """Until the context ends. Without arguments: the model "tiny"."""
    args = args if args is not None else EngineArgs(model="tiny", max_num_seqs=16, memory="64MiB", num_threads=1)
    options = options if options is not None else ServerOptions(served_model_name=("tiny", "also-tiny"))
    built = build_server(set_up(args), args, options)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = _Server(uvicorn.Config(built.app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            assert server.listening.wait(PATIENCE)
            running = Running(f"http://127.0.0.1:{listener.getsockname()[1]}", built.engine, server.loop)
            with running.http:
                yield running
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
    assert not thread.is_alive()


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`hybrid serve tiny` on a free port, and its URL, once it listens."""
    command = [sys.executable, "-c", "from hybrid.cli import main; main()", "serve", "tiny", "--port", "0"]
    with subprocess.Popen(
        [*command, "--memory", "64MiB", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    ) as running:
        assert running.stderr is not None
        try:
            for line in running.stderr:
                if found := re.search(r"running on (http://\S+)", line):
                    yield running, found[1]
                    break
            else:
                pytest.fail("the server ended before it listened")
        finally:
            running.kill()
