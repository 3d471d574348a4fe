"""What 39 published models keep per request, read off their `config.json`, against arithmetic written down by hand.

`model_configs/` holds public values of `config.json` files; cosmetic keys may be defaults. The table below was read
from them by a person: how many layers of each kind there are, and their sizes.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hybrid.models.families import layer_specs
from hybrid.pools.specs import FullAttentionSpec, MambaSpec, ModelSpec, SlidingWindowSpec

FOLDER = Path(__file__).parent / "model_configs"
BF16, FP32 = 2, 4
MIB, GIB = 2**20, 2**30
KINDS = (FullAttentionSpec, SlidingWindowSpec, MambaSpec)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a model keeps, in elements; layers, then sizes. `state` counts (convolution, SSM) elements per layer."""

    full: tuple[int, int, int] = (0, 0, 0)  # layers, kv heads, head size
    window: tuple[int, int, int, int] = (0, 0, 0, 0)  # layers, kv heads, head size, window
    states: int = 0  # layers with a recurrent state
    state: tuple[int, int] = (0, 0)
    image: tuple[int, int] | None = None  # embeddings, and elements of each; None: served without images

    def full_bytes_per_token(self, element: int = BF16) -> int:
        layers, heads, size = self.full
        return 2 * layers * heads * size * element

    def window_bytes_per_token(self, element: int = BF16) -> int:
        layers, heads, size, _ = self.window
        return 2 * layers * heads * size * element

    def state_bytes(self, conv_element: int = BF16, ssm_element: int = FP32) -> int:
        conv, ssm = self.state
        return self.states * (conv * conv_element + ssm * ssm_element)


def mamba1(d_inner: int, d_state: int, d_conv: int) -> tuple[int, int]:
    return d_inner * (d_conv - 1), d_inner * d_state


def mamba2(n_heads: int, head_dim: int, n_groups: int, d_state: int, d_conv: int) -> tuple[int, int]:
    return (n_heads * head_dim + 2 * n_groups * d_state) * (d_conv - 1), n_heads * head_dim * d_state


def delta_net(n_k: int, d_k: int, n_v: int, d_v: int, kernel: int) -> tuple[int, int]:
    return (2 * n_k * d_k + n_v * d_v) * (kernel - 1), n_v * d_v * d_k


def short_conv(hidden: int, l_cache: int) -> tuple[int, int]:
    return hidden * (l_cache - 1), 0


