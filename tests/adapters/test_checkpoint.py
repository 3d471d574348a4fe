"""PEFT checkpoints: what is read is what PEFT merges, for every option and every family; all else is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybrid.adapters.checkpoint import AdapterCheckpoint, open_adapter
from hybrid.adapters.naming import ModuleNames
from hybrid.models.loading import open_checkpoint

from ..models.families.oracle import Oracle, all_cases, exporter
from .peft_adapters import (
    LLAMA_TARGETS,
    decoder_modules,
    deltas,
    expert_parameters,
    product,
    save_adapter,
    tiny_llama,
)

NAMES = ModuleNames(LLAMA_TARGETS)


def opened(folder: Path, max_rank: int = 64) -> AdapterCheckpoint:
    return open_adapter(folder, NAMES, max_rank)


OPTIONS: dict[str, dict[str, Any]] = {
    "list": {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 16},
    "regex": {"target_modules": r".*layers\.[02]\.mlp\.(up|down)_proj", "r": 3, "lora_alpha": 5},
    "all-linear": {"target_modules": "all-linear", "r": 1},
    "rslora": {"target_modules": ["o_proj"], "r": 9, "use_rslora": True, "lora_alpha": 7},
    "patterns": {
        "target_modules": ["q_proj", "k_proj", "down_proj"],
        "r": 4,
        "rank_pattern": {"q_proj": 2, r"model\.layers\.1\.mlp\.down_proj": 11, "^model.layers.2.self_attn.k_proj": 6},
        "alpha_pattern": {r"layers.[01].*\.q_proj": 3, "down_proj": 1.5},
    },
    "patterns and rslora": {
        "target_modules": ["q_proj"],
        "r": 4,
        "use_rslora": True,
        "rank_pattern": {"0.self_attn.q_proj": 16},
        "alpha_pattern": {"1.self_attn.q_proj": 2},
    },
    "layers": {"target_modules": ["q_proj"], "layers_to_transform": [0, 2], "layers_pattern": "layers"},
    "one layer": {"target_modules": ["gate_proj"], "layers_to_transform": 1},
    "excluded": {"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["0.self_attn.q_proj"]},
    "excluded by regex": {"target_modules": "all-linear", "exclude_modules": r".*layers\.1\..*"},
    "head": {"target_modules": ["lm_head", "v_proj"], "r": 2},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"], "r": 5},
    "fan_in_fan_out": {"target_modules": ["q_proj"], "fan_in_fan_out": True},
    "gaussian, dropout": {"target_modules": ["q_proj"], "init_lora_weights": "gaussian", "lora_dropout": 0.3},
    "by parameter": {"target_modules": [], "target_parameters": ["mlp.down_proj.weight"], "r": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_options_mean_what_they_mean_in_peft(tmp_path: Path, options: dict[str, Any]) -> None:
    adapted = save_adapter(tiny_llama(), tmp_path, **options)
    checkpoint = opened(tmp_path)
    weights, expected = checkpoint.read(), deltas(adapted)
    assert weights.modules.keys() == expected.keys()
    assert weights.rank == checkpoint.rank == max(len(matrices.a) for matrices in weights.modules.values())
    for name, delta in expected.items():
        found = product(weights.modules[name])
        torch.testing.assert_close(found.T if name == "model.embed_tokens" else found, delta, rtol=1e-5, atol=1e-6)


FIRST_CASES = {name.split(":")[0]: name for name in reversed(list(all_cases()))}
# Its layers share modules that PEFT adapts in each of them anew.
SHARED = {"zamba2"}


@pytest.mark.parametrize("family", sorted(FIRST_CASES.keys() - SHARED))
def test_everything_that_peft_adapts_in_every_family(tmp_path: Path, family: str) -> None:
    """transformers' own names, all modules and stacked experts at once, of several ranks."""
    case = FIRST_CASES[family]
    oracle = Oracle(all_cases()[case], tmp_path / "model", export=exporter(case))
    names = ModuleNames(open_checkpoint(tmp_path / "model").model.lora_targets())
    adapted = save_adapter(
        oracle.model,
        tmp_path / "adapter",
        r=3,
        lora_alpha=7,
        target_modules=decoder_modules(oracle.model),
        target_parameters=expert_parameters(oracle.model) or None,
        rank_pattern={"down_proj": 2, "k_proj": 5, r"layers\.1\..*\.in_proj": 6},
    )
    weights, expected = open_adapter(tmp_path / "adapter", names, 64).read(), deltas(adapted)
    assert len(weights.modules) == len(expected) > 5
    for name, delta in expected.items():
        container, _, last = name.rpartition(".")
        experts = names.experts(container) if delta.ndim == 3 else None
        target = (experts.down if last == "down_proj" else experts.up) if experts is not None else names.module(name)
        assert target is not None, name
        found = product(weights.modules[target])
        if found.shape != delta.shape or (family == "gpt_oss" and found.ndim == 3) or "embed" in name:
            found = found.mT  # gpt-oss stores experts as [E, in, out], tables are [vocab, hidden]
        torch.testing.assert_close(found, delta, rtol=1e-4, atol=1e-5)


