"""What pools of any sizes hold is what the real scheduler, and the real engine, reach; and what binds is what lacks."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from hybrid import LLM, SamplingParams
from hybrid.capacity.limits import limits
from hybrid.frontend.prompt import Prompt
from hybrid.pools.sizing import CAPACITIES, Kinds, Need, PoolSizes
from hybrid.pools.specs import FullAttentionSpec, LayerSpec, MambaSpec, ModelSpec, SlidingWindowSpec
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.request import NewRequest
from hybrid.scheduler.scheduler import Scheduler

from .questions import MIB, running

FULL, WINDOW, STATE = FullAttentionSpec(2, 8), SlidingWindowSpec(2, 8, 20), MambaSpec((12, 3), (2, 6, 4))
KINDS: tuple[tuple[LayerSpec, ...], ...] = ((FULL,), (FULL, WINDOW), (FULL, STATE), (FULL, WINDOW, STATE), (STATE,))
POOL_OF = {"num_rows": "request row", "num_full_blocks": "full attention"}
POOL_OF |= {"num_window_blocks": "sliding window", "num_state_slots": "recurrent state"}
CONFIG = SchedulerConfig(max_num_batched_tokens=32, initial_output_ratio=1.0)


def some_sizes(layers: tuple[LayerSpec, ...], random: Random) -> PoolSizes:
    """Of pools that hold at least one request of max_model_len, and no two of them as many."""
    length = random.randint(30, 90)
    blocks = -(-length // 4)
    return PoolSizes(
        num_rows=random.randint(1, 12),
        num_full_blocks=random.randint(blocks, 12 * blocks) if FULL in layers else 0,
        num_window_blocks=random.randint(8, 60) if WINDOW in layers else 0,
        num_state_slots=random.randint(1, 12) if STATE in layers else 0,
        encoder_tokens=0,
        lora_units=0,
        block_size=4,
        sliding_window=20 if WINDOW in layers else 0,
        max_model_len=length,
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("layers", KINDS, ids=str)
def test_any_pools(layers: tuple[LayerSpec, ...], seed: int) -> None:
    """Prompts so short, and answers so long, that all overlap. One more unit of every pool that lacks, again and again,
    and one more runs."""
    random = Random(seed)
    spec, sizes = ModelSpec((layers,)), some_sizes(layers, random)
    said = limits(spec, sizes, CONFIG)
    scheduler = Scheduler(CONFIG, sizes, Kinds.of(spec))
    for index in range(said.concurrency + 3):
        prompt = np.full(8, index, dtype=np.int32)
        scheduler.add(NewRequest(f"r{index}", prompt, max_tokens=sizes.max_model_len - 8))
    assert max(running(scheduler)) == said.concurrency
    assert scheduler.stats().retractions == 0
    lacking = {shortage.pool for shortage in said.shortages}
    assert said.binding_pool in lacking
    plenty = {name: 10**4 for name in CAPACITIES if POOL_OF.get(name) in lacking}
    assert limits(spec, replace(sizes, **plenty), CONFIG).concurrency > said.concurrency
    for name in plenty:  # and each of them is needed
        less = {other: value for other, value in plenty.items() if other != name}
        assert limits(spec, replace(sizes, **less), CONFIG).concurrency == said.concurrency


def test_the_engine_reaches_what_it_reports(caplog: pytest.LogCaptureFixture) -> None:
    """With the real runner: all requests as long as max_model_len, more of them than fit."""
    with caplog.at_level("INFO", logger="hybrid"):
        llm = LLM(
            "tiny", device="cpu", memory=2 * MIB, max_model_len=96, max_num_seqs=64, dtype="float32",
            skip_tokenizer_init=True, initial_output_ratio=1.0,
        )  # fmt: skip
    said = llm.limits
    assert 1 < said.concurrency < 64 and said.pools.total <= 2 * MIB
    assert str(said) in caplog.messages
    assert f"maximum concurrency for 96 tokens per request: {said.concurrency};" in str(said)
    engine, peak = llm.engine, 0
    params = SamplingParams(max_tokens=92, ignore_eos=True, temperature=0.0)
    for index in range(said.concurrency + 5):
        prompt = Prompt(None, np.full(4, 5 + index, dtype=np.int32))
        engine.add_request(f"r{index}", prompt, params, max_tokens=92)
    while engine.has_unfinished:
        engine.step()
        peak = max(peak, engine.scheduler.stats().num_running)
    assert peak == said.concurrency


def test_rows_bind_where_memory_is_plenty() -> None:
    sizes = PoolSizes(3, 1000, 0, 50, 0, 0, 16, 0, 128)
    said = limits(ModelSpec(((FULL, STATE),)), sizes, CONFIG)
    assert (said.concurrency, said.binding_pool) == (3, "request row")
    assert [str(shortage) for shortage in said.shortages] == [
        "the request row pool has 0 of 3 rows available and 1 are needed"
    ]


def test_pools_that_hold_nobody() -> None:
    sizes = PoolSizes(3, 2, 0, 0, 0, 0, 16, 0, 128)
    assert limits(ModelSpec(((FULL,),)), sizes, CONFIG, Need(100)).concurrency == 0
