"""The engine's native model against the reference: logits of every token, for mixtures, windows, groups and dtypes."""

import numpy as np
import pytest
import torch

from hybrid.models.families import layer_specs, read_model
from hybrid.models.native_config import NativeConfig
from hybrid.models.ops import attention
from hybrid.pools.specs import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from tests.models.forward import chunked_logits
from tests.runner.plans import native_model, random_reference, reference_logits, small_config


def random_rows(lengths: list[int], vocab: int = 61) -> list[list[int]]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(3, vocab, length).tolist() for length in lengths]


CONFIGS = {
    "one full layer": small_config("f"),
    "one sliding layer": small_config("s"),
    "one mamba layer": small_config("m"),
    "everything with MLPs": small_config("MSFM"),
    "window of one": small_config("sF", sliding_window=1),
    "window wider than the context": small_config("Sf", sliding_window=500),
    "no grouping of heads": small_config("fM", num_key_value_heads=4, mamba_n_groups=4),
    "one key head, one group": small_config("FSM", num_key_value_heads=1, mamba_n_groups=1),
    "kernel of two": small_config("mM", mamba_conv_kernel=2),
    "untied head": small_config("mF", tie_word_embeddings=False),
    "another rotary base": small_config("fs", rope_theta=500.0),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_every_token_equal_the_reference(name: str) -> None:
    reference = random_reference(CONFIGS[name])
    schedule = [[1, 1, 70], [1, 30, 33], [1, 1, 1], [4, 6, 30]]
    rows = random_rows([7, 38, 134])
    for row, logits in zip(rows, chunked_logits(native_model(reference), rows, schedule)):
        torch.testing.assert_close(logits, reference_logits(reference, row, None), rtol=1e-3, atol=1e-3)


def test_bfloat16_stays_close_to_float32() -> None:
    reference = random_reference(small_config("MfS"))
    rows = random_rows([12, 30])
    model = native_model(reference, torch.bfloat16)
    for row, logits in zip(rows, chunked_logits(model, rows, [[1, 19], [11, 11]])):
        expected = reference_logits(reference, row[: len(logits)], None)
        assert logits.dtype == torch.float32
        assert torch.cosine_similarity(logits, expected, dim=-1).min() > 0.98


def test_positions_past_the_end_do_not_fail() -> None:
    reference = random_reference(small_config("fs", max_position_embeddings=8))
    (logits,) = chunked_logits(native_model(reference), random_rows([12]), [[12]])
    assert torch.isfinite(logits).all()


def test_specs_say_what_each_layer_keeps() -> None:
    spec = layer_specs(small_config("mFs").to_dict(), "bfloat16")
    assert spec.layers == (
        (MambaSpec((4 * 5 + 2 * 2 * 7, 3), (4, 5, 7), "bfloat16", "float32"),),
        (FullAttentionSpec(2, 6, "bfloat16"),),
        (SlidingWindowSpec(2, 6, 9, "bfloat16"),),
    )
    assert spec.encoder is None
    with pytest.raises(ValueError, match="float12"):
        layer_specs(small_config("m").to_dict(), "float12")


@pytest.mark.parametrize("config", [small_config("mFsM"), small_config("f", tie_word_embeddings=False)])
def test_tensor_shapes_are_those_of_the_reference(config: NativeConfig) -> None:
    reference = random_reference(config)
    assert read_model(config.to_dict()).tensors() == {
        name: tuple(t.shape) for name, t in reference.state_dict().items()
    }


@pytest.mark.parametrize("size", [1, 5, 16])
def test_long_chunks_are_attended_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "QUERIES_PER_PIECE", size)
    reference = random_reference(small_config("FS"))
    rows = random_rows([50, 131])
    for row, logits in zip(rows, chunked_logits(native_model(reference), rows, [[20, 33], [30, 98]])):
        torch.testing.assert_close(logits, reference_logits(reference, row, None), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("waste", [0.0, 1.0, 1e9])
def test_decode_rows_may_be_grouped_by_length(waste: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "GROUP_WASTE", waste)
    reference = random_reference(small_config("FS"))
    rows = random_rows([8, 40, 22, 140, 5])
    schedule = [[6, 38, 20, 138, 3], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
    for row, logits in zip(rows, chunked_logits(native_model(reference), rows, schedule)):
        torch.testing.assert_close(logits, reference_logits(reference, row, None), rtol=1e-3, atol=1e-3)