def test_shared_blocks_are_refused_by_name(tmp_path: Path) -> None:
    case = FIRST_CASES["zamba2"]
    oracle = Oracle(all_cases()[case], tmp_path / "model", export=exporter(case))
    names = ModuleNames(open_checkpoint(tmp_path / "model").model.lora_targets())
    adapted = save_adapter(oracle.model, tmp_path / "adapter", target_modules=["gate_up_proj"])
    with pytest.raises(ValueError, match=r"does not have or .*shared_transformer.feed_forward.gate_up_proj"):
        open_adapter(tmp_path / "adapter", names, 64)
    save_adapter(adapted.unload(), tmp_path / "mamba", target_modules=["in_proj"])
    assert len(open_adapter(tmp_path / "mamba", names, 64).read().modules) > 1


@pytest.mark.parametrize("parameters", [["experts.gate_up_proj"], ["experts.down_proj"]])
def test_one_of_the_two_stacked_parameters(tmp_path: Path, parameters: list[str]) -> None:
    """The matrices of either lie under the same name: the configuration says whose they are."""
    case = FIRST_CASES["qwen3_moe"]
    oracle = Oracle(all_cases()[case], tmp_path / "model")
    names = ModuleNames(open_checkpoint(tmp_path / "model").model.lora_targets())
    adapted = save_adapter(oracle.model, tmp_path / "adapter", target_modules=["k_proj"], target_parameters=parameters)
    weights = open_adapter(tmp_path / "adapter", names, 64).read()
    expected = deltas(adapted)
    assert weights.modules.keys() == expected.keys() and any(parameters[0] in name for name in expected)
    for name, delta in expected.items():
        torch.testing.assert_close(product(weights.modules[name]), delta)


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4} | config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def pair(module: str, inputs: int, outputs: int, rank: int = 2, name: str = "") -> dict[str, torch.Tensor]:
    key = f"base_model.model.{module}.lora_%s{name}.weight"
    generator = torch.Generator().manual_seed(len(module))
    a, b = torch.randn(rank, inputs, generator=generator), torch.randn(outputs, rank, generator=generator)
    return {key % "A": a, key % "B": b}


Q = "model.layers.0.self_attn.q_proj"


