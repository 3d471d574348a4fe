"""Planning: how many requests of one shape fit into memory, how to split it, and the engine's flags for that.

Sizes are what `engine_memory.pool_sizes` makes of the flags, needs are `pools.sizing`: there is no second formula.
"""

from dataclasses import dataclass, replace

from hybrid.engine_args import EngineArgs
from hybrid.engine_memory import pool_sizes
from hybrid.pools.sizing import (
    Kinds,
    LifeUnits,
    MemoryBytes,
    Need,
    PoolSizes,
    blocks_for,
    default_encoder_tokens,
    life_units,
    lora_units,
    pool_bytes,
    sizes_for,
)
from hybrid.pools.specs import ModelSpec

from .model_file import activation_bytes, num_parameters
from .question import NothingFitsError, Question

MIN_CHUNK_SHARE = 4  # the window pool keeps room for at least a quarter of the token budget; chunks shrink to it
HOST_ROOM = 2**62  # tables of rows are checked when the engine starts, on the machine where it does


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one device where several share the model.

    parameters: of the whole model. request_bytes: of one decoding request at its full length, in blocks, without what
    all share; its LoRA bytes are an adapter's. chunk_bytes: admission's extra. shared_bytes: of the common beginning.
    image_bytes: of one image, in the encoder pool and as tokens in the attention pools. activations_bytes: an estimate.
    """

    question: Question
    parameters: int
    weights_bytes: int
    activations_bytes: int
    memory_bytes: int
    spec: ModelSpec
    args: EngineArgs
    sizes: PoolSizes
    life: LifeUnits
    pools: MemoryBytes
    request_bytes: MemoryBytes
    chunk_bytes: int
    shared_bytes: int
    adapter_bytes: int
    image_bytes: int
    concurrency: int
    binding_pool: str

    def flags(self) -> str:
        """The engine arguments that give exactly these sizes; "" where the engine cannot be told (see `what_if`)."""
        if self.question.what_if:
            return ""
        names: tuple[str, ...] = ("dtype", "memory", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
        names += ("block_size", "num_full_blocks", "num_window_blocks", "num_state_slots")
        flags = [f"--{name.replace('_', '-')} {getattr(self.args, name)}" for name in names]
        if self.args.enable_lora:
            flags.append(f"--enable-lora --max-loras {self.args.max_loras} --max-lora-rank {self.args.max_lora_rank}")
            flags += [f"--lora-target-modules {module}" for module in self.args.lora_target_modules or ()]
        return " ".join(flags)


class Split:
    """How memory would be split for any number of the requests that a question asks about. Reads the question only."""

    def __init__(self, question: Question) -> None:
        """Raises ValueError for what no engine could be built for, NothingFitsError for too large weights."""
        self.spec = question.spec()
        self.args = question.engine_args()
        self.lora_bytes_per_unit = question.lora_bytes_per_unit()
        vision = question.model.vision
        unsplit_images = vision is not None and vision.bidirectional
        self.need = Need(
            question.total_tokens,
            (question.image_tokens,) * question.images,
            question.rank if question.adapters else 0,
            unsplit_images,
        )
        self.kinds = Kinds.of(self.spec)
        self._memory_bytes = question.budget()
        self.shared_prefix = question.shared_prefix
        self._config = self.args.scheduler_config(question.image_tokens, unsplit_images)
        self._positions = question.model.decoder.max_positions
        # What the engine makes of these arguments for one request says the rest: lookahead, window, LoRA units.
        self.shape = self.engine_sizes(replace(self.args, memory=None), HOST_ROOM)
        self.least_chunk = -(-question.max_num_batched_tokens // MIN_CHUNK_SHARE)

    def engine_sizes(self, args: EngineArgs, memory_bytes: int) -> PoolSizes:
        """As the engine computes them from these arguments. Raises ValueError as it does."""
        return pool_sizes(
            args, self._config, self.spec, self._positions, memory_bytes, HOST_ROOM, self.lora_bytes_per_unit
        )

    def sizes(self, num_seqs: int, chunk: int) -> PoolSizes:
        """The smallest pools for `num_seqs` requests with so many tokens of prefill in flight beside their windows."""
        images = default_encoder_tokens(self.spec, num_seqs, self._memory_bytes)
        return sizes_for(num_seqs, self.need, self.shape, self.kinds, chunk, images, self.shared_prefix)

    def bytes(self, num_seqs: int, chunk: int | None = None) -> MemoryBytes:
        """Of those pools; chunk None: the least."""
        sizes = self.sizes(num_seqs, self.least_chunk if chunk is None else chunk)
        return pool_bytes(sizes, self.spec, self.lora_bytes_per_unit)


def plan(question: Question) -> Plan:
    """Raises NothingFitsError where not even one request fits, ValueError for an impossible question."""
    split = Split(question)
    memory, batched = question.budget(), question.max_num_batched_tokens
    cap = min(question.max_num_seqs or batched, batched)
    concurrency, above = 0, cap + 1
    while above - concurrency > 1:
        middle = (concurrency + above) // 2
        concurrency, above = (middle, above) if split.bytes(middle).total <= memory else (concurrency, middle)
    if concurrency == 0:
        raise NothingFitsError(
            f"no request of {question.total_tokens} tokens fits into {memory:,} bytes; "
            f"{split.bytes(1).total:,} would hold one"
        )
    chunks = range(batched, split.least_chunk, -question.block_size)
    chunk = next((c for c in chunks if split.bytes(concurrency, c).total <= memory), split.least_chunk)
    wanted = split.sizes(concurrency, chunk)
    args = replace(
        split.args,
        max_num_seqs=concurrency,
        num_full_blocks=wanted.num_full_blocks,
        num_window_blocks=wanted.num_window_blocks,
        num_state_slots=wanted.num_state_slots,
    )
    sizes = split.engine_sizes(args, memory)
    spec, kinds, block = split.spec, split.kinds, question.block_size
    life = life_units(split.need, sizes, kinds)
    shared = question.shared_prefix // block if kinds.full else 0
    token_bytes = spec.full_bytes_per_token + spec.window_bytes_per_token
    embedding_bytes = spec.encoder.bytes_per_token if spec.encoder is not None else 0
    one = MemoryBytes(
        full=(life.full - shared) * block * spec.full_bytes_per_token,
        window=life.window * block * spec.window_bytes_per_token,
        state=life.state * spec.state_bytes_per_slot,
        encoder=0,  # images are computed one after another: the encoder pool does not grow with the requests
    )
    parts = {"full attention": one.full, "sliding window": one.window, "recurrent state": one.state}
    return Plan(
        question=question,
        parameters=num_parameters(question.model),
        weights_bytes=question.weights_bytes(),
        activations_bytes=activation_bytes(question.share(), batched, concurrency, question.computed_dtype),
        memory_bytes=memory,
        spec=spec,
        args=args,
        sizes=sizes,
        life=life,
        pools=pool_bytes(sizes, spec, split.lora_bytes_per_unit),
        request_bytes=one,
        chunk_bytes=blocks_for(batched, block) * block * spec.window_bytes_per_token,
        shared_bytes=shared * block * spec.full_bytes_per_token,
        adapter_bytes=lora_units(question.rank) * split.lora_bytes_per_unit,
        image_bytes=question.image_tokens * (embedding_bytes + token_bytes),
        concurrency=concurrency,
        binding_pool="request row" if concurrency == cap else max(parts, key=lambda pool: parts[pool]),
    )
