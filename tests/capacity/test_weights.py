"""Parameter counts and weight bytes are those of transformers, on the meta device: of every family and of models as
large as they are published."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig

from hybrid.capacity.model_file import num_parameters, open_model, weight_bytes
from hybrid.models.families.shared.vision_language import TOWERS
from hybrid.models.families.vision import TYPES
from tests.models.families.oracle import CORRECTIONS, all_cases, exporter

from .questions import BY_NAME

FAMILIES = {name.split(":")[0]: config for name, config in all_cases().items() if exporter(name) is None}
LARGE = ("Jamba-v0.1", "Nemotron-H-8B-Base-8K", "granite-4.0-h-tiny", "Falcon-H1-7B", "gpt-oss-20b", "Qwen3-8B")


def counted(config: PreTrainedConfig) -> tuple[int, int]:
    """Elements and bytes in bfloat16 of transformers' model; without what sees images where images are refused."""
    auto: Any = AutoModelForImageTextToText if "vision_config" in config.sub_configs else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config, dtype=torch.bfloat16)
    unused = "$^" if config.model_type in TYPES else rf"(^|\.)({TOWERS})\."
    kept = [tensor for name, tensor in model.named_parameters() if not re.search(unused, name)]
    kept += [tensor for name, tensor in model.named_buffers() if name.endswith(CORRECTIONS)]
    return sum(tensor.numel() for tensor in kept), sum(2 * tensor.numel() for tensor in kept)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, tmp_path: Path) -> None:
    config = FAMILIES[family]
    config.save_pretrained(tmp_path)
    model = open_model(tmp_path / "config.json")
    assert (num_parameters(model), weight_bytes(model, "bfloat16")) == counted(config)


@pytest.mark.parametrize("name", LARGE)
def test_as_large_as_published(name: str) -> None:
    values = json.loads(BY_NAME[name].read_text(encoding="utf-8"))
    values.pop("quantization_config", None)
    model = open_model(BY_NAME[name])
    config = AutoConfig.for_model(**values)
    assert (num_parameters(model), weight_bytes(model, "bfloat16")) == counted(config)
