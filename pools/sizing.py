"""Sizing and life needs: how many units each pool has, and how many one request may ever use. Pure arithmetic.

Start-up checks, refusal of what can never fit, admission and the planner call the same functions here.
"""

from dataclasses import dataclass, replace

from .ledger import Shortage
from .specs import LORA_RANK_UNIT, ModelSpec
from .window import unsplit_window, window_quota

CAPACITIES = ("num_rows", "num_full_blocks", "num_window_blocks", "num_state_slots", "encoder_tokens", "lora_units")


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Capacities of the six pools, and the shape facts that their arithmetic needs. Blocks hold `block_size` tokens."""

    num_rows: int
    num_full_blocks: int
    num_window_blocks: int
    num_state_slots: int
    encoder_tokens: int
    lora_units: int
    block_size: int
    sliding_window: int  # 0: no sliding-window layers
    max_model_len: int
    lookahead: int = 0  # tokens in flight beyond the next one: plans in flight - 1, or drafts

    def __post_init__(self) -> None:
        for name in ("num_rows", "block_size", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")
        for name in CAPACITIES[1:]:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative")


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which kinds of layer memory a model uses at all."""

    full: bool
    window: bool
    state: bool

    @classmethod
    def of(cls, spec: ModelSpec) -> "Kinds":
        return cls(spec.full_bytes_per_token > 0, spec.sliding_window > 0, spec.state_bytes_per_slot > 0)


@dataclass(frozen=True, slots=True)
class Need:
    """What one request asks for over its life. `max_total_tokens`: prompt plus the longest permitted output.
    `unsplit_images`: each image is computed as one chunk."""

    max_total_tokens: int
    image_tokens: tuple[int, ...] = ()
    lora_rank: int = 0
    unsplit_images: bool = False


