"""GET /health, /ping and /version."""

from fastapi import APIRouter, Response
from pydantic import BaseModel

from hybrid import __version__
from hybrid.async_engine import AsyncEngine


class Version(BaseModel):
    """Of this program."""

    version: str


def health_router(engine: AsyncEngine) -> APIRouter:
    """The routes, over this engine."""
    router = APIRouter(tags=["Health"])

    @router.get("/health", response_class=Response)
    async def health() -> Response:
        """200 as long as the engine runs."""
        if engine.error is not None:
            raise engine.error
        return Response()

    for method in ("GET", "POST"):  # one route each, so that each has its own name in the description
        router.add_api_route("/ping", health, methods=[method], response_class=Response)

    @router.get("/version")
    async def version() -> Version:
        """The version of this program."""
        return Version(version=__version__)

    return router
