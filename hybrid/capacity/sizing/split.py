"""Split: how memory would be divided over the pools for any number of the requests that a question asks about."""

from dataclasses import replace

import numpy as np

from hybrid.engine_args import EngineArgs
from hybrid.engine_memory import pool_sizes
from hybrid.pools.sizing import (
    Kinds,
    MemoryBytes,
    Need,
    PoolSizes,
    blocks_for,
    default_encoder_tokens,
    pool_bytes,
    sizes_for,
)

from ..question import Question
from .mix import Mix

MIN_CHUNK_SHARE = 4  # the window pool keeps room for at least a quarter of the token budget; chunks shrink to it
DEVIATIONS = (0.0, 0.5, 1.0, 2.0)  # of what the windows of requests of many lengths take: as much more is tried
MOST_MIXED = 2**13  # requests of many lengths at once
COUNTED = 32  # requests: from there on, what steps hold is counted for so many more at a time
HOST_ROOM = 2**62  # tables of rows are checked when the engine starts, on the machine where it does


class Split:
    """Reads the question only."""

    def __init__(self, question: Question) -> None:
        """Raises ValueError for what no engine could be built for, NothingFitsError for too large weights."""
        self.spec = question.spec()
        self.args = question.engine_args()
        self.lora_bytes_per_unit = question.lora_bytes_per_unit()
        self.kinds = Kinds.of(self.spec)
        self.shared_prefix = question.shared_prefix
        self._traffic = question.traffic
        self.config = question.scheduler_config(self.args)
        self._positions = question.model.decoder.max_positions
        # What the engine makes of these arguments for one request says the rest: lookahead, window, LoRA units.
        self.shape = self.engine_sizes(self.args, HOST_ROOM)
        self.image_entry = max(question.image_cost.entries, default=0)
        rank = question.rank if question.adapters else 0
        self.need = Need(question.total_tokens, (self.image_entry,) * question.images, rank, question.unsplit_images)
        self.batched = question.max_num_batched_tokens
        self.least_chunk = -(-self.batched // MIN_CHUNK_SHARE)
        self.most_seqs = min(question.max_num_seqs or self.batched, self.batched)  # a step has a token for each
        self._question = question
        self._budgets: dict[int, int] = {}

    def engine_sizes(self, args: EngineArgs, memory_bytes: int) -> PoolSizes:
        """As the engine computes them from these arguments. Raises ValueError as it does."""
        return pool_sizes(
            args, self.config, self.spec, self._positions, memory_bytes, HOST_ROOM, self.lora_bytes_per_unit
        )

    def sizes(self, num_seqs: int, chunk: int) -> PoolSizes:
        """The smallest pools for `num_seqs` requests with so many tokens of prefill in flight beside their windows."""
        images = default_encoder_tokens(self.spec, num_seqs)
        return sizes_for(num_seqs, self.need, self.shape, self.kinds, chunk, images, self.shared_prefix)

    def bytes(self, num_seqs: int, chunk: int | None = None) -> MemoryBytes:
        """Of those pools; chunk None: the least."""
        return self.bytes_of(self.sizes(num_seqs, self.least_chunk if chunk is None else chunk))

    def bytes_of(self, sizes: PoolSizes) -> MemoryBytes:
        """Of one device, with this question's adapters."""
        return pool_bytes(sizes, self.spec, self.lora_bytes_per_unit)

    def counted(self, num_seqs: int) -> int:
        """For how many requests, so many or a few more, what steps hold is counted."""
        return num_seqs if num_seqs <= COUNTED else -(-num_seqs // COUNTED) * COUNTED

    def budget(self, num_seqs: int) -> int:
        """Bytes for the pools beside steps of so many requests. Raises NothingFitsError."""
        counted = self.counted(num_seqs)
        if counted not in self._budgets:
            self._budgets[counted] = self._question.budget(counted)
        return self._budgets[counted]

    def concurrency(self, more: int = 0) -> int:
        """Most requests at full length in the memory there is and so many bytes more; 0: not even one."""
        low, high = 0, self.most_seqs + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.bytes(middle).total <= self.budget(middle) + more else (low, middle)
        return low

    def best(self, num_seqs: int) -> PoolSizes | None:
        """The pools for `num_seqs` requests, with as much room for chunks as memory leaves; None: for none."""
        if num_seqs == 0:
            return None
        chunks = range(self.batched, self.least_chunk, -self.shape.block_size)
        fitting = (c for c in chunks if self.bytes(num_seqs, c).total <= self.budget(num_seqs))
        return self.sizes(num_seqs, next(fitting, self.least_chunk))

    def mix(self) -> Mix | None:
        """Of the question's traffic; None: all requests are of one length."""
        if self._traffic is None:
            return None
        most = min(self.most_seqs, MOST_MIXED)
        return Mix(self._traffic, self.need, self.shape, self.kinds, self.batched, most, self.shared_prefix)

    def best_for(self, mix: Mix, more: int = 0) -> PoolSizes | None:
        """The pools that run most of `mix` at once, and the longest of its requests alone, in the memory there is and
        so many bytes more; None: not even that."""
        candidates: list[PoolSizes] = []
        for deviations in DEVIATIONS if self.kinds.window else (0.0,):
            for num_seqs in range(1, min(self.most_seqs, MOST_MIXED) + 1):
                sizes = self._mixed(mix, num_seqs, deviations, self.budget(num_seqs) + more)
                if sizes is None:
                    break
                candidates.append(sizes)
        if not candidates:
            return None
        full, window, seqs = (
            np.array([getattr(sizes, name) for sizes in candidates])
            for name in ("num_full_blocks", "num_window_blocks", "num_rows")
        )
        chunk = blocks_for(self.least_chunk, self.shape.block_size) if self.kinds.window else 0
        return candidates[int(np.argmax(mix.concurrency(full, window - chunk, seqs)))]

    def _mixed(self, mix: Mix, num_seqs: int, deviations: float, memory_bytes: int) -> PoolSizes | None:
        """States for so many requests, windows for so many of mixed lengths, and what is left for full attention."""
        longest, states = self.sizes(1, self.least_chunk), self.sizes(num_seqs, self.least_chunk)
        chunk = blocks_for(self.least_chunk, self.shape.block_size)
        windows = max(longest.num_window_blocks, mix.window_blocks(num_seqs, deviations) + chunk)
        sizes = replace(states, num_full_blocks=0, num_window_blocks=windows if self.kinds.window else 0)
        left = memory_bytes - self.bytes_of(sizes).total
        block_bytes = self.spec.full_bytes_per_token * self.shape.block_size
        blocks = left // block_bytes if self.kinds.full else 0
        return replace(sizes, num_full_blocks=blocks) if left >= 0 and blocks >= longest.num_full_blocks else None
