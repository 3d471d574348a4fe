"""What a LoRA adapter may change, and what a rank unit of it costs."""

import pytest

from hybrid.models.families import read_model
from tests.models.families.oracle import all_cases


@pytest.mark.parametrize("case", ["llama: ", "qwen3_moe: ", "mamba2: ", "gemma4_text: "])
def test_targets_are_projections_tables_and_stacked_experts(case: str) -> None:
    config = next(config for name, config in all_cases().items() if name.startswith(case))
    model = read_model(config.to_dict())
    targets = model.lora_targets()
    tensors = model.tensors()
    decoder = model.decoder
    assert targets[decoder.embedding.removesuffix(".weight")] == (decoder.hidden_size, decoder.vocab_size)
    for name, shape in targets.items():
        stored = tensors.get(f"{name}.weight")
        assert stored is None or shape in (stored, stored[::-1])
    experts = [shape for shape in targets.values() if len(shape) == 3]
    assert bool(experts) == (case == "qwen3_moe: ")
    assert not any(".experts.0." in name for name in targets)


def test_bytes_of_a_unit() -> None:
    config = next(config for name, config in all_cases().items() if name.startswith("llama: "))
    model = read_model(config.to_dict())
    hidden = model.decoder.hidden_size
    o_proj = model.tensors()["model.layers.0.self_attn.o_proj.weight"]
    layers = len(model.decoder.layers)
    assert o_proj[0] == hidden
    assert model.lora_bytes_per_unit("bfloat16", ["o_proj"]) == 2 * 8 * sum(o_proj) * layers
    assert model.lora_bytes_per_unit("float32") == 4 * 8 * sum(sum(shape) for shape in model.lora_targets().values())
