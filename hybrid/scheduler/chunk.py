"""Chunk: how many tokens of a prefill fit into this step, and what they take of each pool.

A chunk shrinks to the room there is (token budget, images, window, full attention) before it is refused. Continuing and
admission both size their chunks here. Sizing is pure but for pins of cached images inside the given transaction.
"""

from dataclasses import dataclass

from hybrid.pools.ledger import Ints, Shortage, UnitPool
from hybrid.pools.memory import Memory
from hybrid.pools.sizing import blocks_for
from hybrid.pools.transaction import Claim, Transaction

from .builder import PlanBuilder
from .config import SchedulerConfig
from .plan import EncodeImage, ImageSpan
from .tracked import Tracked


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands: tokens computed, logical blocks it has, first window block, window charge so far and
    promised."""

    start: int
    num_blocks: int
    window_first: int
    window_charge: int
    window_quota: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A grantable chunk: `blocks` new logical blocks, images to share (index, units) and to encode (index)."""

    start: int
    count: int
    blocks: int
    window_charge: int  # the row's charge while this chunk is computed
    shared_images: tuple[tuple[int, Ints], ...]
    new_images: tuple[int, ...]


def size_chunk(
    memory: Memory,
    config: SchedulerConfig,
    builder: PlanBuilder,
    transaction: Transaction,
    request: Tracked,
    place: Place,
    want: int,
) -> Chunk | tuple[Shortage, ...]:
    """The longest chunk of at most `want` tokens from `place.start` on; the shortages where not even one token fits."""
    size = memory.sizes.block_size
    start = place.start
    count = min(want, builder.token_budget, config.chunk_limit)
    if count <= 0:
        return ()
    shortages: list[Shortage] = []
    shared, new, count = _images(memory, config, builder, transaction, request, start, count, shortages)
    if memory.kinds.window and count > 0:
        room = place.window_charge + max(0, memory.window.available())
        most = (place.window_first + room) * size - start
        if most < 1 or room < place.window_quota:
            shortages.append(_short(memory.window, max(1, place.window_quota - place.window_charge)))
            return tuple(shortages)
        count = min(count, most)
    for kind, pool in ((memory.kinds.full, memory.full), (memory.kinds.window, memory.window)):
        if kind and count > 0:
            most = (place.num_blocks + max(0, pool.obtainable())) * size - start
            if most < 1:
                shortages.append(_short(pool, 1))
            count = min(count, most)
    if config.disable_chunked_mm_input and count > 0:
        count = _end_before_split_image(request, start, count)
        if count == 0:  # the pools have no room for the image that begins here
            end = next(i.offset + i.num_tokens for i in request.new.images if i.offset == start)
            shortages += _lacks(memory, place, blocks_for(end, size))
    for index, units in [(i, units) for i, units in shared if request.new.images[i].offset >= start + count]:
        transaction.unpin(memory.encoder, units)
        shared.remove((index, units))
    if count <= 0:
        return tuple(shortages)
    blocks = (
        max(0, blocks_for(start + count, size) - place.num_blocks) if memory.kinds.full or memory.kinds.window else 0
    )
    used = place.num_blocks + blocks - place.window_first
    return Chunk(
        start=start,
        count=count,
        blocks=blocks,
        window_charge=max(place.window_charge, place.window_quota, used) if memory.kinds.window else 0,
        shared_images=tuple(shared),
        new_images=tuple(i for i in new if request.new.images[i].offset < start + count),
    )


def _end_before_split_image(request: Tracked, start: int, count: int) -> int:
    """`count`, cut so that no image is computed in part."""
    for image in request.new.images:
        if image.offset < start + count < image.offset + image.num_tokens:
            return max(0, image.offset - start)
    return count


def _lacks(memory: Memory, place: Place, blocks: int) -> list[Shortage]:
    """What keeps `place` from having so many logical blocks. Pure."""
    growth = blocks - place.num_blocks
    charge = max(0, blocks - place.window_first - place.window_charge)
    full = memory.full.shortage(growth) if memory.kinds.full else None
    window = memory.window.shortage(charge, growth) if memory.kinds.window else None
    return [shortage for shortage in (full, window) if shortage is not None]


