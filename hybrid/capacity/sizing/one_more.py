"""One more request: what the engine's own admission answers to it while as many run as the pools can hold.

Knows scheduler and pools; no model, no bytes.
"""

from dataclasses import replace

import numpy as np

from hybrid.adapters.adapter import Adapter
from hybrid.pools.ledger import Shortage
from hybrid.pools.sizing import Kinds, Need, PoolSizes, blocks_for, life_units
from hybrid.pools.transaction import Claim, Transaction
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.plan import StepPlan, StepResult
from hybrid.scheduler.request import ImageInput, NewRequest
from hybrid.scheduler.scheduler import Scheduler

SHARED, OWN = 1, 2  # tokens


def one_more(
    count: int,
    need: Need,
    sizes: PoolSizes,
    kinds: Kinds,
    config: SchedulerConfig,
    chunk_tokens: int = 0,
    shared_tokens: int = 0,
) -> tuple[Shortage, ...]:
    """The shortages of one more request of `need` while `count` (1 at least) run, each promised its full length.

    chunk_tokens: of prefill in flight that the window pool holds at that moment. shared_tokens: with which all begin.
    """
    rows = 2 if count < sizes.num_rows else 1  # those that are only held need none
    at_once = replace(config, initial_output_ratio=1.0, composition="decode-first", force_retraction_every=0)
    scheduler = Scheduler(at_once, replace(sizes, num_rows=rows), kinds)
    _hold(scheduler, count - 1, need, kinds, chunk_tokens, shared_tokens)
    scheduler.add(_first(need, shared_tokens))
    while (step := scheduler.schedule()) is not None:
        scheduler.commit(_answer(step))
        if step.samples.any():
            break
    scheduler.add(_next(need, shared_tokens))
    return tuple(
        replace(shortage, capacity=sizes.num_rows) if shortage.pool == scheduler.memory.rows.name else shortage
        for shortage in scheduler.shortages("next")
    )


def _hold(scheduler: Scheduler, count: int, need: Need, kinds: Kinds, chunk_tokens: int, shared_tokens: int) -> None:
    """Mutates: what `count` requests hold at their full length, and the chunk, is held in the attention and state
    pools. Adapters and images are left out: all requests share the former, and the latter come one after another."""
    memory = scheduler.memory
    life, size = life_units(need, memory.sizes, kinds), memory.sizes.block_size
    shared = shared_tokens // size if kinds.full else 0
    window = count * life.window + (blocks_for(chunk_tokens, size) if kinds.window else 0)
    with Transaction() as transaction:
        shortages = transaction.reserve(
            Claim.of(memory.full, count * (life.full - shared)),
            Claim.of(memory.window, window),
            Claim.of(memory.state, count * life.state),
        )
        assert not shortages, f"{count + 1} requests were said to fit, but {shortages[0]}"
        transaction.commit()


def _first(need: Need, shared_tokens: int) -> NewRequest:
    """Leaves the common beginning in the cache, and runs until its full length."""
    prompt = np.full(shared_tokens + 1, SHARED, dtype=np.int32)
    prompt[-1] = OWN
    hints = (shared_tokens,) if shared_tokens else ()
    return NewRequest("first", prompt, max_tokens=need.max_total_tokens - len(prompt), resume_hints=hints)


def _next(need: Need, shared_tokens: int) -> NewRequest:
    prompt = np.full(need.max_total_tokens - 1, OWN + 1, dtype=np.int32)
    prompt[:shared_tokens] = SHARED
    starts = len(prompt) - np.cumsum(need.image_tokens[::-1])[::-1].astype(np.int64)
    images = [ImageInput(f"image at {start}", start, n) for start, n in zip(starts.tolist(), need.image_tokens)]
    adapter = Adapter("adapter", 1, need.lora_rank) if need.lora_rank else None
    return NewRequest("next", prompt, max_tokens=1, images=tuple(images), adapter=adapter)


def _answer(step: StepPlan) -> StepResult:
    """As of a model that always says token OWN."""
    return StepResult.one_each(step.step_id, np.full(int(step.samples.sum()), OWN, dtype=np.int32))