@dataclass(frozen=True, slots=True)
class LifeUnits:
    """A Need in each pool's own units: the most that the request holds at once when it runs alone."""

    rows: int
    full: int
    window: int
    state: int
    encoder: int
    lora: int


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def lora_units(rank: int) -> int:
    """Rank units of an adapter of this rank."""
    return -(-rank // LORA_RANK_UNIT)


def life_units(need: Need, sizes: PoolSizes, kinds: Kinds) -> LifeUnits:
    """What `need` costs. Images are held one after the other, so the largest counts."""
    total, image = need.max_total_tokens, max(need.image_tokens, default=0)
    window = window_quota(sizes.sliding_window, sizes.block_size, sizes.lookahead, total) if kinds.window else 0
    if kinds.window and need.unsplit_images and image:
        window = max(window, unsplit_window(sizes.sliding_window, sizes.block_size, image, total))
    return LifeUnits(
        rows=1,
        full=blocks_for(total, sizes.block_size) if kinds.full else 0,
        window=window,
        state=1 if kinds.state else 0,
        encoder=image,
        lora=lora_units(need.lora_rank),
    )


POOL_UNITS = {
    "request row": "row",
    "full attention": "block",
    "sliding window": "block",
    "recurrent state": "slot",
    "encoder": "token",
    "LoRA": "rank unit",
}


def never_fits(need: Need, sizes: PoolSizes, kinds: Kinds) -> tuple[Shortage, ...]:
    """The pools that can never hold `need`, however empty they are; () if it fits."""
    units = life_units(need, sizes, kinds)
    rows = (
        ("request row", units.rows, sizes.num_rows),
        ("full attention", units.full, sizes.num_full_blocks),
        ("sliding window", units.window, sizes.num_window_blocks),
        ("recurrent state", units.state, sizes.num_state_slots),
        ("encoder", units.encoder, sizes.encoder_tokens),
        ("LoRA", units.lora, sizes.lora_units),
    )
    return tuple(
        Shortage(name, POOL_UNITS[name], needed, capacity, capacity, never=True)
        for name, needed, capacity in rows
        if needed > capacity
    )


NULL_BLOCKS = 1  # of zeros, that the runner keeps behind the blocks of each attention layer; nobody owns them


@dataclass(frozen=True, slots=True)
class MemoryBytes:
    """Bytes of each pool at given sizes."""

    full: int
    window: int
    state: int
    encoder: int
    lora: int = 0

    @property
    def total(self) -> int:
        return self.full + self.window + self.state + self.encoder + self.lora


def pool_bytes(sizes: PoolSizes, spec: ModelSpec, lora_bytes_per_unit: int = 0) -> MemoryBytes:
    """Device bytes of the pools, null blocks included: exactly those of the runner's tensors."""
    return MemoryBytes(
        full=(sizes.num_full_blocks + NULL_BLOCKS) * sizes.block_size * spec.full_bytes_per_token,
        window=(sizes.num_window_blocks + NULL_BLOCKS) * sizes.block_size * spec.window_bytes_per_token,
        state=sizes.num_state_slots * spec.state_bytes_per_slot,
        encoder=sizes.encoder_tokens * spec.encoder.bytes_per_token if spec.encoder is not None else 0,
        lora=sizes.lora_units * lora_bytes_per_unit,
    )


USUAL_IMAGE = 1024  # tokens: about a megapixel in models whose images keep their size


def default_encoder_tokens(spec: ModelSpec, max_num_seqs: int) -> int:
    """Of the encoder pool where nobody says: a picture for each of up to 16 requests, 4 at least. Pictures count with
    at most USUAL_IMAGE tokens, but the largest image has room."""
    if spec.encoder is None:
        return 0
    most = spec.encoder.max_tokens_per_image
    picture = spec.encoder.max_tokens_per_picture or most
    return max(most, min(max(max_num_seqs, 4), 16) * min(picture, USUAL_IMAGE))


RESUME_POINT_SHARE = 0.25  # of what is left after promises and one request of full length
MAX_RESUME_POINTS_PER_SEQ = 64


def size_pools(
    spec: ModelSpec,
    memory_bytes: int,
    *,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    max_plans_in_flight: int = 1,
    num_draft_tokens: int = 0,
    encoder_tokens: int | None = None,
    lora_units: int = 0,
) -> PoolSizes:
    """Divide `memory_bytes` among the pools.

    First what `max_num_seqs` requests are promised: a state and a window each, one token budget per plan in flight for
    chunks in the window pool, images; and full-attention blocks for one request of `max_model_len`. A share of what is
    left keeps cached resume points (a state slot and a window each), the rest becomes full-attention blocks. Where
    memory is short, promises shrink towards one request.

    Raises ValueError naming pool, units needed and there, when one request of max_model_len does not fit.
    """
    kinds = Kinds.of(spec)
    lookahead = max(max_plans_in_flight - 1, num_draft_tokens)
    images = encoder_tokens if encoder_tokens is not None else default_encoder_tokens(spec, max_num_seqs)
    quota = window_quota(spec.sliding_window, block_size, lookahead, max_model_len) if kinds.window else 0
    longest = blocks_for(max_model_len, block_size)
    block_bytes = spec.full_bytes_per_token * block_size

    def promised(seqs: int) -> PoolSizes:
        chunks = min(blocks_for(max_num_batched_tokens, block_size) * max_plans_in_flight, longest * seqs)
        return PoolSizes(
            num_rows=max_num_seqs,
            num_full_blocks=0,
            num_window_blocks=seqs * quota + chunks if kinds.window else 0,
            num_state_slots=seqs if kinds.state else 0,
            encoder_tokens=images,
            lora_units=lora_units,
            block_size=block_size,
            sliding_window=spec.sliding_window,
            max_model_len=max_model_len,
            lookahead=lookahead,
        )

    seqs = max_num_seqs
    while seqs > 1 and memory_bytes < pool_bytes(promised(seqs), spec).total + longest * block_bytes:
        seqs //= 2
    sizes = promised(seqs)
    left = memory_bytes - pool_bytes(sizes, spec).total
    if left < 0:
        need = memory_bytes - left
        why = f"memory of {memory_bytes} bytes does not hold one request: bounded pools alone need {need}"
        embeddings = pool_bytes(sizes, spec).encoder
        if embeddings > memory_bytes // 2:
            why += f", of which {embeddings} are for {images} image tokens (encoder_tokens)"
        raise ValueError(why)
    point_bytes = spec.state_bytes_per_slot + quota * block_size * spec.window_bytes_per_token
    if point_bytes:
        spare = max(0, left - longest * block_bytes)
        share = int(spare * RESUME_POINT_SHARE) if kinds.full else spare
        points = min(share // point_bytes, MAX_RESUME_POINTS_PER_SEQ * max_num_seqs)
        sizes = replace(
            sizes,
            num_window_blocks=sizes.num_window_blocks + points * quota,
            num_state_slots=sizes.num_state_slots + points if kinds.state else 0,
        )
        left -= points * point_bytes
    if kinds.full:
        sizes = replace(sizes, num_full_blocks=min(left // block_bytes, 2 * longest * max_num_seqs))
    for shortage in never_fits(Need(max_model_len), sizes, kinds):
        raise ValueError(f"max_model_len {max_model_len} does not fit: {shortage}")
    return sizes


def sizes_for(
    num_seqs: int,
    need: Need,
    sizes: PoolSizes,
    kinds: Kinds,
    chunk_tokens: int,
    image_pool_tokens: int = 0,
    shared_tokens: int = 0,
) -> PoolSizes:
    """The smallest pools in which `num_seqs` requests of one `need` run at once to their last token.

    sizes: shape facts (its capacities are not read). chunk_tokens: of prefill in flight that the window pool holds
    beside every window; a chunk shrinks to the room there is. image_pool_tokens: at least so many in the encoder pool.
    shared_tokens: with which every prompt begins; they are kept once, with a resume point at their end.
    """
    life = life_units(need, sizes, kinds)
    chunk = blocks_for(chunk_tokens, sizes.block_size)
    shared = shared_tokens // sizes.block_size if kinds.full else 0  # the block in which they end is copied
    beginning = blocks_for(shared_tokens, sizes.block_size)
    points = 1 if shared_tokens else 0
    return replace(
        sizes,
        num_rows=max(1, num_seqs),
        num_full_blocks=(beginning if kinds.full else 0) + num_seqs * (life.full - shared),
        num_window_blocks=num_seqs * life.window + min(life.window, beginning) + chunk if kinds.window else 0,
        num_state_slots=(num_seqs + points) * life.state,
        encoder_tokens=max(life.encoder, image_pool_tokens),
        lora_units=max(life.lora, sizes.lora_units),
    )


def concurrency(need: Need, sizes: PoolSizes, kinds: Kinds, chunk_tokens: int = 0, shared_tokens: int = 0) -> int:
    """How many requests of one `need` run at once to their last token in pools of these sizes: the largest number whose
    `sizes_for` they hold. chunk_tokens, shared_tokens: as there."""
    low, high = 0, sizes.num_rows + 1
    while high - low > 1:  # low fits, high does not
        middle = (low + high) // 2
        wanted = sizes_for(middle, need, sizes, kinds, chunk_tokens, 0, shared_tokens)
        fits = all(getattr(wanted, name) <= getattr(sizes, name) for name in CAPACITIES)
        low, high = (middle, high) if fits else (low, middle)
    return low