FACTS = {
    # Mamba-1 beside attention every 14th and every 8th layer
    "AI21-Jamba-Reasoning-3B": Facts(full=(2, 1, 128), states=26, state=mamba1(5120, 16, 4)),
    "Jamba-v0.1": Facts(full=(4, 8, 128), states=28, state=mamba1(8192, 16, 4)),
    # Mamba-2 beside attention
    "Bamba-9B": Facts(full=(3, 8, 128), states=29, state=mamba2(128, 64, 1, 128, 4)),
    "granite-4.0-h-1b": Facts(full=(4, 4, 128), states=36, state=mamba2(48, 64, 1, 128, 4)),
    "granite-4.0-h-tiny": Facts(full=(4, 4, 128), states=36, state=mamba2(48, 64, 1, 128, 4)),
    "granite-4.0-h-micro": Facts(full=(4, 8, 64), states=36, state=mamba2(64, 64, 1, 128, 4)),
    "granite-4.0-h-small": Facts(full=(4, 8, 128), states=36, state=mamba2(128, 64, 1, 128, 4)),
    "NVIDIA-Nemotron-Nano-9B-v2": Facts(full=(4, 8, 128), states=27, state=mamba2(128, 80, 8, 128, 4)),
    "Nemotron-3-Nano-30B-A3B": Facts(full=(6, 2, 128), states=23, state=mamba2(64, 64, 8, 128, 4)),
    "Nemotron-H-8B-Base-8K": Facts(full=(4, 8, 128), states=24, state=mamba2(128, 64, 8, 128, 4)),
    "Nemotron-H-56B-Base-8K": Facts(full=(10, 8, 128), states=54, state=mamba2(256, 64, 8, 256, 4)),
    # both in every layer; both in 9 of 54 layers
    "Falcon-H1-0.5B": Facts(full=(36, 2, 64), states=36, state=mamba2(24, 64, 1, 128, 4)),
    "Falcon-H1-3B": Facts(full=(32, 2, 128), states=32, state=mamba2(32, 128, 1, 256, 4)),
    "Falcon-H1-7B": Facts(full=(44, 2, 128), states=44, state=mamba2(24, 128, 1, 256, 4)),
    "Zamba2-2.7B": Facts(full=(9, 32, 160), states=54, state=mamba2(80, 64, 1, 64, 4)),
    # states alone
    "Falcon-Mamba-7B": Facts(states=64, state=mamba1(8192, 16, 4)),
    "mamba-130m-hf": Facts(states=24, state=mamba1(1536, 16, 4)),
    "mamba-2.8b-hf": Facts(states=64, state=mamba1(5120, 16, 4)),
    "mamba2-2.7b": Facts(states=64, state=mamba2(80, 64, 1, 128, 4)),
    # short convolutions beside attention
    "LFM2-350M": Facts(full=(6, 8, 64), states=10, state=short_conv(1024, 3)),
    "LFM2-1.2B": Facts(full=(6, 8, 64), states=10, state=short_conv(2048, 3)),
    "LFM2-2.6B": Facts(full=(8, 8, 64), states=22, state=short_conv(2048, 3)),
    "LFM2-VL-450M": Facts(full=(6, 8, 64), states=10, state=short_conv(1024, 3), image=(256, 1024)),
    # gated delta net beside attention
    "Qwen3-Next-80B-A3B-Instruct": Facts(full=(12, 2, 256), states=36, state=delta_net(16, 128, 32, 128, 4)),
    "Qwen3.5-27B": Facts(full=(16, 4, 256), states=48, state=delta_net(16, 128, 48, 128, 4), image=(16384, 5120)),
    "Qwen3.5-35B-A3B": Facts(full=(10, 2, 256), states=30, state=delta_net(16, 128, 32, 128, 4), image=(16384, 2048)),
    # sliding windows beside full attention; Mistral slides everywhere
    "Mistral-7B-v0.1": Facts(window=(32, 8, 128, 4096)),
    "gemma-3-4b-it": Facts(full=(5, 4, 256), window=(29, 4, 256, 1024), image=(256, 2560)),
    "gemma-3-12b-it": Facts(full=(8, 8, 256), window=(40, 8, 256, 1024), image=(256, 3840)),
    "gemma-3-27b-it": Facts(full=(10, 16, 128), window=(52, 16, 128, 1024), image=(256, 5376)),
    "gemma-4-26B-A4B": Facts(full=(5, 2, 512), window=(25, 8, 256, 1024)),
    "gpt-oss-20b": Facts(full=(12, 8, 64), window=(12, 8, 64, 128)),
    "gpt-oss-120b": Facts(full=(18, 8, 64), window=(18, 8, 64, 128)),
    # full attention alone
    "Llama-3.1-8B": Facts(full=(32, 8, 128)),
    "Qwen3-8B": Facts(full=(36, 8, 128)),
    "Qwen2.5-VL-7B-Instruct": Facts(full=(28, 4, 128), image=(16384, 3584)),
    "Qwen3-VL-4B-Instruct": Facts(full=(36, 8, 128), image=(16384, 4 * 2560)),
    "SmolVLM-256M-Instruct": Facts(full=(30, 3, 64), image=(64, 576)),
    "SmolVLM-Instruct": Facts(full=(24, 32, 64), image=(81, 2048)),
}
DTYPES = {"bfloat16": 2, "float32": 4, "float8_e4m3fn": 1}


