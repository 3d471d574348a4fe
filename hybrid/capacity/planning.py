"""Planning: how many requests of one shape fit into memory, how to split it, and the engine's flags for that.

Sizes are what `engine_memory.pool_sizes` makes of the flags, needs are `pools.sizing`: there is no second formula.
"""

from dataclasses import dataclass, replace

from hybrid.engine_args import DTYPES, EngineArgs
from hybrid.engine_memory import pool_sizes
from hybrid.models.blueprint.model import Model
from hybrid.pools.sizing import Kinds, LifeUnits, MemoryBytes, Need, PoolSizes, life_units, pool_bytes, sizes_for
from hybrid.pools.specs import ModelSpec

from .model_file import num_parameters, weight_bytes

MIN_CHUNK_SHARE = 4  # the window pool keeps room for at least a quarter of the token budget; chunks shrink to it
HOST_ROOM = 2**62  # tables of rows are checked when the engine starts, on the machine where it does


@dataclass(frozen=True, slots=True)
class Request:
    """The shape of every request, in tokens."""

    context: int
    output: int

    def __post_init__(self) -> None:
        for name in ("context", "output"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 token, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Plan:
    """`request_bytes`: of one decoding request at its full length, in blocks. `chunk_bytes`: admission's extra."""

    model: str
    parameters: int
    weights_bytes: int
    memory_bytes: int
    spec: ModelSpec
    args: EngineArgs
    sizes: PoolSizes
    life: LifeUnits
    pools: MemoryBytes
    request_bytes: MemoryBytes
    chunk_bytes: int
    concurrency: int
    binding_pool: str

    def flags(self) -> str:
        """The engine arguments that give exactly these sizes."""
        names: tuple[str, ...] = ("memory", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")
        names += ("num_full_blocks", "num_window_blocks", "num_state_slots")
        return " ".join(f"--{name.replace('_', '-')} {getattr(self.args, name)}" for name in names)


def plan(
    name: str,
    model: Model,
    memory_bytes: int,
    request: Request,
    *,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int | None = None,
    block_size: int = 16,
    dtype: str = "auto",
    state_dtype: str = "float32",
) -> Plan:
    """memory_bytes: of all pools together. Raises ValueError where not even one request fits."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    dtype = model.dtype if dtype == "auto" else dtype
    spec = model.spec(dtype, state_dtype)
    total = request.context + request.output
    args = EngineArgs(
        model=name,
        memory=memory_bytes,
        max_model_len=total,
        max_num_seqs=1,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        num_full_blocks=0,
        num_window_blocks=0,
        num_state_slots=0,
    )
    config = args.scheduler_config(spec.encoder.max_tokens_per_image if spec.encoder is not None else 0)
    # What the engine makes of these arguments for one request says the rest: lookahead, window, encoder.
    shape = pool_sizes(args, config, spec, model.decoder.max_positions, memory_bytes, HOST_ROOM)
    kinds, need = Kinds.of(spec), Need(total)

    def sized(num_seqs: int, chunk: int) -> PoolSizes:
        return sizes_for(num_seqs, need, shape, kinds, chunk, shape.encoder_tokens)

    def fits(num_seqs: int, chunk: int) -> bool:
        return pool_bytes(sized(num_seqs, chunk), spec).total <= memory_bytes

    least = -(-max_num_batched_tokens // MIN_CHUNK_SHARE)
    cap = min(max_num_seqs or max_num_batched_tokens, max_num_batched_tokens)
    concurrency, above = 0, cap + 1
    while above - concurrency > 1:
        middle = (concurrency + above) // 2
        concurrency, above = (middle, above) if fits(middle, least) else (concurrency, middle)
    if concurrency == 0:
        needed = pool_bytes(sized(1, least), spec).total
        raise ValueError(f"no request of {total} tokens fits into {memory_bytes:,} bytes; {needed:,} would hold one")
    chunk = next(c for c in range(max_num_batched_tokens, 0, -block_size) if c <= least or fits(concurrency, c))
    chunk = max(chunk, least)
    wanted = sized(concurrency, chunk)
    args = replace(
        args,
        max_num_seqs=concurrency,
        num_full_blocks=wanted.num_full_blocks,
        num_window_blocks=wanted.num_window_blocks,
        num_state_slots=wanted.num_state_slots,
    )
    sizes = pool_sizes(args, config, spec, model.decoder.max_positions, memory_bytes, HOST_ROOM)
    # Images are decoded one after another: the encoder pool does not grow with the number of requests.
    one = replace(pool_bytes(sized(1, 0), spec), encoder=0)
    full_chunk = pool_bytes(sized(1, max_num_batched_tokens), spec).window - one.window
    parts = {"full attention": one.full, "sliding window": one.window, "recurrent state": one.state}
    binding = "request row" if concurrency == cap else max(parts, key=lambda pool: parts[pool])
    return Plan(
        model=name,
        parameters=num_parameters(model),
        weights_bytes=weight_bytes(model, dtype),
        memory_bytes=memory_bytes,
        spec=spec,
        args=args,
        sizes=sizes,
        life=life_units(need, sizes, kinds),
        pools=pool_bytes(sizes, spec),
        request_bytes=one,
        chunk_bytes=full_chunk,
        concurrency=concurrency,
        binding_pool=binding,
    )
