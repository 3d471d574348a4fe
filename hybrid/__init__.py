"""The package: what a program imports to generate text.

Knows names only. They are loaded when they are first used, so that `import hybrid`, the pools, the scheduler and the
planner start without torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .llm import LLM
    from .lora_request import LoRARequest
    from .outputs import CompletionOutput, Logprob, RequestOutput
    from .sampling_params import SamplingParams
    from .structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"

# On a CPU oneDNN, and torch above it, keep a compiled kernel for each matrix and number of rows, 1,024 by default, with
# up to 0.8 MiB for each: a server that meets new numbers of rows grows by 700 MiB. With 64 it grows by 55 MiB (with 128
# by 105), and steps are as fast: that is 8 numbers of rows for the eight or so shapes of a model, and a kernel that was
# let go takes 1 ms. Fewer than a step uses (8) may double the time of decodes. Both read the variable when they are
# first used, which may be after torch was imported; what the user has set stays.
for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "64")

__all__ = [
    "LLM",
    "CompletionOutput",
    "LoRARequest",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_MODULE_OF = {
    "LLM": ".llm",
    "CompletionOutput": ".outputs",
    "LoRARequest": ".lora_request",
    "Logprob": ".outputs",
    "RequestOutput": ".outputs",
    "SamplingParams": ".sampling_params",
    "StructuredOutputsParams": ".structured_outputs",
}


def __getattr__(name: str) -> object:
    """Import the module of an exported name when the name is first asked for (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
