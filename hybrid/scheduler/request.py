"""NewRequest: what a caller hands to `Scheduler.add`. Frozen facts; nothing here changes while the request lives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from hybrid.adapters.adapter import Adapter

from .plan import TokenIds


class GateStatus(Enum):
    """Where something that a request waits for stands: a grammar, an adapter, an image, a remote state."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Gate:
    """One thing that must be ready before the request may ask for memory.

    `poll()` is cheap and does not block; on FAILED, `error()` says why in one sentence. `deadline` is in the
    scheduler clock's seconds; None waits for ever.
    """

    name: str
    poll: Callable[[], GateStatus]
    error: Callable[[], str] = lambda: "failed"
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class ImageInput:
    """An image's place in the prompt: tokens offset .. offset + num_tokens - 1 are its placeholders. Equal `mm_hash`
    means equal embeddings, so also equal `num_tokens`."""

    mm_hash: str
    offset: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request. Lengths in tokens; `resume_hints` are prompt positions at which a later prompt is likely to branch
    off (the ends of chat messages)."""

    request_id: str
    prompt_token_ids: TokenIds  # [num_prompt_tokens]
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    images: tuple[ImageInput, ...] = ()
    adapter: Adapter | None = None
    priority: int = 0  # lower runs earlier
    routing_key: str = ""
    cache_salt: str = ""
    resume_hints: tuple[int, ...] = ()
    gates: tuple[Gate, ...] = field(default=())
    needs_grammar: bool = False
    enable_prefix_caching: bool = True
