"""Values that other people published, as answers of the planner. With blocks of one token nothing is rounded up."""

import json
from dataclasses import replace
from typing import Any

from hybrid.capacity.sizing.planning import Plan, plan
from hybrid.models.families import read_model
from tests.capacity.questions import BY_NAME, GIB, MIB, longer, planned, question


def exact(name: str, tokens: int, **more: Any) -> Plan:
    """Of requests with so many tokens in all, in memory for about as many as anybody likes."""
    asked = question(name, memory_bytes=500 * GIB, context=tokens - 1, output=1, block_size=1, **more)
    return plan(longer(asked, tokens))


def test_qwen3_5_4b() -> None:
    """51,511,296 bytes of state: Qwen3.5-27B with 24 recurrent of 32 layers and 32 value heads."""
    published = json.loads(BY_NAME["Qwen3.5-27B"].read_text(encoding="utf-8"))
    text = published["text_config"]
    published["text_config"] = text | {
        "num_hidden_layers": 32, "layer_types": text["layer_types"][:32], "linear_num_value_heads": 32
    }  # fmt: skip
    made = plan(replace(question("Qwen3.5-27B", weights_dtype="bfloat16"), model=read_model(published)))
    assert made.request_bytes.state == 51_511_296


def test_qwen3_5_27b() -> None:
    """598.50 MiB of state for 4 requests with a convolution in fp32; 16,384 MiB of keys and values at 262,144."""
    assert 4 * exact("Qwen3.5-27B", 1000, weights_dtype="float32").request_bytes.state == 598.5 * MIB
    assert exact("Qwen3.5-27B", 262_144, weights_dtype="bfloat16").request_bytes.full == 16_384 * MIB


def test_gpt_oss_20b() -> None:
    """32 x 8,192 tokens in bf16: 6.09 GiB with the window capped, 12.00 GiB if every layer were full."""
    made = exact("gpt-oss-20b", 8192, weights_dtype="bfloat16")
    assert round(32 * made.request_bytes.total / GIB, 2) == 6.09
    assert 32 * 8192 * (made.spec.full_bytes_per_token + made.spec.window_bytes_per_token) == 12 * GIB


def test_gpt_oss_120b() -> None:
    """1.1341 GiB at 65,936 tokens with one-byte keys and values."""
    made = exact("gpt-oss-120b", 65_936, weights_dtype="bfloat16", kv_dtype="float8_e4m3fn")
    assert round(made.request_bytes.total / GIB, 4) == 1.1341


def test_falcon_h1() -> None:
    """0.5B, 36 layers: 1,792 channels of a convolution over 4, a state of 24 x 64 x 128, 2 kv heads of 64."""
    made = planned("Falcon-H1-0.5B", context=1024, output=1024, weights_dtype="bfloat16")
    assert made.request_bytes.state == 36 * (1792 * 3 * 2 + 24 * 64 * 128 * 4)
    assert made.request_bytes.full == 2048 * 36 * 2 * 2 * 64 * 2