def config(name: str, **changed: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return values | changed


def test_every_file_has_its_facts() -> None:
    assert len(FACTS) == 39
    assert set(FACTS) == {path.stem for path in FOLDER.glob("*.json")}


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize(("dtype", "state_dtype"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_bytes(name: str, dtype: str, state_dtype: str) -> None:
    facts, spec = FACTS[name], layer_specs(config(name), dtype, state_dtype)
    kv, ssm = DTYPES[dtype], DTYPES[state_dtype]
    assert spec.full_bytes_per_token == facts.full_bytes_per_token(kv)
    assert spec.window_bytes_per_token == facts.window_bytes_per_token(kv)
    assert spec.sliding_window == facts.window[3]
    assert spec.state_bytes_per_slot == facts.state_bytes(kv, ssm)
    image = None if spec.encoder is None else (spec.encoder.max_tokens_per_image, spec.encoder.hidden_size)
    assert image == facts.image


@pytest.mark.parametrize("name", FACTS)
def test_layers(name: str) -> None:
    facts, spec = FACTS[name], layer_specs(config(name))
    counts = {kind: sum(isinstance(s, kind) for layer in spec.layers for s in layer) for kind in KINDS}
    assert counts == {
        FullAttentionSpec: facts.full[0],
        SlidingWindowSpec: facts.window[0],
        MambaSpec: facts.states,
    }


@pytest.mark.parametrize(
    ("name", "layers"),
    [("NVIDIA-Nemotron-Nano-9B-v2", 56), ("Nemotron-H-56B-Base-8K", 118), ("Nemotron-3-Nano-30B-A3B", 52)],
)
def test_layers_without_anything_to_keep_are_there(name: str, layers: int) -> None:
    spec = layer_specs(config(name))
    assert len(spec.layers) == layers
    assert () in spec.layers


def test_layers_with_two_things_to_keep() -> None:
    """falcon_h1: every layer; zamba2: the layers 6, 12, .. that its file lists."""
    assert all(len(layer) == 2 for layer in layer_specs(config("Falcon-H1-7B")).layers)
    zamba = layer_specs(config("Zamba2-2.7B")).layers
    assert [i for i, layer in enumerate(zamba) if len(layer) == 2] == [6, 12, 18, 24, 30, 36, 42, 47, 51]


def test_qwen3_5_4b() -> None:
    """51,511,296 bytes of state: 24 of 32 layers, 16 key and 32 value heads of 128; bf16 convolution, fp32 state."""
    published = config("Qwen3.5-27B")
    text = published["text_config"]
    small = {"num_hidden_layers": 32, "layer_types": text["layer_types"][:32], "linear_num_value_heads": 32}
    published["text_config"] = text | small
    assert layer_specs(published).state_bytes_per_slot == 51_511_296


def test_qwen3_5_27b() -> None:
    """598.50 MiB of state for 4 requests, all in fp32; 16,384 MiB of keys and values at 262,144 tokens."""
    name = "Qwen3.5-27B"
    assert 4 * layer_specs(config(name), "float32", "float32").state_bytes_per_slot == 598.5 * MIB
    assert 262_144 * layer_specs(config(name)).full_bytes_per_token == 16_384 * MIB


def kept(spec: ModelSpec, tokens: int) -> int:
    """Bytes of keys and values of a request, the window at its cap."""
    return tokens * spec.full_bytes_per_token + min(tokens, spec.sliding_window) * spec.window_bytes_per_token


def test_gpt_oss_20b() -> None:
    """32 requests of 8,192 tokens in bf16: 6.09 GiB with the window capped, 12.00 GiB if every layer were full."""
    spec = layer_specs(config("gpt-oss-20b"))
    assert round(32 * kept(spec, 8192) / GIB, 2) == 6.09
    everything = spec.full_bytes_per_token + spec.window_bytes_per_token
    assert 32 * 8192 * everything == 12 * GIB


def test_gpt_oss_120b() -> None:
    """1.1341 GiB at 65,936 tokens with one-byte keys and values."""
    spec = layer_specs(config("gpt-oss-120b"), "float8_e4m3fn")
    assert round(kept(spec, 65_936) / GIB, 4) == 1.1341


def test_falcon_h1() -> None:
    """0.5B: 1,792 channels of the convolution, a state of 24 x 64 x 128, 2 kv heads of 64."""
    for layer in layer_specs(config("Falcon-H1-0.5B")).layers:
        (state,) = (spec for spec in layer if isinstance(spec, MambaSpec))
        (attention,) = (spec for spec in layer if isinstance(spec, FullAttentionSpec))
        assert state.conv_shape == (1792, 3)
        assert state.ssm_shape == (24, 64, 128)
        assert (attention.num_kv_heads, attention.head_size) == (2, 64)


@pytest.mark.parametrize("name", ["Jamba-v0.1", "Mistral-7B-v0.1", "NVIDIA-Nemotron-Nano-9B-v2", "Llama-3.1-8B"])
def test_a_window_that_is_null_is_off(name: str) -> None:
    assert layer_specs(config(name, sliding_window=None)).sliding_window == 0


def test_no_torch() -> None:
    """All files are read in a process that never imports it."""
    program = f"""
import json, pathlib, sys
from hybrid.models.families import layer_specs
paths = list(pathlib.Path({str(FOLDER)!r}).glob("*.json"))
for path in paths:
    layer_specs(json.loads(path.read_text(encoding="utf-8")))
assert "torch" not in sys.modules
print(len(paths))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "39", result.stderr
