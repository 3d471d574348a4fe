"""The hardware table: plausible, sourced, and any value can be replaced."""

import pytest

from hybrid.capacity.hardware import HARDWARE, Hardware, find_hardware
from hybrid.capacity.model_file import open_model, weight_bytes
from hybrid.capacity.sizing.planning import plan
from hybrid.engine_memory import gpu_pool_memory
from hybrid.memory_size import default_cpu_memory

from .questions import BY_NAME, question


@pytest.mark.parametrize("hardware", HARDWARE.values(), ids=list(HARDWARE))
def test_entries(hardware: Hardware) -> None:
    assert hardware.source
    assert hardware.bandwidth is not None and 1e11 < hardware.bandwidth < 1e13
    rates = hardware.flops
    assert 1e14 < rates["bfloat16"] < 1e16
    assert rates.get("float32", 0) < rates["bfloat16"]
    assert 1.9 < rates.get("float8_e4m3fn", 2 * rates["bfloat16"]) / rates["bfloat16"] < 2.1


def test_values_can_be_replaced() -> None:
    found = find_hardware("H100", bandwidth=1e12, flops=5e13)
    assert found.bandwidth == 1e12 and found.flops["bfloat16"] == 5e13 and found.memory_bytes == 80 * 2**30
    with pytest.raises(ValueError, match=r"gpu 'h800' is not one of a100-40, .*, cpu"):
        find_hardware("h800")
    with pytest.raises(ValueError, match=r"bandwidth must be a positive number of at least 1, got 0"):
        find_hardware("h100", bandwidth=0)


def test_a_cpu_is_this_machine() -> None:
    """The pools get what the engine would give them; nobody states rates."""
    cpu = find_hardware("cpu")
    assert (cpu.memory_bytes, cpu.bandwidth, dict(cpu.flops)) == (default_cpu_memory(), None, {})
    assert plan(question("tiny", memory_bytes=None, hardware=cpu, context=100)).memory_bytes == default_cpu_memory()


def test_a_gpu_holds_the_weights_first() -> None:
    made = plan(question("Qwen3-8B", memory_bytes=None, hardware=find_hardware("l40s"), weights_dtype="bfloat16"))
    assert made.weights_bytes == weight_bytes(open_model(BY_NAME["Qwen3-8B"]), "bfloat16")
    assert made.working is not None
    assert made.memory_bytes == gpu_pool_memory(48 * 2**30 - made.weights_bytes, made.working.total)