def _short(pool: UnitPool, needed: int) -> Shortage:
    available = max(0, min(pool.available(), pool.obtainable()))
    return Shortage(pool.name, pool.unit, needed, available, pool.capacity, needed > pool.capacity)


def _images(
    memory: Memory,
    config: SchedulerConfig,
    builder: PlanBuilder,
    transaction: Transaction,
    request: Tracked,
    start: int,
    count: int,
    shortages: list[Shortage],
) -> tuple[list[tuple[int, Ints]], list[int], int]:
    """Images that tokens start .. start + count - 1 touch and that are not held yet; `count` ends before the first
    image that cannot be had in this step."""
    shared: list[tuple[int, Ints]] = []
    new: list[int] = []
    new_tokens = 0
    new_hashes: set[str] = set()
    for index, image in enumerate(request.new.images):
        end = image.offset + image.num_tokens
        if end <= start:
            continue
        if image.offset >= start + count:
            break
        if config.disable_chunked_mm_input and start + count < end:
            return shared, new, _end_before_split_image(request, start, count)
        if index in request.images:
            continue
        units = memory.encoder.get(image.mm_hash)
        if units is not None:
            transaction.pin(memory.encoder, units)
            if memory.encoder.shortage(new_tokens) is not None:  # its pin takes the room of a new image before it
                transaction.unpin(memory.encoder, units)
                return shared, new, max(0, image.offset - start)
            shared.append((index, units))
        elif image.mm_hash in new_hashes:
            new.append(index)
        else:
            new_tokens += image.num_tokens
            shortage = memory.encoder.shortage(new_tokens)
            if shortage is not None and image.offset <= start:  # else the chunk ends before it
                shortages.append(shortage)
            if shortage is not None or new_tokens > builder.encoder_budget:
                return shared, new, max(0, image.offset - start)
            new_hashes.add(image.mm_hash)
            new.append(index)
    return shared, new, count


def claims(memory: Memory, chunk: Chunk, place: Place, request: Tracked) -> tuple[Claim, Claim, Claim]:
    """What the chunk takes of full attention, window and encoder, in this order."""
    hashes = {request.new.images[i].mm_hash: request.new.images[i].num_tokens for i in chunk.new_images}
    return (
        Claim.of(memory.full, chunk.blocks if memory.kinds.full else 0),
        Claim(memory.window, chunk.window_charge - place.window_charge, chunk.blocks if memory.kinds.window else 0),
        Claim.of(memory.encoder, sum(hashes.values())),
    )


def attach_images(memory: Memory, builder: PlanBuilder, request: Tracked, chunk: Chunk, encoder_units: Ints) -> None:
    """Mutates: the request holds the chunk's images; new ones are put into the encoder pool and the plan."""
    for index, units in chunk.shared_images:
        request.images[index] = units
        memory.encoder.use(request.new.images[index].mm_hash)
    given = 0
    for index in chunk.new_images:
        image = request.new.images[index]
        present = memory.encoder.get(image.mm_hash)
        if present is not None:  # the same image twice in one prompt
            memory.encoder.share(present)
            request.images[index] = present
            continue
        units = encoder_units[given : given + image.num_tokens]
        given += image.num_tokens
        memory.encoder.insert(image.mm_hash, units)
        request.images[index] = units
        builder.encode.append(EncodeImage(image.mm_hash, request.request_id, units))
        builder.encoder_budget -= image.num_tokens


def add_image_spans(builder: PlanBuilder, request: Tracked, chunk: Chunk) -> None:
    """Mutates: which tokens of the chunk read which embeddings."""
    assert request.row is not None
    end = chunk.start + chunk.count
    for index, units in request.images.items():
        image = request.new.images[index]
        low, high = max(image.offset, chunk.start), min(image.offset + image.num_tokens, end)
        if low < high:
            builder.image_spans.append(ImageSpan(request.row, low, units[low - image.offset : high - image.offset]))


def release_images(memory: Memory, request: Tracked, processed: int, until_step: int = 0) -> None:
    """Mutates: images whose last token has been computed (or all, with processed = the prompt's length) are left."""
    for index in list(request.images):
        image = request.new.images[index]
        if image.offset + image.num_tokens <= processed:
            memory.encoder.leave(image.mm_hash, request.images.pop(index), until_step)
