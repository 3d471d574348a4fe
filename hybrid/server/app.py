"""The app: routes, middleware and the engine's life put together. Knows no command line and no signals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from hybrid import __version__
from hybrid.async_engine import AsyncEngine

from .care import care_router
from .chat import chat_router
from .completions import completions_router
from .errors import add_handlers
from .limits import LimitsMiddleware, RequestLimits
from .media import MediaFetcher, MediaPolicy
from .models import models_router
from .request_ids import RequestIds
from .service import ServerConfig, Service
from .tokenization import tokenization_router


def build_app(
    engine: AsyncEngine,
    config: ServerConfig,
    limits: RequestLimits | None = None,
    media: MediaPolicy | None = None,
) -> FastAPI:
    """The engine starts and stops with the app."""
    pictures = MediaFetcher(media if media is not None else MediaPolicy())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            await engine.stop()
            await pictures.aclose()

    app = FastAPI(
        title="hybrid",
        version=__version__,
        description="OpenAI's API over a hybrid language model.",
        lifespan=lifespan,
        docs_url="/docs",
        redoc_url=None,
    )
    service = Service(engine, config, pictures)
    app.include_router(chat_router(service))
    app.include_router(completions_router(service))
    app.include_router(models_router(service))
    app.include_router(tokenization_router(service))
    app.include_router(care_router(engine))
    add_handlers(app)
    _describe(app)
    # The last one added is the outermost.
    app.add_middleware(LimitsMiddleware, limits=limits if limits is not None else RequestLimits())
    app.add_middleware(RequestIds)
    return app


def _describe(app: FastAPI) -> None:
    """Mutates: the OpenAPI description without FastAPI's own 422, which is answered as 400 here."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        description = describe()
        for path in description["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        return description

    app.openapi = openapi  # type: ignore[method-assign]
