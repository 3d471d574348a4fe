"""Routes that show the engine's inside: GET /metrics, /v1/pools, /v1/requests/{id}/explain. They change nothing."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from hybrid.pools.sizing import POOL_UNITS
from hybrid.scheduler.explain import Explanation

from .errors import ApiError
from .metrics import COLUMNS, Metrics


class PoolState(BaseModel):
    """One pool's ledger: free + reserved + held + cached + pinned + pending = capacity."""

    pool: str = Field(description="Name of the pool.")
    unit: str = Field(description="What is counted: row, block, slot, token or rank unit.")
    capacity: int = Field(description="Units in all.")
    free: int = Field(description="Units that nobody uses or remembers.")
    reserved: int = Field(description="Units claimed by an admission that is being decided.")
    held: int = Field(description="Units that running requests use.")
    cached: int = Field(description="Units kept for later requests; evictable.")
    pinned: int = Field(description="Cached units that running requests use.")
    pending: int = Field(description="Released units that a step in flight may still touch.")
    bytes: int = Field(description="Of the whole pool; of request rows the tables on the host.")


class EffectiveLimits(BaseModel):
    """What the engine really works with, after it was fitted into memory."""

    max_model_len: int = Field(description="Most tokens of prompt and output of one request.")
    max_num_seqs: int = Field(description="Most requests that run at once.")
    max_num_batched_tokens: int = Field(description="Most tokens per step.")
    block_size: int = Field(description="Tokens per block of the attention pools.")


class PoolsResponse(BaseModel):
    pools: list[PoolState]
    limits: EffectiveLimits
    plan: dict[str, Any] = Field(description="what the pools can do for requests of max_model_len: hybrid plan --json")


class ExplainResponse(BaseModel):
    id: str
    status: str = Field(description='"running" or "waiting"')
    reason: str = Field(description="One sentence: where the request is, and what holds it back.")
    holds: dict[str, int] = Field(description="Units by pool, those shared with other requests included.")


def observe_router(
    metrics: Metrics,
    limits: EffectiveLimits,
    explain: Callable[[str], Awaitable[Explanation | None]],
    pool_bytes: Mapping[str, int],
    plan: Mapping[str, Any],
) -> APIRouter:
    """explain: asks `Scheduler.explanation` in the thread that drives the engine. pool_bytes: by pool."""
    router = APIRouter(tags=["Observe"])

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def get_metrics() -> Response:
        """Counters, gauges and histograms for Prometheus."""
        return Response(metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    @router.get("/v1/pools")
    def get_pools() -> PoolsResponse:
        """The ledgers of the six pools, and the limits that follow from their sizes."""
        pools = [
            PoolState(
                pool=pool,
                unit=POOL_UNITS[pool],
                capacity=ledger.total,
                bytes=pool_bytes[pool],
                **{column: getattr(ledger, column) for column in COLUMNS},
            )
            for pool, ledger in metrics.snapshot.stats.ledgers.items()
        ]
        return PoolsResponse(pools=pools, limits=limits, plan=dict(plan))

    @router.get("/v1/requests/{request_id}/explain")
    async def get_explain(request_id: str) -> ExplainResponse:
        """Where a request is, and what holds it back."""
        found = await explain(request_id)
        if found is None:
            text = f"request {request_id!r} is not here: it never was, or it has ended"
            raise ApiError(404, text, param="request_id")
        status = "running" if found.running else "waiting"
        return ExplainResponse(id=found.request_id, status=status, reason=found.reason, holds=found.holds)

    return router
