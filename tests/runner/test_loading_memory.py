"""Loading takes little more memory than the weights themselves: measured in a process of its own.

The peak is the kernel's (VmHWM), which counts every page that is mapped or allocated.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hybrid.checkpoints import find_checkpoint
from hybrid.models.blueprint.config_reader import ConfigReader
from hybrid.models.families import llama, read_model

CONFIG = {
    "model_type": "llama",
    "vocab_size": 4000,
    "hidden_size": 896,
    "intermediate_size": 2304,
    "num_hidden_layers": 11,
    "num_attention_heads": 14,
    "num_key_value_heads": 14,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
TENSORS = llama.model(ConfigReader(CONFIG)).tensors()
NUM_SHARDS = 5
MOST = 1.2
MOST_TIED = 1.35
MEASURE = """
import sys, torch
from hybrid.runner.loading import load

def status(key):
    [line] = [line for line in open("/proc/self/status") if line.startswith(key)]
    return int(line.split()[1]) * 1024

load(sys.argv[3])  # everything that is imported and allocated once
dtype = getattr(torch, sys.argv[2])
before, earlier_peak = status("VmRSS"), status("VmHWM")
kept = load(sys.argv[1], dtype)
peak = status("VmHWM")
assert peak > earlier_peak, "the peak is not that of loading"
print(peak - before)
"""


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Cheap ones: drawing them at random would take longest of all."""
    count = torch.Size(shape).numel()
    return (torch.arange(4096).repeat(count // 4096 + 1)[:count].view(shape) / 8192 - 0.25).to(dtype)


def write_shards(folder: Path, dtype: torch.dtype) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "dtype": str(dtype).removeprefix("torch.")}))
    names = list(TENSORS)
    weight_map: dict[str, str] = {}
    for shard in range(NUM_SHARDS):  # dealt out like cards: every layer lies in several files
        file = f"model-{shard + 1:05d}-of-{NUM_SHARDS:05d}.safetensors"
        tensors = {name: numbers(TENSORS[name], dtype) for name in names[shard::NUM_SHARDS]}
        save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def peak(checkpoint: Path, dtype: str, small: Path) -> int:
    """Bytes by which the process grew at most."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, checkpoint, dtype, small],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture
def small() -> Path:
    return Path(__file__).parents[2] / "models" / "checkpoints" / "tiny"


@pytest.mark.parametrize(
    ("stored", "loaded"), [("float32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_peak_memory_is_at_most_a_fifth_above_the_weights(
    stored: str, loaded: str, small: Path, tmp_path: Path
) -> None:
    write_shards(tmp_path / "big", getattr(torch, stored))
    count = sum(torch.Size(shape).numel() for shape in TENSORS.values())
    weights = count * getattr(torch, loaded).itemsize
    grown = peak(tmp_path / "big", loaded, small)
    assert weights * 0.9 < grown < weights * MOST, f"{grown / weights:.3f} times {weights:,} bytes"


def test_peak_memory_of_a_vision_tower(small: Path, tmp_path: Path) -> None:
    """The tower of the bundled model, much larger than its decoder."""
    config = json.loads((small / "config.json").read_text())
    config["vision_config"] |= {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = read_model(config).tensors()
    save_file({name: numbers(shape, torch.bfloat16) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    weights = sum(torch.Size(shape).numel() for shape in shapes.values()) * 4
    grown = peak(tmp_path, "float32", small)
    assert weights * 0.9 < grown < weights * MOST, f"{grown / weights:.3f} times {weights:,} bytes"


def test_peak_memory_of_a_gguf_file(small: Path) -> None:
    """SmolLM2 ties its head to the embedding, which is there twice on a CPU: as a table, and packed.

    Against the weights counted once the peak is therefore more than a fifth above them; that is bounded too.
    """
    path = find_checkpoint("smollm2")
    table = 49_152 * 576
    once = 134_515_008 * 4
    weights = once + table * 4
    grown = peak(path, "float32", small)
    assert weights * 0.9 < grown < weights * MOST, f"{grown / weights:.3f} times {weights:,} bytes"
    assert grown < once * MOST_TIED, f"{grown / once:.3f} times {once:,} bytes"
