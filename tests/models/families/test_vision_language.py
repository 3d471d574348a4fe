"""Vision-language checkpoints as text decoders: how their tensors and keys may be spelled, and what is refused.

That they compute what transformers computes is `test_families`' affair.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybrid import LLM
from hybrid.models.families import read_model
from hybrid.runner.loading import load
from tests.models.forward import chunked_logits

from .oracle import Oracle, all_cases, rewrite, saved_tensors

LLAMA = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
TOKENS = list(range(2, 30))


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(all_cases()["llava: untied"], tmp_path_factory.mktemp("llava"))


def respelled(folder: Path, target: Path, rename: Callable[[str], str]) -> Path:
    """A copy of a checkpoint whose tensors are named otherwise."""
    rewrite(target, {rename(name): tensor for name, tensor in saved_tensors(folder).items()})
    (target / "config.json").write_text((folder / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    return target


def logits(folder: Path) -> torch.Tensor:
    return chunked_logits(load(folder, torch.float32).decoder, [TOKENS], [[len(TOKENS)]])[0]


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.text_model.", "model."])
def test_names_of_older_and_newer_files(llava: Oracle, tmp_path: Path, prefix: str) -> None:
    def rename(name: str) -> str:
        if name.startswith("language_model.lm_head."):
            return name.removeprefix("language_model.")
        if name.startswith("language_model.model."):
            return prefix + name.removeprefix("language_model.model.")
        return f"model.{name}"

    other = respelled(llava.folder, tmp_path, rename)
    torch.testing.assert_close(logits(other), logits(llava.folder), rtol=0, atol=0)


def test_a_tensor_that_is_neither_text_nor_vision_is_refused(llava: Oracle, tmp_path: Path) -> None:
    other = respelled(llava.folder, tmp_path, lambda name: name)
    rewrite(other, saved_tensors(other) | {"hearing_tower.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"holds unknown tensor hearing_tower\.weight"):
        load(other)


@pytest.mark.parametrize("more", [{}, {"processor_config.json": '{"patch_size": 16}'}])
def test_an_image_is_refused_where_nothing_says_how_to_prepare_it(
    llava: Oracle, tmp_path: Path, more: dict[str, str]
) -> None:
    other = respelled(llava.folder, tmp_path, lambda name: name)
    for name, content in more.items():
        (other / name).write_text(content)
    llm = LLM(other, dtype="float32", skip_tokenizer_init=True, memory="16MiB", max_model_len=64)
    prompt = {"prompt_token_ids": TOKENS, "multi_modal_data": {"image": np.zeros((16, 16, 3), dtype=np.uint8)}}
    with pytest.raises(ValueError, match=r"no preprocessor_config\.json\), and the prompt brings 1"):
        llm.generate([prompt], use_tqdm=False)


def whole(**keys: Any) -> dict[str, Any]:
    tower = {"image_size": 64, "patch_size": 32}
    return {"model_type": "idefics3", "text_config": LLAMA, "vision_config": tower, "image_token_id": 3, **keys}


def test_keys_of_the_whole_count_for_the_decoder() -> None:
    model = read_model(whole(tie_word_embeddings=True, eos_token_id=[1, 7], torch_dtype="float16"))
    assert model.decoder.head is None
    assert model.eos_token_ids == (1, 7)
    assert model.dtype == "float16"


def test_keys_of_the_decoder_count_where_the_whole_has_none() -> None:
    text = {**LLAMA, "tie_word_embeddings": True, "eos_token_id": 5, "dtype": "bfloat16"}
    model = read_model(whole(text_config=text, torch_dtype="float16"))
    assert model.decoder.head is None
    assert model.eos_token_ids == (5,)
    assert model.dtype == "bfloat16"
    assert read_model(whole()).decoder.head == "lm_head.weight"


def test_a_text_config_with_few_keys_is_a_llama_of_7b() -> None:
    """As in the first LLaVA files."""
    model = read_model({"model_type": "llava", "text_config": {"vocab_size": 32064, "max_position_embeddings": 4096}})
    assert (len(model.decoder.layers), model.decoder.hidden_size, model.decoder.vocab_size) == (32, 4096, 32064)


def test_what_is_not_supported_is_named() -> None:
    with pytest.raises(ValueError, match="quant_method 'awq'"):
        read_model(whole(quantization_config={"quant_method": "awq"}))
    with pytest.raises(ValueError, match="model_type 'opt' is not supported"):
        read_model(whole(text_config={**LLAMA, "model_type": "opt"}))
    with pytest.raises(ValueError, match=r"config\.text_config is missing"):
        read_model({"model_type": "llava"})
    with pytest.raises(ValueError, match=r"config\.text_config\.hidden_act must be .*got 'tanh'"):
        read_model(whole(text_config={**LLAMA, "hidden_act": "tanh"}))


FOLDER = Path(__file__).parent / "model_configs"


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("Qwen3-VL-4B-Instruct", "deepstack_visual_indexes", [5, 24], "a list of integers from 0 to 23, got"),
        ("Qwen3-VL-4B-Instruct", "out_hidden_size", 2048, r"must be the decoder's hidden_size \(2560\), got 2048"),
        ("Qwen3-VL-4B-Instruct", "num_heads", 12, r"hidden_size must be a multiple of 4 times num_heads \(48\)"),
        ("Qwen3-VL-4B-Instruct", "in_channels", 1, "in_channels is 1.*pictures have three"),
        ("Qwen2.5-VL-7B-Instruct", "window_size", 20, "window_size must be at least 2 patches of 14 pixels, got 20"),
        ("Qwen2.5-VL-7B-Instruct", "patch_size", [14, 14], "patch_size must be an integer"),
        ("Qwen3.5-27B", "depth", 10**6, "depth must be between 1 and"),
    ],
)
def test_towers_that_cannot_be_are_named(name: str, key: str, value: Any, message: str) -> None:
    config = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert read_model(config).vision is not None
    config["vision_config"][key] = value
    with pytest.raises(ValueError, match=rf"config\.vision_config\..*{message}"):
        read_model(config)


GEMMA4 = json.loads((Path(__file__).parent / "model_configs" / "gemma-4-26B-A4B.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_bidirectional_attention", "all"),
        ("num_kv_shared_layers", 30),
        ("layer_types", ["full_attention"] * 29 + ["sliding_attention"]),
        ("layer_types", ["full_attention"] * 29 + ["chunked_attention"]),
        ("per_layer_config", {"3": {"num_attention_heads": 4}}),
        ("rope_parameters", None),
    ],
)
def test_gemma4_says_what_it_does_not_know(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{key}|num_attention_heads"):
        read_model({**GEMMA4, "text_config": {**GEMMA4["text_config"], key: value}})


def test_gemma4_may_hold_keys_of_layers_that_share_a_cache(tmp_path: Path) -> None:
    """As published; transformers does not save them."""
    oracle = Oracle(all_cases()["gemma4_text: shared caches, per-layer inputs"], tmp_path)
    before = logits(tmp_path)
    tensors = saved_tensors(tmp_path)
    last = len(oracle.model.config.layer_types) - 1
    tensors[f"model.layers.{last}.self_attn.k_proj.weight"] = torch.ones(3, 36)
    rewrite(tmp_path, tensors)
    torch.testing.assert_close(logits(tmp_path), before, rtol=0, atol=0)


SSM = {"d_model": 16, "n_layer": 2, "vocab_size": 30, "ssm_cfg": {"layer": "Mamba2", "headdim": 8}}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"attn_layer_idx": [1]}, "attn_layer_idx"),
        ({"d_intermediate": 24}, "d_intermediate"),
        ({"rms_norm": False}, "rms_norm"),
        ({"ssm_cfg": {"layer": "Mamba3"}}, "Mamba3"),
        ({"ssm_cfg": {"layer": "Mamba2", "d_ssm": 24}}, "d_ssm"),
        ({"ssm_cfg": {"layer": "Mamba1", "headdim": 8}}, "headdim"),
    ],
)
def test_mamba_ssm_says_what_it_does_not_know(changed: dict[str, Any], named: str) -> None:
    assert read_model(SSM).decoder.vocab_size == 32
    with pytest.raises(ValueError, match=named):
        read_model(SSM | changed)
