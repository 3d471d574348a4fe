"""Arguments of vLLM that choose nothing here: taken where they ask for what happens anyway, so that scripts written for
it run, and refused in one sentence where they ask for anything else. Those that mean something are in EngineArgs.
"""

from collections.abc import Collection, Mapping
from typing import Any

_ONE_DEVICE = "a model runs on one device"
_YES_OR_NO = (True, False)

# By name: the values that are taken, and why there are no others.
_TAKEN: Mapping[str, tuple[Collection[object], str]] = {
    "tensor_parallel_size": ((1,), _ONE_DEVICE),
    "pipeline_parallel_size": ((1,), _ONE_DEVICE),
    "data_parallel_size": ((1,), _ONE_DEVICE),
    "trust_remote_code": ((False,), "no code of a checkpoint is ever run"),
    "enable_chunked_prefill": ((True, None), "prompts that do not fit into a step are always computed in chunks"),
    "quantization": ((None,), "weights are served in a floating-point dtype"),
    "kv_cache_dtype": (("auto",), "keys and values have the dtype of the weights"),
    "load_format": (("auto", "safetensors"), "the files of the checkpoint say how they are read"),
    "cpu_offload_gb": ((0,), "weights stay on their device"),
    "swap_space": ((0, 4), "requests that lose their memory are recomputed, not swapped"),
    "disable_log_stats": (_YES_OR_NO, "statistics are not logged; GET /metrics has them"),
    "enable_tower_connector_lora": ((True,), "lora_target_modules says what adapters may change"),
    "enable_auto_tool_choice": (_YES_OR_NO, "tool calls are always found"),
    "tool_call_parser": ((None, "hermes", "llama3_json"), "calls are read as those two write them"),
}


def without_vllm(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are none of these. Raises ValueError for a value that cannot be honoured."""
    for name, value in arguments.items():
        if name in _TAKEN:
            taken, reason = _TAKEN[name]
            if value not in taken:
                raise ValueError(f"{name} {value!r} is not supported: {reason}")
    return {name: value for name, value in arguments.items() if name not in _TAKEN}
