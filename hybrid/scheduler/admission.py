"""Admission: the one step in which a waiting request is granted memory in all pools, or in none.

Match the longest resume point, pin it, count again, reserve everything in one transaction, take a first chunk. What is
bounded (row, state, window, adapter) is granted for the request's life; full attention beyond the chunk is estimated.
"""

from dataclasses import dataclass

import numpy as np

from hybrid.pools.ledger import Ints, Shortage
from hybrid.pools.memory import Memory
from hybrid.pools.prefix_cache import NO_MATCH, Match
from hybrid.pools.sizing import blocks_for, lora_units
from hybrid.pools.transaction import Claim, Transaction
from hybrid.pools.window import window_quota

from .builder import PlanBuilder
from .chunk import Chunk, Place, add_image_spans, attach_images, claims, size_chunk
from .config import SchedulerConfig
from .plan import LoadAdapter, NewRow
from .reservation import OutputReservation
from .running import Running
from .tracked import Tracked


@dataclass(frozen=True, slots=True)
class Grant:
    """What the transaction granted; turned into a running row by `_enter`."""

    match: Match
    chunk: Chunk
    place: Place
    row: int
    slot: int
    full: Ints
    window: Ints
    encoder: Ints
    adapter: Ints


class Admission:
    """Admits into `memory` and `running`. `try_admit` either does everything or changes nothing."""

    def __init__(
        self, memory: Memory, config: SchedulerConfig, running: Running, reservation: OutputReservation
    ) -> None:
        self._memory = memory
        self._config = config
        self._running = running
        self._reservation = reservation

    def refresh_match(self, request: Tracked) -> None:
        """Mutates the request only: its match is that of the cache as it is now."""
        cache = self._memory.cache
        if cache is None or not request.new.enable_prefix_caching:
            request.match = NO_MATCH
        elif request.match_version != cache.version:
            # one token at least must be computed, or there is nothing to sample from
            keys, limit = request.keys(request.known), len(request.known) - 1
            request.match = cache.match(request.namespace, keys, limit)
            while (whole := self._between_images(request, request.match.length)) < request.match.length:
                request.match = cache.match(request.namespace, keys, whole)
            request.match_version = cache.version

    def _between_images(self, request: Tracked, position: int) -> int:
        """`position`, or the one before it from which an image that may not be split can start. Pure."""
        return request.before_image(position) if self._config.disable_chunked_mm_input else position

    def shortages(self, request: Tracked, builder: PlanBuilder) -> tuple[Shortage, ...]:
        """Why the request cannot start now, by the same attempt that admission makes, undone. Mutates nothing."""
        self.refresh_match(request)
        outcome = self._attempt(request, request.match, builder, commit=False)
        return outcome if isinstance(outcome, tuple) else ()

    def try_admit(self, request: Tracked, builder: PlanBuilder, in_flight: bool) -> bool:
        """Mutates on success only: the request runs and its first chunk is in the plan. Otherwise its `shortages` say
        why not (none: the step's own budget is used up)."""
        self.refresh_match(request)
        outcome = self._attempt(request, request.match, builder, commit=True)
        if isinstance(outcome, tuple) and request.match.length and not len(self._running) and not in_flight:
            # alone, and still refused: the pinned match itself is in the way (its tail block or state needs a second
            # unit next to the own one). Start from nothing.
            outcome = self._attempt(request, NO_MATCH, builder, commit=True)
        if isinstance(outcome, tuple):
            request.shortages = outcome
            return False
        self._enter(request, outcome, builder)
        return True

    def _place(self, request: Tracked, match: Match) -> Place:
        memory = self._memory
        sizes = memory.sizes
        quota = (
            window_quota(sizes.sliding_window, sizes.block_size, sizes.lookahead, request.max_total_tokens)
            if memory.kinds.window
            else 0
        )
        return Place(
            start=match.length,
            num_blocks=match.length // sizes.block_size,  # a block that the match ends in is copied, not shared
            window_first=match.window_first,
            window_charge=0,
            window_quota=quota,
        )

    def _attempt(
        self, request: Tracked, match: Match, builder: PlanBuilder, commit: bool
    ) -> Grant | tuple[Shortage, ...]:
        memory = self._memory
        place = self._place(request, match)
        adapter = request.new.adapter
        with Transaction() as transaction:
            transaction.pin(memory.full, match.full)
            transaction.pin(memory.window, match.window)
            if match.state is not None:
                transaction.pin(memory.state, np.array([match.state], dtype=np.int64))
            resident = memory.lora.get(adapter.lora_id) if adapter is not None else None
            if resident is not None:
                transaction.pin(memory.lora, resident)
            row = Claim.of(memory.rows, 1)
            state = Claim.of(memory.state, 1 if memory.kinds.state else 0)
            rank_units = lora_units(adapter.rank) if adapter is not None and resident is None else 0
            lora = Claim.of(memory.lora, rank_units)
            full_future = self._future_shortage(request, place)
            chunk = size_chunk(
                memory, self._config, builder, transaction, request, place, len(request.known) - place.start
            )
            if isinstance(chunk, tuple):
                return chunk + full_future + transaction.reserve(row, state, lora)
            chunk_claims = claims(memory, chunk, place, request)
            shortages = full_future + transaction.reserve(row, state, lora, *chunk_claims)
            if shortages:
                return shortages
            if not commit:
                return ()
            rows, slots, rank, full, window, encoder = transaction.commit()
        return Grant(
            match=match,
            chunk=chunk,
            place=place,
            row=int(rows[0]),
            slot=int(slots[0]) if len(slots) else 0,
            full=full,
            window=window,
            encoder=encoder,
            adapter=resident if resident is not None else rank,
        )

    def _future_shortage(self, request: Tracked, place: Place) -> tuple[Shortage, ...]:
        """Full attention must also hold what running requests and this one are expected to grow to. Pure."""
        memory = self._memory
        if not memory.kinds.full or not len(self._running):
            return ()
        expected = self._reservation.expected_tokens(len(request.known), request.max_total_tokens)
        own = blocks_for(expected, memory.sizes.block_size) - place.num_blocks
        needed = own + self._reservation.future_blocks(memory.table, self._running.rows())
        shortage = memory.full.shortage(needed, take=0)
        return (shortage,) if shortage is not None else ()

    def _enter(self, request: Tracked, grant: Grant, builder: PlanBuilder) -> None:
        """Mutates: the granted units become a row of the table and entries of the plan."""
        memory, table, match, chunk = self._memory, self._memory.table, grant.match, grant.chunk
        row, size, first_own = grant.row, self._memory.sizes.block_size, grant.place.num_blocks
        table.num_tokens[row] = len(request.known)
        table.token_ids[row, : len(request.known)] = request.known
        table.num_prompt_tokens[row] = request.num_prompt_tokens
        table.min_tokens[row] = request.new.min_tokens
        table.max_total_tokens[row] = request.max_total_tokens
        table.num_computed[row] = table.num_processed[row] = match.length
        table.num_blocks[row] = first_own
        table.window_first[row] = match.window_first
        table.window_quota[row] = grant.place.window_quota
        table.window_charge[row] = chunk.window_charge
        table.state_slot[row] = grant.slot
        table.request_ids[row] = request.request_id
        table.needs_grammar[row] = request.new.needs_grammar
        table.set_stop_ids(row, request.new.stop_token_ids)
        table.live[row] = True
        self._running.admit(request, row)
        builder.add_new_row(
            NewRow(
                row=row,
                request_id=request.request_id,
                token_ids=request.known,
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=match.length,
                state_slot=grant.slot,
                lora_id=request.new.adapter.lora_id if request.new.adapter is not None else 0,
            )
        )
        shared_window = match.window[: max(0, first_own - match.window_first)]
        builder.add_matched_blocks(row, match.full[:first_own], shared_window, match.window_first)
        if match.length % size:
            for kind, pool, blocks, own, copies in (
                (memory.kinds.full, memory.full, match.full, grant.full, builder.full_copies),
                (memory.kinds.window, memory.window, match.window, grant.window, builder.window_copies),
            ):
                if kind:
                    copies.append((int(blocks[-1]), int(own[0])))
                    pool.release(blocks[-1:], until_step=builder.step_id)
        if match.state is not None:
            source = np.array([match.state], dtype=np.int64)
            builder.state_copies.append((match.state, grant.slot))
            memory.state.release(source, until_step=builder.step_id)
        if match.length and memory.cache is not None:
            memory.cache.touch(match)
        self._hold_adapter(request, grant.adapter, builder)
        self._want_resume_points(request, match)
        request.resumed_at = match.length
        if request.num_cached_tokens is None:
            request.num_cached_tokens = match.length
        attach_images(memory, builder, request, chunk, grant.encoder)
        rows = np.array([row], dtype=np.int64)
        blocks = np.array([chunk.blocks], dtype=np.int64)
        first = np.array([first_own], dtype=np.int64)
        builder.add_blocks(
            rows,
            first,
            blocks,
            grant.full if memory.kinds.full else None,
            grant.window if memory.kinds.window else None,
        )
        take_chunk(memory, builder, request, chunk)

    def _hold_adapter(self, request: Tracked, units: Ints, builder: PlanBuilder) -> None:
        adapter = request.new.adapter
        if adapter is None:
            return
        if self._memory.lora.get(adapter.lora_id) is None:
            self._memory.lora.insert(adapter.lora_id, units)
            builder.load_adapters.append(LoadAdapter(adapter.lora_id, units))
        else:
            self._memory.lora.use(adapter.lora_id)
        request.adapter_units = units

    def _want_resume_points(self, request: Tracked, match: Match) -> None:
        """Ends of chat messages, the point where this prompt diverged from a cached one, and the last position from
        which an equal prompt can still sample."""
        if self._memory.cache is None or not request.new.enable_prefix_caching:
            request.wanted = []
            return
        last = request.num_prompt_tokens - 1
        points = {self._between_images(request, p) for p in (*request.new.resume_hints, match.matched_tokens, last)}
        inside = sorted(point for point in points if match.length < point <= last)
        most = self._config.max_snapshots_per_prompt
        request.wanted = (
            inside[:1] + inside[1:][-(most - 1) :] if len(inside) > most > 1 else inside[-most:] if most else []
        )


