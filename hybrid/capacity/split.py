"""Split: how memory would be divided over the pools for any number of the requests that a question asks about."""

from dataclasses import replace

from hybrid.engine_args import EngineArgs
from hybrid.engine_memory import pool_sizes
from hybrid.pools.sizing import Kinds, MemoryBytes, Need, PoolSizes, default_encoder_tokens, pool_bytes, sizes_for

from .question import Question

MIN_CHUNK_SHARE = 4  # the window pool keeps room for at least a quarter of the token budget; chunks shrink to it
HOST_ROOM = 2**62  # tables of rows are checked when the engine starts, on the machine where it does


class Split:
    """Reads the question only."""

    def __init__(self, question: Question) -> None:
        """Raises ValueError for what no engine could be built for, NothingFitsError for too large weights."""
        self.spec = question.spec()
        self.args = question.engine_args()
        self.lora_bytes_per_unit = question.lora_bytes_per_unit()
        self.need = Need(
            question.total_tokens, (question.image_tokens,) * question.images, question.rank if question.adapters else 0
        )
        self.kinds = Kinds.of(self.spec)
        self.shared_prefix = question.shared_prefix
        self.config = self.args.scheduler_config(question.max_image_tokens)
        self._positions = question.model.decoder.max_positions
        # What the engine makes of these arguments for one request says the rest: lookahead, window, LoRA units.
        self.shape = self.engine_sizes(replace(self.args, memory=None), HOST_ROOM)
        self.batched = question.max_num_batched_tokens
        self.least_chunk = -(-self.batched // MIN_CHUNK_SHARE)
        self.most_seqs = min(question.max_num_seqs or self.batched, self.batched)  # a step has a token for each

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
        return pool_bytes(sizes, self.spec, self.lora_bytes_per_unit)

    def concurrency(self, memory_bytes: int) -> int:
        """Most requests at full length in so much memory; 0: not even one."""
        low, high = 0, self.most_seqs + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.bytes(middle).total <= memory_bytes else (low, middle)
        return low

    def best(self, num_seqs: int, memory_bytes: int) -> PoolSizes:
        """The pools for `num_seqs` requests, with as much room for chunks as memory leaves."""
        chunks = range(self.batched, self.least_chunk, -self.shape.block_size)
        fitting = (c for c in chunks if self.bytes(num_seqs, c).total <= memory_bytes)
        return self.sizes(num_seqs, next(fitting, self.least_chunk))