def test_experts_that_are_named_one_by_one(tmp_path: Path) -> None:
    """As adapters were saved before transformers stacked experts; gate and up become one projection of both ranks."""
    names = ModuleNames(
        {"model.layers.0.mlp.experts.gate_up_proj": (3, 8, 6), "model.layers.0.mlp.experts.down_proj": (3, 6, 4)}
    )
    at = "model.layers.0.mlp.experts"
    tensors = pair(f"{at}.0.w1", 6, 4) | pair(f"{at}.0.w3", 6, 4) | pair(f"{at}.2.w3", 6, 4) | pair(f"{at}.1.w2", 4, 6)
    write(tmp_path, {"target_modules": ["w1", "w2", "w3"]}, tensors)
    checkpoint = open_adapter(tmp_path, names, 4)
    weights = checkpoint.read()
    assert checkpoint.rank == weights.rank == 4

    def alone(module: str) -> torch.Tensor:
        a, b = (tensors[f"base_model.model.{module}.lora_{which}.weight"] for which in "AB")
        return 2 * b @ a

    up, down = product(weights.modules[f"{at}.gate_up_proj"]), product(weights.modules[f"{at}.down_proj"])
    torch.testing.assert_close(up[0], torch.cat([alone(f"{at}.0.w1"), alone(f"{at}.0.w3")]))
    torch.testing.assert_close(up[2], torch.cat([torch.zeros(4, 6), alone(f"{at}.2.w3")]))
    torch.testing.assert_close(down[1], alone(f"{at}.1.w2"))
    assert not up[1].any() and not down[0].any() and not down[2].any()
    with pytest.raises(
        ValueError, match=r"rank 4 \(where gate and up are one, their ranks add up\) is more than max_lora_rank 3"
    ):
        open_adapter(tmp_path, names, 3)
    write(tmp_path, {"target_modules": ["w1"]}, pair(f"{at}.3.w1", 6, 4))
    with pytest.raises(ValueError, match=r"does not have or that LoRA cannot change: .*experts\.3\.w1"):
        open_adapter(tmp_path, names, 4)


def test_experts_without_a_gate(tmp_path: Path) -> None:
    names = ModuleNames(
        {"backbone.layers.0.mixer.experts.up_proj": (2, 4, 6), "backbone.layers.0.mixer.experts.down_proj": (2, 6, 4)}
    )
    tensors = pair("backbone.layers.0.mixer.experts.1.up_proj", 6, 4)
    weights = open_adapter(write(tmp_path, {"target_modules": ["up_proj"]}, tensors), names, 8).read()
    a, b = tensors.values()
    torch.testing.assert_close(product(weights.modules["backbone.layers.0.mixer.experts.up_proj"])[1], 2 * b @ a)


