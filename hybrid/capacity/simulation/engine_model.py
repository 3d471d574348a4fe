"""EngineModel: an engine as far as a simulation needs it: scheduler, pools, and a step's time instead of a runner."""

from dataclasses import dataclass

from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.scheduler.config import SchedulerConfig

from ..step_time.step_time import StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """lora_bytes_per_unit: of 8 ranks of an adapter, as it is read from disk. image_entries: tokens of the entries that
    an image has in the encoder pool; none: it is one entry."""

    config: SchedulerConfig
    sizes: PoolSizes
    kinds: Kinds
    step_time: StepTime
    vocab_size: int
    enable_prefix_caching: bool = True
    lora_bytes_per_unit: int = 0
    image_entries: tuple[int, ...] = ()
