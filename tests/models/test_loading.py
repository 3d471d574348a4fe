"""A checkpoint folder is read right, or refused in one sentence that names what is wrong."""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from hybrid import LLM
from hybrid.cli import app
from hybrid.engine_setup import _eos_token_ids
from hybrid.models.loading import open_checkpoint, read_config
from hybrid.runner.loading import load
from tests.runner.plans import random_reference, small_config

VISION = {
    "image_size": 8,
    "patch_size": 2,
    "merge_size": 2,
    "hidden_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "layer_norm_eps": 1e-6,
}
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_reference(small_config("mFs", vision_config=VISION)).save(tmp_path)
    return tmp_path


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refused(folder: Path) -> str:
    """The one sentence, from whatever opens the folder."""
    with pytest.raises(ValueError, match=r".") as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    with pytest.raises(ValueError, match=r".") as caught:
        LLM(folder, skip_tokenizer_init=True, memory="8MiB")
    assert str(caught.value) == message
    return message


def test_a_saved_checkpoint_is_read(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.model == read_config(folder)
    assert checkpoint.dtype == torch.float32
    assert set(checkpoint.tensors.entries) == set(load_file(folder / "model.safetensors"))
    loaded = load(folder)
    assert loaded.decoder.vocab_size == 61
    assert loaded.encoder is not None
    assert loaded.decoder.dtype == torch.float32
    assert load(folder, torch.bfloat16).decoder.dtype == torch.bfloat16


def test_a_folder_without_vision_has_no_encoder(tmp_path: Path) -> None:
    random_reference(small_config("f")).save(tmp_path)
    assert load(tmp_path).encoder is None


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "holds no model.safetensors" in refused(folder)
    (folder / "config.json").unlink()
    assert "holds no config.json" in refused(folder)
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        read_config(tmp_path / "nowhere")


def test_pickle_weights_are_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()

    class Boom:
        def __reduce__(self) -> tuple[Any, ...]:
            return (exec, ("raise SystemExit",))

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Boom()))
    assert "pytorch_model.bin" in refused(folder)
    assert "pickle" in refused(folder)
    # also under the right name
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    assert "not a readable safetensors file" in refused(folder)


@pytest.mark.parametrize("pickled", ["model.pt", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth", "a.ckpt"])
def test_a_shard_or_a_checkpoint_that_is_a_pickle_is_refused(folder: Path, pickled: str) -> None:
    (folder / "model.safetensors").rename(folder / pickled)
    assert f"holds pickle weights ({pickled})" in refused(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "a JSON list, not an object"),
        ("null", "a JSON NoneType, not an object"),
        ('{"model_type": "bert"}', "model_type 'bert' is not supported"),
        ("{}", "model_type None is not supported"),
        ('{"model_type": "hybrid_native"}', "is missing"),
        ("[" * 100_000, "not JSON"),
        (f'{{"vocab_size": {"9" * 5000}}}', "not JSON"),
    ],
)
def test_a_wrong_config_is_refused(folder: Path, text: str, words: str) -> None:
    (folder / "config.json").write_text(text)
    assert words in refused(folder)


def test_a_config_that_is_no_text_is_refused(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe\x00{")
    assert "cannot be read" in refused(folder)


def test_a_wrong_value_is_named(folder: Path) -> None:
    change_config(folder, hidden_size=-3)
    assert "hidden_size" in refused(folder)
    assert "-3" in refused(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("layers.1.mixer.k_proj.weight"))
    assert "lacks tensor layers.1.mixer.k_proj.weight" in refused(folder)


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    change_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("vision.")])
    assert "vision.blocks.0.attn.proj.bias" in refused(folder)
    assert " more" in refused(folder)


def test_an_extra_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(61, 24)}))
    assert "holds unknown tensor lm_head.weight" in refused(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"norm.weight": torch.zeros(7)}))
    assert "tensor norm.weight has shape [7], expected [24]" in refused(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(folder: Path, value: float) -> None:
    change_tensors(folder, lambda tensors: tensors["layers.0.mixer.D"][:2].fill_(value))
    assert "tensor layers.0.mixer.D holds 2 values that are NaN or infinite" in refused(folder)


@pytest.mark.parametrize(
    ("dtype", "spelled"),
    [
        ("int64", "I64"),
        ("bool", "BOOL"),
        ("complex64", "C64"),
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"),
    ],
)
def test_tensors_of_other_types_are_refused(folder: Path, dtype: str, spelled: str) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"norm.weight": torch.zeros(24).to(getattr(torch, dtype))}))
    assert f"norm.weight holds {spelled} values" in refused(folder)


@pytest.mark.parametrize(
    ("value", "name"),
    [(1e300, "norm.weight"), (1e300, "layers.1.mixer.k_proj.weight"), (1e300, "vision.blocks.0.attn.qkv.weight")],
)
def test_values_that_no_float32_holds_are_refused(folder: Path, value: float, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].double() * value}))
    with pytest.raises(ValueError, match=f"tensor {name} holds values that are too large for float32"):
        load(folder)


