"""LoraCache remembers the adapters that lie in it, and no others."""

import numpy as np
import torch

from hybrid.adapters.weights import AdapterWeights
from hybrid.runner.lora_cache import LoraCache
from hybrid.scheduler.plan import LoadAdapter


def test_who_is_overwritten_is_forgotten() -> None:
    cache = LoraCache((), (), 4, torch.float32, torch.device("cpu"))
    nothing = AdapterWeights(rank=8, modules={})
    for lora_id, units, there in ((1, (0,), 1), (2, (1, 2), 2), (3, (3,), 3), (4, (2,), 3), (5, (0, 1, 2, 3), 1)):
        cache.load(LoadAdapter(lora_id, np.array(units)), nothing)
        assert len(cache) == there
    assert cache.batch(np.array([5, 0]), np.array([2, 1])) is not None
