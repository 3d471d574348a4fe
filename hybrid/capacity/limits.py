"""Limits: what pools of given sizes can do: how many requests of one length run at once, and what stops one more.

The planner and a starting engine ask the same here. Knows specs and sizes; no question, no hardware.
"""

from dataclasses import asdict, dataclass
from typing import Any

from hybrid.pools.ledger import Shortage
from hybrid.pools.sizing import Kinds, LifeUnits, MemoryBytes, Need, PoolSizes, concurrency, life_units, pool_bytes
from hybrid.pools.specs import ModelSpec
from hybrid.scheduler.config import SchedulerConfig

from .one_more import one_more

ROWS = "request row"


@dataclass(frozen=True, slots=True)
class Limits:
    """need: of one request at its full length, `life` in units, `request_bytes` without what all share.

    concurrency: such requests at once, to their last tokens. shortages: admission's answer to one more, whose pool that
    would take most of one request's memory binds.
    """

    spec: ModelSpec
    sizes: PoolSizes
    pools: MemoryBytes
    need: Need
    life: LifeUnits
    request_bytes: MemoryBytes
    concurrency: int
    shortages: tuple[Shortage, ...]
    binding_pool: str

    def __str__(self) -> str:
        """One line, as a starting engine prints it."""
        pools = {
            "full attention": self.pools.full,
            "sliding window": self.pools.window,
            "recurrent state": self.pools.state,
            "encoder": self.pools.encoder,
            "LoRA": self.pools.lora,
        }
        size = ", ".join(f"{pool} {size:,}" for pool, size in pools.items() if size)
        return (
            f"maximum concurrency for {self.need.max_total_tokens:,} tokens per request: {self.concurrency:,}; "
            f"the {self.binding_pool} pool binds; bytes: {size}"
        )

    def limits_document(self) -> dict[str, Any]:
        """Integers and strings, under the keys that `hybrid plan --json` has."""
        return {
            "concurrency": self.concurrency,
            "binding_pool": self.binding_pool,
            "shortages": [asdict(shortage) for shortage in self.shortages],
            "sizes": asdict(self.sizes),
            "pool_bytes": asdict(self.pools) | {"total": self.pools.total},
            "bytes_per_token": {"full": self.spec.full_bytes_per_token, "window": self.spec.window_bytes_per_token},
            "request_units": asdict(self.life),
            "request_bytes": asdict(self.request_bytes) | {"total": self.request_bytes.total},
        }


def limits(
    spec: ModelSpec,
    sizes: PoolSizes,
    config: SchedulerConfig,
    need: Need | None = None,
    lora_bytes_per_unit: int = 0,
    chunk_tokens: int = 0,
    shared_tokens: int = 0,
) -> Limits:
    """need: None: a request of max_model_len, and nothing else. chunk_tokens, shared_tokens: see `pools.sizing`."""
    need = need if need is not None else Need(sizes.max_model_len)
    kinds, block = Kinds.of(spec), sizes.block_size
    count = concurrency(need, sizes, kinds, chunk_tokens, shared_tokens)
    life = life_units(need, sizes, kinds)
    one = MemoryBytes(
        full=(life.full - (shared_tokens // block if kinds.full else 0)) * block * spec.full_bytes_per_token,
        window=life.window * block * spec.window_bytes_per_token,
        state=life.state * spec.state_bytes_per_slot,
        encoder=0,  # images are computed one after another: the encoder pool does not grow with the requests
    )
    shortages = one_more(count, need, sizes, kinds, config, chunk_tokens, shared_tokens) if count else ()
    return Limits(
        spec=spec,
        sizes=sizes,
        pools=pool_bytes(sizes, spec, lora_bytes_per_unit),
        need=need,
        life=life,
        request_bytes=one,
        concurrency=count,
        shortages=shortages,
        binding_pool=_binding(shortages, one),
    )


def _binding(shortages: tuple[Shortage, ...], one: MemoryBytes) -> str:
    """Rows where they lack, as no memory would help."""
    lacking = [shortage.pool for shortage in shortages]
    size = {"full attention": one.full, "sliding window": one.window, "recurrent state": one.state, ROWS: one.total + 1}
    return max(lacking, key=lambda pool: size.get(pool, 0), default=ROWS)
