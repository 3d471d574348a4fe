"""Running the app: uvicorn with a shutdown that lets running requests finish. Knows no model."""

import asyncio
import logging
import signal
import socket
from types import FrameType

import uvicorn

from .app import Server

logger = logging.getLogger("uvicorn.error")  # beside what uvicorn says

END_SECONDS = 5  # for answers of requests that were just ended to reach their clients


class DrainingServer(uvicorn.Server):
    """The first SIGINT or SIGTERM: no new connections, running requests have `shutdown_timeout` seconds, then they end
    with an error. The second one ends everything at once."""

    def __init__(self, server: Server, *, host: str, port: int, shutdown_timeout: float) -> None:
        super().__init__(
            uvicorn.Config(
                server.app,
                host=host,
                port=port,
                timeout_graceful_shutdown=int(shutdown_timeout) + END_SECONDS,
                log_level="info",
            )
        )
        self._engine = server.engine
        self._shutdown_timeout = shutdown_timeout

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Mutates: called by uvicorn for both signals."""
        super().handle_exit(signal.SIGINT if self.should_exit else sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Mutates."""
        if running := len(self.server_state.tasks):
            logger.info(
                "Requests that run have %g s to finish: %d. A second signal ends them.", self._shutdown_timeout, running
            )
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(self._shutdown_timeout, self._engine.abort_all)
        try:
            await super().shutdown(sockets)
        finally:
            deadline.cancel()
