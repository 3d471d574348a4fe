"""The app: an engine, its routes and what stands before them put together. Knows no command line and no signals."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import FastAPI

from hybrid import __version__
from hybrid.async_engine import AsyncEngine
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import Setup, default_sampling_params
from hybrid.frontend.media import MediaFetcher, MediaPolicy
from hybrid.scheduler.explain import Explanation

from .adapters import Adapters
from .chat import chat_router
from .completions import completions_router
from .errors import add_handlers, documented
from .health import health_router
from .limits import LimitsMiddleware, RequestLimits
from .lora import lora_router
from .metrics import Metrics
from .models import models_router
from .observe import EffectiveLimits, observe_router
from .request_ids import RequestIds
from .service import ServerConfig, Service
from .tokenization import tokenization_router


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Choices about the server that are none of the engine's. served_model_name: none: the model's own."""

    served_model_name: Sequence[str] = ()
    max_logprobs: int = 20
    limits: RequestLimits = field(default_factory=RequestLimits)
    media: MediaPolicy = field(default_factory=MediaPolicy)


@dataclass(frozen=True, slots=True)
class Server:
    """`app` for uvicorn; it starts and stops `engine`."""

    app: FastAPI
    engine: AsyncEngine


def build_server(setup: Setup, args: EngineArgs, options: ServerOptions) -> Server:
    """setup: of `set_up(args)`; it belongs to the server from now on."""
    names = tuple(options.served_model_name) or (str(args.model),)
    metrics = Metrics(setup.engine.scheduler, names[0])
    engine = AsyncEngine(setup.engine, setup.processor, args.seed, metrics)
    pictures = MediaFetcher(options.media)
    config = ServerConfig(
        model_names=names,
        root=str(args.model),
        max_model_len=setup.sizes.max_model_len,
        vocab_size=setup.processor.vocab_size,
        defaults=default_sampling_params(setup.generation_defaults, None),
        max_logprobs=options.max_logprobs,
    )
    store = setup.engine.adapters
    service = Service(engine, config, pictures, Adapters(store) if store is not None else None)
    effective = EffectiveLimits(
        max_model_len=setup.sizes.max_model_len,
        max_num_seqs=setup.sizes.num_rows,
        max_num_batched_tokens=args.max_num_batched_tokens,
        block_size=setup.sizes.block_size,
    )
    app = _new_app(engine, pictures)
    for router in (
        chat_router(service),
        completions_router(service),
        models_router(service),
        lora_router(service),
        tokenization_router(service),
        health_router(engine),
        observe_router(metrics, effective, partial(_explain, engine), setup.pool_bytes, setup.limits.limits_document()),
    ):
        app.include_router(router, responses=documented())
    add_handlers(app)
    _describe(app)
    # The last one added is the outermost.
    app.add_middleware(
        LimitsMiddleware,
        limits=options.limits,
        num_waiting=lambda: metrics.snapshot.stats.num_waiting,
        expected_wait=lambda: metrics.snapshot.last_queue_time,
    )
    app.add_middleware(RequestIds)
    return Server(app, engine)


def _new_app(engine: AsyncEngine, pictures: MediaFetcher) -> FastAPI:
    """Without routes. It starts the engine, and stops both."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            await engine.stop()
            await pictures.aclose()

    return FastAPI(
        title="hybrid",
        version=__version__,
        description="OpenAI's API over a hybrid language model.",
        lifespan=lifespan,
        redoc_url=None,
    )


async def _explain(engine: AsyncEngine, request_id: str) -> Explanation | None:
    """Of several sequences the first one."""
    names = (request_id, f"{request_id}-0", f"{request_id}-0-0")
    return await engine.inspect(
        lambda inner: next((found for name in names if (found := inner.scheduler.explanation(name))), None)
    )


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
