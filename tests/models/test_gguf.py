"""GGUF files of the llama architecture: read as transformers would, or refused in a sentence naming what is wrong."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from hybrid import LLM, SamplingParams
from hybrid.checkpoints import find_checkpoint
from hybrid.models import gguf_file
from hybrid.models.gguf_file import QUANTISED, SLAB, GGUFFile
from hybrid.models.gguf_llama import halves
from hybrid.models.loading import open_checkpoint
from hybrid.runner.loading import load
from tests.models.forward import chunked_logits

from .gguf_writing import Array, byte_tokens, kind_of, metadata_of, random_llama, rope_of, tensors_of, write

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS = {
    "plain": LlamaConfig(**SMALL),
    "biases, tied": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "linear rope": LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "llama3 rope": LlamaConfig(**SMALL, rope_parameters={**LLAMA3, "original_max_position_embeddings": 8192}),
}


def extras(config: LlamaConfig) -> tuple[dict[str, Any], dict[str, Array]]:
    """Metadata and tensors that say how rope is scaled."""
    rope = rope_of(config)
    if rope["rope_type"] == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}, {}
    if rope["rope_type"] != "llama3":
        return {}, {}
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, SMALL["head_dim"], 2) / SMALL["head_dim"])
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    return {}, {"rope_freqs.weight": (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    model = random_llama(config)
    metadata, factors = extras(config)
    path = write(tmp_path / "x.gguf", metadata_of(config) | metadata, tensors_of(model) | factors)
    row = np.random.default_rng(0).integers(0, 97, 60).tolist()
    with torch.no_grad():
        reference = model(torch.tensor([row])).logits[0]
    [logits] = chunked_logits(load(path).decoder, [row], [[23], [1], [36]])
    assert float((logits - reference).abs().max() / reference.abs().max()) < 1e-4


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_tensors_are_those_of_the_gguf_package(kind: str, tmp_path: Path) -> None:
    config = LlamaConfig(**{**SMALL, "hidden_size": 96, "intermediate_size": 64, "head_dim": 16, "vocab_size": 500})
    tensors = tensors_of(random_llama(config))
    path = write(tmp_path / "x.gguf", metadata_of(config), tensors, kind=kind)
    checkpoint = open_checkpoint(path)
    assert checkpoint.dtype == {"F32": torch.float32, "F16": torch.float16}.get(kind, torch.bfloat16)
    for ours, theirs in (("model.embed_tokens", "token_embd"), ("model.layers.2.mlp.down_proj", "blk.2.ffn_down")):
        packed = gguf.quants.quantize(tensors[f"{theirs}.weight"], kind_of(kind))
        read = checkpoint.tensors[f"{ours}.weight"]
        assert torch.equal(read.float(), torch.from_numpy(gguf.quants.dequantize(packed, kind_of(kind)).copy()))
    query = torch.from_numpy(
        gguf.quants.dequantize(
            gguf.quants.quantize(tensors["blk.1.attn_q.weight"], kind_of(kind)), kind_of(kind)
        ).copy()
    )
    assert torch.equal(checkpoint.tensors["model.layers.1.self_attn.q_proj.weight"].float(), halves(query, 6))


@pytest.mark.parametrize("kind", [kind for kind in QUANTISED if kind.endswith("K")])
def test_blocks_of_256_values(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes, but for the scales of the blocks, which are numbers; read in slabs that do not divide the rows."""
    size = gguf.GGML_QUANT_SIZES[kind_of(kind)][1]
    packed = np.random.default_rng(0).integers(0, 256, (11, 3, size), dtype=np.uint8)
    scales = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]
    for at in scales:
        packed[..., at : at + 2] = np.frombuffer(np.float16(0.03).tobytes(), np.uint8)
    packed = packed.reshape(11, -1)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("t", packed, raw_dtype=kind_of(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.setattr("hybrid.models.gguf_file.SLAB", 4 * 768 + 1)
    read = GGUFFile(tmp_path / "x.gguf").read("t")
    assert read.shape == (11, 768) and SLAB > 4 * 768
    assert torch.equal(read, torch.from_numpy(gguf.quants.dequantize(packed, kind_of(kind))))
    assert 0.1 < float(read.std()) < 100


def test_a_tensor_of_quarters_is_what_the_format_says(tmp_path: Path) -> None:
    """Q4_1 by hand: value = scale * nibble + minimum, low nibbles first."""
    nibbles = np.arange(32) % 16
    block = np.concatenate(
        [
            np.frombuffer(np.array([0.25, -3.0], np.float16).tobytes(), np.uint8),
            (nibbles[:16] | (nibbles[16:] << 4)).astype(np.uint8),
        ]
    )
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("t", block[None], raw_dtype=kind_of("Q4_1"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert GGUFFile(tmp_path / "x.gguf").read("t").tolist() == [[0.25 * float(nibble) - 3 for nibble in nibbles]]


# --- an engine ---------------------------------------------------------------------------------------------------


TOKENS = byte_tokens(["h e", "he l"], ["<|end|>", "<|start|>"])


@pytest.fixture(scope="module")
def config() -> LlamaConfig:
    return LlamaConfig(**{**SMALL, "vocab_size": len(TOKENS["ggml.tokens"])})


@pytest.fixture(scope="module")
def tensors(config: LlamaConfig) -> dict[str, Array]:
    return tensors_of(random_llama(config))


@pytest.fixture
def whole(tmp_path: Path, config: LlamaConfig, tensors: dict[str, Array]) -> Path:
    """A GGUF file with all that belongs to it, alone in a folder."""
    tokens = {**TOKENS, "ggml.eos_token_id": 258, "ggml.bos_token_id": 259, "ggml.add_bos_token": True}
    (tmp_path / "folder").mkdir()
    return write(tmp_path / "folder" / "x.gguf", metadata_of(config), tensors, tokens=tokens)


def test_a_folder_with_one_gguf_file_is_that_file(whole: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    outputs = [LLM(model, memory="16MiB").generate("hello", params)[0] for model in (whole, whole.parent)]
    assert outputs[0].outputs == outputs[1].outputs
    assert outputs[0].prompt_token_ids[:2] == (259, 257)
    (whole.parent / "config.json").write_text("{}")  # some are published with the one they were converted from
    assert find_checkpoint(whole.parent) == whole
    whole.with_name("y.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds several GGUF files \(x.gguf, y.gguf, ...\); name one of them"):
        LLM(whole.parent)


# --- what is refused ---------------------------------------------------------------------------------------------


def refused(path: Path, **arguments: Any) -> str:
    """The one sentence, also through LLM."""
    with pytest.raises(ValueError, match=r".") as caught:
        LLM(path, skip_tokenizer_init=True, memory="16MiB", **arguments)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


WRONG_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"rope.scaling.type": "yarn"}, "metadata.llama.rope.scaling.type must be one of none, linear, got 'yarn'"),
    ({"expert_count": 8}, "metadata.llama.expert_count is 8, which is not supported"),
    ({"logit_scale": 0.5}, "metadata.llama.logit_scale is 0.5, which is not supported"),
    ({"attention.head_count": 5}, "5 heads are no multiple of 3 kv heads"),
    ({"attention.head_count": 9}, "tensor blk.0.attn_q.weight has shape [60, 36], expected [90, 36]"),
    ({"block_count": 2**30}, "metadata.llama.block_count must be between 1 and 30, got 1073741824"),
    ({"attention.head_count_kv": [3, 3, 3]}, "metadata.llama.attention.head_count_kv must be an integer"),
    ({"rope.dimension_count": 8}, "metadata.llama.rope.dimension_count must be the size of a head (10), got 8"),
    ({"block_count": 4}, "lacks tensors blk.3.attn_norm.weight, blk.3.ffn_down.weight, blk.3.ffn_gate.weight and 6"),
    ({"block_count": 2}, "holds unknown tensors blk.2.attn_norm.weight"),
    ({"feed_forward_length": 53}, "tensor blk.0.ffn_down.weight has shape [36, 52], expected [36, 53]"),
    ({"vocab_size": 98}, "tensor token_embd.weight has shape"),
    ({"attention.layer_norm_rms_epsilon": 0.0}, "metadata.llama.attention.layer_norm_rms_epsilon must be above 0"),
]


@pytest.mark.parametrize(("keys", "words"), WRONG_KEYS, ids=[str(keys) for keys, _ in WRONG_KEYS])
def test_keys_that_are_not_supported(
    tmp_path: Path, config: LlamaConfig, tensors: dict[str, Array], keys: dict[str, Any], words: str
) -> None:
    assert words in refused(write(tmp_path / "x.gguf", metadata_of(config) | keys, tensors))


def test_a_missing_key_is_named(tmp_path: Path, config: LlamaConfig, tensors: dict[str, Array]) -> None:
    metadata = metadata_of(config)
    del metadata["block_count"]
    assert "metadata.llama.block_count is missing" in refused(write(tmp_path / "x.gguf", metadata, tensors))
    metadata = metadata_of(config) | {"attention.head_count": 5}
    del metadata["attention.key_length"]
    assert "llama.embedding_length must be a multiple of llama.attention.head_count (5), got 36" in refused(
        write(tmp_path / "y.gguf", metadata, tensors)
    )


def test_other_architectures_and_parts_are_refused_by_name(
    tmp_path: Path, config: LlamaConfig, tensors: dict[str, Array]
) -> None:
    path = write(tmp_path / "x.gguf", metadata_of(config), tensors, arch="qwen2")
    assert "metadata.general.architecture must be one of llama, got 'qwen2'" in refused(path)
    path = write(tmp_path / "y.gguf", metadata_of(config), tensors, others={"split.count": 3})
    assert "metadata.split.count is 3, which is not supported: join its parts" in refused(path)
    path = write(tmp_path / "z.gguf", metadata_of(config), tensors, others={"general.type": "adapter"})
    assert "metadata.general.type is 'adapter'" in refused(path)


def changed_tensors(tensors: dict[str, Array]) -> Iterator[tuple[dict[str, Array], str]]:
    without = {name: array for name, array in tensors.items() if name != "blk.1.ffn_up.weight"}
    yield without, "lacks tensor blk.1.ffn_up.weight"
    yield tensors | {"blk.1.ffn_gate_inp.weight": np.zeros((5, 36), np.float32)}, "unknown tensor blk.1.ffn_gate_inp"
    yield tensors | {"output_norm.weight": np.zeros(7, np.float32)}, "output_norm.weight has shape [7], expected [36]"
    yield tensors | {"output_norm.weight": np.zeros(36, np.int32)}, "output_norm.weight has the quantisation I32"
    wrong = tensors["blk.2.attn_k.weight"].copy()
    wrong[3, 4:6] = np.nan, np.inf
    yield tensors | {"blk.2.attn_k.weight": wrong}, "blk.2.attn_k.weight holds 2 values that are NaN or infinite"
    yield tensors | {"blk.0.attn_q.bias": np.zeros(60, np.float32)}, "lacks tensors blk.0.attn_k.bias"
    factors = np.ones(5, np.float32)
    for value in (2.5, 0.0, np.nan):
        factors[1] = value
        yield tensors | {"rope_freqs.weight": factors.copy()}, "the rope scaling in tensor rope_freqs.weight is not"
    yield tensors | {"rope_freqs.weight": np.ones(6, np.float32)}, "rope_freqs.weight has type F32 and shape [6]"


def test_tensors_that_do_not_fit_are_named(tmp_path: Path, config: LlamaConfig, tensors: dict[str, Array]) -> None:
    for index, (changed, words) in enumerate(changed_tensors(tensors)):
        assert words in refused(write(tmp_path / f"{index}.gguf", metadata_of(config), changed))


def test_quantisations_that_are_not_read_are_named(tmp_path: Path) -> None:
    config = LlamaConfig(**{**SMALL, "hidden_size": 96, "head_dim": 16})
    tensors = tensors_of(random_llama(config))
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    for key, value in metadata_of(config).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"llama.{key}", value)
    for name, array in tensors.items():
        if name == "blk.0.attn_v.weight":
            writer.add_tensor(name, np.zeros((48, 54), np.uint8), raw_dtype=kind_of("IQ4_NL"))
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "tensor blk.0.attn_v.weight has the quantisation IQ4_NL, which is not supported" in refused(
        tmp_path / "x.gguf"
    )


def test_a_file_that_ends_early_is_refused_wherever_it_ends(whole: Path) -> None:
    data = whole.read_bytes()
    for keep in (*range(0, 200, 7), *range(200, len(data), len(data) // 60), len(data) - 40):
        whole.write_bytes(data[:keep])
        message = refused(whole)
        assert "not a readable GGUF file" in message or "not a GGUF file" in message, message


def assert_read_or_refused(path: Path) -> None:
    """In one sentence."""
    message = ""
    try:
        open_checkpoint(path)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message and len(message) < 1000


def test_bytes_that_are_wrong_never_raise_anything_else(whole: Path) -> None:
    """Every header with a byte changed is read, or refused in one sentence."""
    data = whole.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, 12_000, 150).tolist():
        broken = bytearray(data)
        broken[at] = int(rng.integers(0, 256))
        whole.write_bytes(broken)
        assert_read_or_refused(whole)


def test_files_of_other_kinds_are_refused(whole: Path) -> None:
    data = whole.read_bytes()
    for begin, words in (
        (b"PK\x03\x04", "is not a readable GGUF file: it begins with b'PK"),
        (b"GGUF\x01\x00\x00\x00", "is a GGUF file of version 1, which is not supported"),
        (b"GGUF\x00\x00\x00\x03", "big-endian"),
    ):
        whole.write_bytes(begin + data[len(begin) :])
        assert words in refused(whole)


def test_a_file_that_shrinks_while_it_is_read_is_refused(whole: Path) -> None:
    checkpoint = open_checkpoint(whole)
    whole.write_bytes(whole.read_bytes()[:20_000])
    with pytest.raises(ValueError, match="ends early: it has changed since it was opened"):
        checkpoint.tensors["lm_head.weight"]
    whole.unlink()
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        checkpoint.tensors["lm_head.weight"]


@pytest.mark.parametrize("kind", [0, 6, 8, 12])
def test_a_header_too_large_for_memory_is_refused(kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of 2 ** 36 entries in a file that is as large as it says, though it takes no room on the disk."""
    monkeypatch.setattr(gguf_file, "MAX_HEADER", 1 << 20)
    path = tmp_path / "x.gguf"
    key = b"general.name"
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(key)) + key + struct.pack("<IIQ", 9, kind, 2**36))
        file.truncate(1 << 42)
    assert "its header is larger than 1,048,576 bytes" in refused(path)


def test_names_in_messages_are_cut_and_on_one_line(
    tmp_path: Path, config: LlamaConfig, tensors: dict[str, Array]
) -> None:
    name = "a\n" * 5000
    metadata = metadata_of(config)
    for others, more in (({f"llama.{name}": name}, {}), ({}, {name: np.zeros(3, np.float32)})):
        path = write(tmp_path / f"{len(more)}.gguf", metadata, tensors | more, others=others)
        assert len(refused(path).removeprefix(str(path))) < 500