def take_chunk(memory: Memory, builder: PlanBuilder, request: Tracked, chunk: Chunk) -> None:
    """Mutates: progress (optimistic) and plan entries of a granted chunk."""
    row, table = request.row, memory.table
    assert row is not None
    end = chunk.start + chunk.count
    samples = end == int(table.num_tokens[row])
    table.num_computed[row] = end
    table.last_step[row] = builder.step_id
    if samples:
        table.placeholders[row] += 1
    add_image_spans(builder, request, chunk)
    builder.add_chunk(request, chunk.start, chunk.count, samples)


def continue_chunk(memory: Memory, config: SchedulerConfig, builder: PlanBuilder, request: Tracked) -> bool:
    """Mutates on success only: the next chunk of a running prefill goes into the plan. Otherwise `shortages` say why
    not."""
    row, table = request.row, memory.table
    assert row is not None
    place = Place(
        start=int(table.num_computed[row]),
        num_blocks=int(table.num_blocks[row]),
        window_first=int(table.window_first[row]),
        window_charge=int(table.window_charge[row]),
        window_quota=int(table.window_quota[row]),
    )
    with Transaction() as transaction:
        want = int(table.num_tokens[row]) - place.start
        chunk = size_chunk(memory, config, builder, transaction, request, place, want)
        if isinstance(chunk, tuple):
            request.shortages = chunk
            return False
        request.shortages = transaction.reserve(*claims(memory, chunk, place, request))
        if request.shortages:
            return False
        full, window, encoder = transaction.commit()
    table.window_charge[row] = chunk.window_charge
    attach_images(memory, builder, request, chunk, encoder)
    if chunk.blocks:
        builder.add_blocks(
            np.array([row], dtype=np.int64),
            np.array([place.num_blocks], dtype=np.int64),
            np.array([chunk.blocks], dtype=np.int64),
            full if memory.kinds.full else None,
            window if memory.kinds.window else None,
        )
    take_chunk(memory, builder, request, chunk)
    return True