@pytest.mark.parametrize(
    "prefix", ["model.", "model.language_model.", "model.text_model.", "language_model.model.", ""]
)
@pytest.mark.parametrize("name", ["", ".default", ".my adapter"])
def test_names_as_wrappers_and_old_versions_spell_them(tmp_path: Path, prefix: str, name: str) -> None:
    tensors = pair(f"{prefix}layers.0.self_attn.q_proj", 16, 16, name=name)
    checkpoint = opened(write(tmp_path, {"target_modules": ["q_proj"]}, tensors))
    assert list(checkpoint.read().modules) == [Q]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_stays(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in pair(Q, 16, 16).items()}
    matrices = opened(write(tmp_path, {"target_modules": ["q_proj"]}, tensors)).read().modules[Q]
    assert matrices.a.dtype == matrices.b.dtype == dtype


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
    ({"peft_type": "LOKR"}, "peft_type is 'LOKR'"),
    ({"peft_type": None}, "peft_type is None"),
    ({"bias": "all"}, "bias is 'all'"),
    ({"bias": "lora_only"}, "bias is 'lora_only'"),
    ({"use_dora": True}, "use_dora True: DoRA is not supported"),
    ({"modules_to_save": ["lm_head"]}, r"modules_to_save \['lm_head'\]"),
    ({"trainable_token_indices": [1]}, r"trainable_token_indices \[1\]"),
    ({"lora_bias": True}, "lora_bias True"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
    ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
    ({"init_lora_weights": "loftq"}, "init_lora_weights is 'loftq'"),
    ({"init_lora_weights": "corda"}, "init_lora_weights is 'corda'"),
    ({"init_lora_weights": ["x"]}, r"init_lora_weights is \['x'\]"),
    ({"megatron_config": {"a": 1}}, "megatron_config {'a': 1}"),
    ({"arrow_config": {"top_k": 3}}, "arrow_config"),
    ({"alora_invocation_tokens": [1, 2]}, r"alora_invocation_tokens \[1, 2\]"),
    ({"layer_replication": [[0, 2]]}, "layer_replication"),
    ({"use_qalora": True}, "use_qalora True"),
    ({"use_bdlora": {"nblocks": 2}}, "use_bdlora"),
    ({"ensure_weight_tying": True}, "ensure_weight_tying True"),
    ({"kasa_config": {}, "velora_config": {"scale": 1.0}}, "velora_config"),
    ({"an_option_of_tomorrow": 0}, "an_option_of_tomorrow 0: this option is not supported"),
    ({"r": 0}, "r is 0"),
    ({"r": "8"}, "r is '8'"),
    ({"r": True}, "r is True"),
    ({"lora_alpha": None}, "lora_alpha is None"),
    ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
    ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
    ({"use_rslora": 1}, "use_rslora is 1"),
    ({"rank_pattern": {"q_proj": 0}}, "rank_pattern is 0"),
    ({"rank_pattern": {"(": 2}}, "rank_pattern '\\(' is no regular expression"),
    ({"alpha_pattern": [1]}, r"alpha_pattern is \[1\]"),
    ({"target_modules": 7}, "target_modules is 7"),
    ({"target_modules": "*"}, r"target_modules '\*' is no regular expression"),
    ({"layers_to_transform": ["x"]}, r"layers_to_transform is \['x'\]"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_options_that_are_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    write(tmp_path, {"target_modules": ["q_proj"]} | config, pair(Q, 16, 16))
    with pytest.raises(ValueError, match=message) as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


WRONG: list[tuple[str, dict[str, torch.Tensor], dict[str, Any], str]] = [
    ("unknown", pair("model.layers.7.self_attn.q_proj", 16, 16) | pair("model.layers.0.x_proj", 1, 1), {},
     r"does not have or that LoRA cannot change: model\.layers\.0\.x_proj, model\.layers\.7\.self_attn\.q_proj$"),
    ("many", {k: v for i in range(9) for k, v in pair(f"a{i}", 1, 1).items()}, {}, "a0, a1, a2, a3, a4 and 4 more"),
    ("tower", pair("model.vision_tower.encoder.layers.0.self_attn.q_proj", 16, 16), {}, "model.vision_tower"),
    ("rank", pair(Q, 16, 16, rank=3), {}, r"lora_A.weight has shape \[3, 16\], expected \[2, 16\]"),
    ("in", pair(Q, 15, 16), {}, r"lora_A.weight has shape \[2, 15\], expected \[2, 16\]"),
    ("out", pair(Q, 16, 15), {}, r"lora_B.weight has shape \[15, 2\], expected \[16, 2\]"),
    ("scalar", {**pair(Q, 16, 16), f"base_model.model.{Q}.lora_A.weight": torch.tensor(1.0)}, {}, r"has shape \[\]"),
    ("alone", dict([next(iter(pair(Q, 16, 16).items()))]), {}, "lora_A.weight stands alone"),
    ("twice", pair(Q, 16, 16, name=".x") | pair(Q, 16, 16, name=".y"), {}, "belong to one module"),
    ("spelled twice", pair(Q, 16, 16) | pair(Q.removeprefix("model."), 16, 16), {}, "are the same"),
    ("nothing", {}, {}, "no matrix of LoRA in it"),
    ("bias", pair(Q, 16, 16) | {f"base_model.model.{Q}.lora_B.bias": torch.ones(16)}, {}, "lora_B.bias is no matrix"),
    ("dora", pair(Q, 16, 16) | {f"base_model.model.{Q}.lora_magnitude_vector": torch.ones(16)}, {}, "magnitude"),
    ("saved", pair(Q, 16, 16) | {"base_model.model.lm_head.weight": torch.ones(40, 16)}, {}, "lm_head.weight is"),
    ("resized", pair(Q, 16, 16) | {"base_model.model.model.embed_tokens.base_layer.weight": torch.ones(41, 16)}, {},
     "embed_tokens.base_layer.weight is no matrix"),
    ("not selected", pair(Q, 16, 16), {"target_modules": ["k_proj"]}, "does not select it"),
    ("excluded", pair(Q, 16, 16), {"exclude_modules": ["q_proj"]}, "does not select it"),
    ("layer", pair(Q, 16, 16), {"layers_to_transform": [1]}, "does not select it"),
    ("integers", {name: tensor.int() for name, tensor in pair(Q, 16, 16).items()}, {}, "holds I32 values"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tensors", "config", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_tensors_that_are_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any], message: str
) -> None:
    write(tmp_path, {"target_modules": ["q_proj", "x_proj", *(f"a{i}" for i in range(9))]} | config, tensors)
    with pytest.raises(ValueError, match=message) as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value)


def test_ranks_beyond_the_limit(tmp_path: Path) -> None:
    write(tmp_path, {"target_modules": ["q_proj"]}, pair(Q, 16, 16))
    assert opened(tmp_path, max_rank=2).rank == 2
    with pytest.raises(ValueError, match="rank 2 is more than max_lora_rank 1"):
        opened(tmp_path, max_rank=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    tensors = pair(Q, 16, 16)
    list(tensors.values())[1][3, 1] = value
    checkpoint = opened(write(tmp_path, {"target_modules": ["q_proj"]}, tensors))
    with pytest.raises(ValueError, match=r"q_proj\.lora_B\.weight holds values that are NaN or infinite"):
        checkpoint.read()


def test_values_that_their_scale_makes_infinite(tmp_path: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in pair(Q, 16, 16).items()}
    list(tensors.values())[1][0, 0] = 60000
    checkpoint = opened(write(tmp_path, {"target_modules": ["q_proj"]}, tensors))
    with pytest.raises(ValueError, match=r"lora_B\.weight, times 2, holds"):
        checkpoint.read()


def test_files_that_are_missing_or_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder with an adapter"):
        opened(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds no adapter_config\.json"):
        opened(tmp_path)
    config = tmp_path / "adapter_config.json"
    for text, message in (("{", "is not JSON"), ("[]", "holds a JSON list"), ("[" * 100_000, "is not JSON")):
        config.write_text(text)
        with pytest.raises(ValueError, match=message):
            opened(tmp_path)
    config.write_text(json.dumps({"peft_type": "LORA", "target_modules": ["q_proj"]}))
    with pytest.raises(ValueError, match=r"holds no adapter_model\.safetensors"):
        opened(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(ValueError, match=r"holds a pickle \(adapter_model\.bin\)"):
        opened(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="is not a readable safetensors file"):
        opened(tmp_path)


def test_a_file_that_changes_between_check_and_reading(tmp_path: Path) -> None:
    checkpoint = opened(write(tmp_path, {"target_modules": ["q_proj"]}, pair(Q, 16, 16)))
    other = {name: 2 * tensor for name, tensor in load_file(tmp_path / "adapter_model.safetensors").items()}
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.read()
    save_file(other, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="has changed since the adapter was loaded"):
        checkpoint.read()


def test_modules_of_what_sees_images_are_called_differently_too() -> None:
    """transformers 5 has one module less around a tower than its predecessors, and one more around the whole."""
    q, projection = "vision_tower.encoder.layers.0.self_attn.q_proj", "multi_modal_projector.linear_1"
    names = ModuleNames({q: (8, 8), projection: (8, 8)})
    old = q.replace("vision_tower.", "vision_tower.vision_model.")
    for name in (q, old, f"model.{q}", f"model.{old}"):
        assert names.module(name) == q
    assert names.module(projection) == names.module(f"model.{projection}") == projection
    assert names.module(q.replace("0", "1")) is None
