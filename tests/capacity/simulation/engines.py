"""Small engines with steps whose time can be told in the head, and small workloads, for tests of the simulation."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hybrid.capacity.simulation.engine_model import EngineModel
from hybrid.capacity.step_time.step_time import EXACT, StepTime
from hybrid.capacity.step_time.step_work import StepWork
from hybrid.capacity.workload.segments import Kind
from hybrid.capacity.workload.workload import Workload
from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.scheduler.config import SchedulerConfig

FULL = Kinds(full=True, window=False, state=False)
HYBRID = Kinds(full=True, window=True, state=True)
VOCAB_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Linear:
    """Seconds of a step: so many, and for each token so many more."""

    step: float = 0.01
    token: float = 0.0
    variation: ClassVar[tuple[float, ...]] = EXACT

    def seconds(self, work: StepWork) -> float:
        return self.step + self.token * float(work.num_tokens.sum())


def engine(
    step_time: StepTime | None = None,
    *,
    config: SchedulerConfig | None = None,
    kinds: Kinds = FULL,
    enable_prefix_caching: bool = True,
    lora_bytes_per_unit: int = 0,
    **sizes: int,
) -> EngineModel:
    """Roomy pools, so that a test states only what it is about; keywords are those of PoolSizes."""
    config = config or SchedulerConfig()
    defaults = {
        "num_rows": 64, "num_full_blocks": 4096, "num_window_blocks": 1024, "num_state_slots": 256,
        "encoder_tokens": 512, "lora_units": 8, "block_size": 16, "sliding_window": 32 if kinds.window else 0,
        "max_model_len": 4096, "lookahead": config.max_plans_in_flight - 1,
    }  # fmt: skip
    return EngineModel(
        config=config,
        sizes=PoolSizes(**{**defaults, **sizes}),
        kinds=kinds,
        step_time=step_time or Linear(),
        vocab_size=VOCAB_SIZE,
        enable_prefix_caching=enable_prefix_caching,
        lora_bytes_per_unit=lora_bytes_per_unit,
    )


def workload(
    times: Any,
    prompts: Any,
    outputs: Any,
    *,
    after: Any = None,
    adapters: tuple[str, ...] = (),
    ranks: tuple[int, ...] = (),
    adapter: Any = None,
    keys: Any = None,
) -> Workload:
    """A segment for each request: [n] times, tokens it brings and tokens it gets, or one number for all."""
    times = np.asarray(times, dtype=np.float64)
    n = len(times)

    def column(values: Any, default: int) -> Any:
        return np.broadcast_to(np.asarray(default if values is None else values, dtype=np.int64), n).copy()

    own = range(n) if keys is None else keys
    return Workload(
        name="test",
        times=times,
        output_lengths=column(outputs, 1),
        priorities=column(None, 0),
        after=column(after, -1),
        adapter=column(adapter, -1),
        ends=np.arange(1, n + 1),
        keys=np.array([Kind.TEXT.key(key) for key in own], dtype=np.uint64),
        lengths=column(prompts, 1),
        ends_message=np.zeros(n, dtype=np.bool_),
        adapters=adapters,
        ranks=ranks,
    )


def poisson(count: int, rate: float, seed: int = 0) -> Any:
    """Times of `count` arrivals, from 0 on. [count]"""
    gaps = np.random.default_rng(seed).exponential(1 / rate, count - 1)
    return np.concatenate([[0.0], np.cumsum(gaps)])
