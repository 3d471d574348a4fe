"""Tracked: one live request as the scheduler follows it. Mutable; never leaves the scheduler."""

from dataclasses import dataclass, field

import numpy as np

from hybrid.pools.ledger import Ints, Shortage
from hybrid.pools.prefix_cache import NO_MATCH, Match, image_keys

from .plan import TokenIds
from .request import Gate, NewRequest


@dataclass(slots=True, eq=False)
class Tracked:
    """`known` are all known tokens while it waits; while it runs they live in its row of the table."""

    new: NewRequest
    seq: int  # arrival order
    arrival: float  # scheduler clock, seconds
    max_total_tokens: int
    known: TokenIds
    prompt_keys: Ints
    namespace: str
    gates: list[Gate]  # those not ready yet
    row: int | None = None
    rank: int = 0  # admission order; a larger one is retracted earlier
    wanted: list[int] = field(default_factory=list)  # resume points to take, ascending
    awaited: list[int] = field(default_factory=list)  # resume points that a step in flight writes
    images: dict[int, Ints] = field(default_factory=dict)  # index of a held image -> its encoder slots
    adapter_units: Ints | None = None
    num_cached_tokens: int | None = None  # of the first admission
    resumed_at: int = 0  # tokens that its last admission found in the cache
    lost_tokens: int = 0  # computed before the last retraction
    skips: int = 0
    failures: int = 0
    retractions: int = 0
    shortages: tuple[Shortage, ...] = ()
    waits_for: str = ""  # what it was last passed by for, where that is no shortage
    match: Match = NO_MATCH
    match_version: int = -1
    common: dict[str, int] = field(default_factory=dict)  # running request id -> common prefix length

    @property
    def request_id(self) -> str:
        return self.new.request_id

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_keys)

    @property
    def routing_key(self) -> str:
        return self.new.routing_key or (self.new.adapter.name if self.new.adapter is not None else "")

    def before_image(self, position: int) -> int:
        """`position`, or the start of the image into which it falls."""
        for image in self.new.images:
            if image.offset < position < image.offset + image.num_tokens:
                return image.offset
        return position

    def keys(self, tokens: TokenIds) -> Ints:
        """Prefix-cache keys of the first len(tokens) known tokens."""
        prompt = self.prompt_keys[: len(tokens)]
        if len(tokens) <= len(self.prompt_keys):
            return prompt
        return np.concatenate([prompt, tokens[len(self.prompt_keys) :].astype(np.int64)])


def track(new: NewRequest, seq: int, arrival: float, max_total_tokens: int) -> Tracked:
    """A fresh Tracked of a validated request."""
    keys = new.prompt_token_ids.astype(np.int64)
    for image in new.images:
        keys[image.offset : image.offset + image.num_tokens] = image_keys(image.mm_hash, image.num_tokens)
    adapter = new.adapter.lora_id if new.adapter is not None else 0
    return Tracked(
        new=new,
        seq=seq,
        arrival=arrival,
        max_total_tokens=max_total_tokens,
        known=new.prompt_token_ids,
        prompt_keys=keys,
        namespace=f"{adapter}/{new.cache_salt}",
        gates=list(new.gates),
    )
