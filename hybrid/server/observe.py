"""Routes that show the engine's inside: GET /metrics, /v1/pools, /v1/requests/{id}/explain. They change nothing."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from hybrid.pools.sizing import POOL_UNITS
from hybrid.scheduler.explain import Explanation
from hybrid.scheduler.stats import SchedulerStats

from .error_body import error_body
from .metrics import Metrics


class PoolState(BaseModel):
    """One pool's ledger: free + reserved + held + cached + pinned + pending = capacity."""

    pool: str = Field(description="name of the pool")
    unit: str = Field(description="what is counted: row, block, slot, token or rank unit")
    capacity: int = Field(description="units in all")
    free: int = Field(description="units that nobody uses or remembers")
    reserved: int = Field(description="units claimed by an admission that is being decided")
    held: int = Field(description="units that running requests use")
    cached: int = Field(description="units kept for later requests; evictable")
    pinned: int = Field(description="cached units that running requests use")
    pending: int = Field(description="released units that a step in flight may still touch")
    bytes: int | None = Field(None, description="of the whole pool; of request rows the tables on the host")


class EffectiveLimits(BaseModel):
    """What the engine really works with, after it was fitted into memory."""

    max_model_len: int = Field(description="most tokens of prompt and output of one request")
    max_num_seqs: int = Field(description="most requests that run at once")
    max_num_batched_tokens: int = Field(description="most tokens per step")
    block_size: int = Field(description="tokens per block of the attention pools")


class PoolsResponse(BaseModel):
    pools: list[PoolState]
    limits: EffectiveLimits
    plan: dict[str, Any] = Field(description="what the pools can do for requests of max_model_len: hybrid plan --json")


class ExplainResponse(BaseModel):
    id: str
    status: str = Field(description='"running" or "waiting"')
    reason: str = Field(description="one sentence: where the request is, and what holds it back")
    holds: dict[str, int] = Field(description="units by pool, those shared with other requests included")


def pools_response(
    stats: SchedulerStats,
    limits: EffectiveLimits,
    pool_bytes: Mapping[str, int] | None = None,
    plan: Mapping[str, Any] | None = None,
) -> PoolsResponse:
    """pool_bytes: by pool, where known. plan: of the engine's `Limits`."""
    sizes = pool_bytes or {}
    return PoolsResponse(
        pools=[
            PoolState(
                pool=pool,
                unit=POOL_UNITS[pool],
                capacity=ledger.total,
                free=ledger.free,
                reserved=ledger.reserved,
                held=ledger.held,
                cached=ledger.cached,
                pinned=ledger.pinned,
                pending=ledger.pending,
                bytes=sizes.get(pool),
            )
            for pool, ledger in stats.ledgers.items()
        ],
        limits=limits,
        plan=dict(plan or {}),
    )


def observe_router(
    metrics: Metrics,
    limits: EffectiveLimits,
    explain: Callable[[str], Awaitable[Explanation | None]],
    pool_bytes: Mapping[str, int] | None = None,
    plan: Mapping[str, Any] | None = None,
) -> APIRouter:
    """explain: asks `Scheduler.explanation` in the thread that drives the engine."""
    router = APIRouter(tags=["observe"])

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def get_metrics() -> Response:
        return Response(metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    @router.get("/v1/pools")
    def get_pools() -> PoolsResponse:
        return pools_response(metrics.snapshot.stats, limits, pool_bytes, plan)

    @router.get("/v1/requests/{request_id}/explain", response_model=ExplainResponse, responses={404: {}})
    async def get_explain(request_id: str) -> ExplainResponse | JSONResponse:
        found = await explain(request_id)
        if found is None:
            text = f"request {request_id!r} is not here: it never was, or it has ended"
            return JSONResponse(error_body(text, "not_found_error", 404, "request_id"), status_code=404)
        status = "running" if found.running else "waiting"
        return ExplainResponse(id=found.request_id, status=status, reason=found.reason, holds=found.holds)

    return router