def test_values_that_no_float16_holds_are_refused(folder: Path) -> None:
    name = "layers.1.mixer.k_proj.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name] * 1e6}))
    load(folder, torch.bfloat16)
    with pytest.raises(ValueError, match=f"tensor {name} holds values that are too large for float16"):
        LLM(folder, skip_tokenizer_init=True, memory="8MiB", dtype="float16")


def test_the_file_whose_end_token_is_none_is_named(folder: Path) -> None:
    model = open_checkpoint(folder).model
    for ids, file in (((10**6,), "config.json"), ((), "generation_config.json")):
        with pytest.raises(ValueError, match=f"eos_token_id 1000000 of {file} is no token"):
            _eos_token_ids(replace(model, eos_token_ids=ids), {"eos_token_id": 10**6})


@pytest.mark.parametrize("keep", [0, 4, 100, 5000])
def test_a_truncated_file_is_refused(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "not a readable safetensors file" in refused(folder)


# --- shards ------------------------------------------------------------------------------------------------------


def index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def sharded(folder: Path) -> Path:
    """Two shards, and a file beside the folder that no index may name."""
    tensors = load_file(folder / "model.safetensors")
    names = list(tensors)
    (folder / "model.safetensors").rename(folder / "outside.safetensors")
    (folder / "checkpoint").mkdir()
    for name in ("config.json", "outside.safetensors"):
        (folder / name).rename(folder / ("checkpoint" if name == "config.json" else ".") / name)
    inner = folder / "checkpoint"
    save_file({name: tensors[name] for name in names[::2]}, inner / "a.safetensors")
    save_file({name: tensors[name] for name in names[1::2]}, inner / "b.safetensors")
    index(inner, {name: f"{'ab'[i % 2]}.safetensors" for i, name in enumerate(names)})
    return inner


def test_shards_are_read_together(sharded: Path) -> None:
    whole = load_file(sharded.parent / "outside.safetensors")
    tensors = open_checkpoint(sharded).tensors
    assert set(tensors.entries) == set(whole)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in whole.items())


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "b.safetensors").unlink()
    assert "model.safetensors.index.json names the file b.safetensors, which is not there" in refused(sharded)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/hostname", "..", "", ".", "c/../a.safetensors", "x" * 300, "a\0b"]
)
def test_an_index_names_files_of_its_own_folder_only(sharded: Path, name: str) -> None:
    index(sharded, {"norm.weight": name})
    assert "model.safetensors.index.json names the file" in refused(sharded)


@pytest.mark.parametrize("weight_map", [None, [], {"norm.weight": 3}, "a.safetensors"])
def test_an_index_without_a_map_is_refused(sharded: Path, weight_map: object) -> None:
    index(sharded, weight_map)
    assert "holds no weight_map from tensors to files" in refused(sharded)


def test_an_index_that_is_no_json_is_refused(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("{")
    assert "is not JSON" in refused(sharded)


def test_an_empty_index_lacks_everything(sharded: Path) -> None:
    index(sharded, {})
    assert "lacks tensors" in refused(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    shutil.copy(sharded.parent / "outside.safetensors", sharded / "b.safetensors")
    assert "is also in a.safetensors" in refused(sharded)


@pytest.mark.parametrize("keep", [0, 7, 100, 3000])
def test_a_truncated_shard_is_refused(sharded: Path, keep: int) -> None:
    path = sharded / "b.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "b.safetensors is not a readable safetensors file" in refused(sharded)


def test_a_file_that_shrinks_while_it_is_read_is_refused(folder: Path) -> None:
    tensors = open_checkpoint(folder).tensors
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"model\.safetensors ends early: it has changed since it was opened"):
        [tensors[name] for name in tensors.entries]
    path.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read: No such file or directory"):
        tensors["norm.weight"]


def test_a_config_that_disagrees_with_the_tensors_is_refused(folder: Path) -> None:
    change_config(folder, intermediate_size=20)
    assert "has shape" in refused(folder)


def test_the_command_line_says_it_in_one_sentence(sharded: Path) -> None:
    (sharded / "b.safetensors").unlink()
    done = CliRunner().invoke(app, ["chat", "--prompt", "Hello", "--model", str(sharded)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.endswith("\n") and done.stderr.count("\n") == 1


def test_a_big_checkpoint_shows_a_progress_bar(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    load(folder)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr("hybrid.models.tensor_files.PROGRESS_BYTES", 1)
    load(folder)
    assert "loading: " in capfd.readouterr().err


def test_names_in_messages_are_cut_and_on_one_line(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"a\n" * 5000: torch.zeros(2)}))
    assert len(refused(folder).removeprefix(str(folder))) < 300


def test_any_byte_of_a_header_may_be_wrong(folder: Path) -> None:
    """Read, or refused in one sentence."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    rng = np.random.default_rng(0)
    for at in [*range(8), *rng.integers(8, end, 150).tolist()]:
        broken = bytearray(data)
        broken[at] = int(rng.integers(0, 256))
        path.write_bytes(broken)
        message = ""
        try:
            load(folder)
        except ValueError as error:
            message = str(error)
        assert "\n" not in message and len(message) < 1000
