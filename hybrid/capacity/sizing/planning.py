"""Planning: how many requests of one shape fit into memory, how to split it, and the engine's flags for that.

Sizes are what `engine_memory.pool_sizes` makes of the flags, needs are `pools.sizing`: there is no second formula.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from hybrid.engine_args import EngineArgs
from hybrid.pools.sizing import PoolSizes, blocks_for, concurrency, lora_units

from ..hardware import GIB
from ..model_file import num_parameters
from ..question import NothingFitsError, Question
from .activations import activation_bytes
from .limits import Limits, limits
from .mix import Expected, Mix
from .split import Split
from .working_memory import WorkingMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Limits):
    """Of one device where several share the model.

    parameters: of the whole model. request_bytes: of one decoding request at its full length, in blocks, without what
    all share; its LoRA bytes are an adapter's. chunk_bytes: admission's extra. shared_bytes: of the common beginning.
    image_bytes: of one image, in the encoder pool and as tokens in the attention pools. activations_bytes: an estimate,
    for a CPU. working: what steps hold beside the pools of a GPU, where its memory is what counts.
    expected: where requests are of many lengths, how many of them; `concurrency` is of those of the longest.
    marginal: requests more for a GiB more, by pool that gets it alone, and under "all", where it is split at best.
    """

    question: Question
    parameters: int
    weights_bytes: int
    activations_bytes: int
    working: WorkingMemory | None
    memory_bytes: int
    args: EngineArgs
    chunk_bytes: int
    shared_bytes: int
    adapter_bytes: int
    image_bytes: int
    expected: Expected | None
    marginal: Mapping[str, float]

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


def plan(question: Question) -> Plan:
    """Raises NothingFitsError where not even one request fits, ValueError for an impossible question."""
    split = Split(question)
    mix = split.mix()
    wanted = split.best(split.concurrency()) if mix is None else split.best_for(mix)
    if wanted is None:
        working = question.working(1)
        beside = "" if working is None else f" beside the {working.total:,} that steps need"
        raise NothingFitsError(
            f"no request of {question.total_tokens} tokens fits into {split.budget(1):,} bytes{beside}; "
            f"{split.bytes(1).total:,} would hold one"
        )
    memory = split.budget(wanted.num_rows)
    args = replace(
        split.args,
        memory=memory,
        max_num_seqs=wanted.num_rows,
        num_full_blocks=wanted.num_full_blocks,
        num_window_blocks=wanted.num_window_blocks,
        num_state_slots=wanted.num_state_slots,
    )
    sizes = split.engine_sizes(args, memory)
    asked = limits(
        split.spec,
        sizes if mix is not None else replace(sizes, num_rows=split.most_seqs),  # rows bind where they cannot be more
        split.config,
        split.need,
        split.lora_bytes_per_unit,
        split.least_chunk,
        split.shared_prefix,
    )
    spec, block = split.spec, question.block_size
    token_bytes = spec.full_bytes_per_token + spec.window_bytes_per_token
    embedding_bytes = spec.encoder.bytes_per_token if spec.encoder is not None else 0
    shared = question.shared_prefix // block if split.kinds.full else 0
    return Plan(
        **{entry.name: getattr(asked, entry.name) for entry in fields(asked) if entry.name != "sizes"},
        sizes=sizes,
        question=question,
        parameters=num_parameters(question.model),
        weights_bytes=question.weights_bytes(),
        activations_bytes=activation_bytes(question.share(), split.batched, sizes.num_rows, question.computed_dtype),
        working=question.working(split.counted(sizes.num_rows)),
        memory_bytes=memory,
        args=args,
        chunk_bytes=blocks_for(split.batched, block) * block * spec.window_bytes_per_token,
        shared_bytes=shared * block * spec.full_bytes_per_token,
        adapter_bytes=lora_units(question.rank) * split.lora_bytes_per_unit,
        image_bytes=split.image_entry * embedding_bytes + question.image_tokens * token_bytes,
        expected=None if mix is None else mix.expected(sizes, split.least_chunk),
        marginal=_marginal(split, mix, asked.sizes),
    )


def _marginal(split: Split, mix: Mix | None, sizes: PoolSizes) -> dict[str, float]:
    """Of the requests that were planned for: all of one length, or a mix. sizes: with as many rows as there may be."""

    def count(pools: PoolSizes) -> float:
        if mix is not None:
            return mix.expected(pools, split.least_chunk).concurrency
        return concurrency(split.need, pools, split.kinds, split.least_chunk, split.shared_prefix)

    spec, block = split.spec, sizes.block_size
    units = {
        "full attention": ("num_full_blocks", block * spec.full_bytes_per_token),
        "sliding window": ("num_window_blocks", block * spec.window_bytes_per_token),
        "recurrent state": ("num_state_slots", spec.state_bytes_per_slot),
    }
    now = count(sizes)
    more = {
        pool: count(replace(sizes, **{name: getattr(sizes, name) + GIB // size})) - now
        for pool, (name, size) in units.items()
        if size
    }
    if mix is None:
        return more | {"all": split.concurrency(GIB) - now}
    best = split.best_for(mix, GIB)
    assert best is not None, "what fits, fits into more"
    return more | {"all": count(best) - now}
