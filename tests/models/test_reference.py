"""The plain-torch reference: both scan forms agree, the mixers see what they should, pictures land in their places."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hybrid.models.native_config import NativeConfig, NativeLayer, NativeVisionConfig  # noqa: E402
from hybrid.models.reference import NativeReference, scan_chunked, scan_sequential  # noqa: E402

IMAGE = 2


def tiny_config(*layers: NativeLayer) -> NativeConfig:
    """A few thousand parameters; every size differs from the others where it can."""
    return NativeConfig(
        vocab_size=32,
        hidden_size=24,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        max_position_embeddings=128,
        rope_theta=10000.0,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=5,
        intermediate_size=40,
        mamba_num_heads=4,
        mamba_head_dim=10,
        mamba_state_size=6,
        mamba_n_groups=2,
        mamba_conv_kernel=4,
        layers=layers,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        image_token_id=IMAGE,
        torch_dtype="float32",
        vision_config=NativeVisionConfig(16, 4, 2, 12, 1, 3, 20, 1e-6),
    )


ALL_KINDS = (
    NativeLayer("mamba2", True),
    NativeLayer("sliding", False),
    NativeLayer("mamba2", False),
    NativeLayer("full", True),
)


def build(*layers: NativeLayer) -> NativeReference:
    torch.manual_seed(0)
    return NativeReference(tiny_config(*layers)).eval()


@pytest.mark.parametrize("tokens", [1, 8, 19])
def test_the_dual_form_of_the_scan_is_the_scan(tokens: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, tokens, 4, 5, generator=generator)
    b, c = (torch.randn(2, tokens, 2, 6, generator=generator) for _ in range(2))
    dt = torch.rand(2, tokens, 4, generator=generator)
    a = -torch.rand(4, generator=generator) * 8
    per_head = [v.repeat_interleave(2, dim=2) for v in (b, c)]
    expected = scan_sequential(x, dt, a, *per_head)
    torch.testing.assert_close(scan_chunked(x, dt, a, b, c, chunk=8), expected, rtol=1e-4, atol=1e-5)


def test_the_fast_form_gives_the_same_logits() -> None:
    model = build(*ALL_KINDS)
    ids = torch.randint(3, 32, (2, 45), generator=torch.Generator().manual_seed(1))
    logits = model(ids)
    model.set_form("fast")
    torch.testing.assert_close(model(ids), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mixer", ["mamba2", "full", "sliding"])
def test_no_token_sees_the_future(mixer: str) -> None:
    model = build(NativeLayer(mixer, True))  # type: ignore[arg-type]
    ids = torch.arange(3, 19)[None]
    changed = ids.clone()
    changed[0, 9] = 30
    differs = (model(ids) - model(changed)).abs().amax(dim=-1)[0] > 1e-6
    assert not differs[:9].any()
    assert differs[9]
    # one layer: a window of 5 forgets position 9 after position 13; the others never do
    assert differs[13]
    assert bool(differs[14:].any()) == (mixer != "sliding")


def test_pictures_replace_placeholders_in_order() -> None:
    model = build(*ALL_KINDS)
    pictures = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(2)) * 2 - 1
    ids = [5, *[IMAGE] * 4, 6, *[IMAGE] * 4, 7]
    both = model(torch.tensor([ids]), pictures)
    swapped = model(torch.tensor([ids]), pictures.flip(0))
    one = model(torch.tensor([ids[:6]]), pictures[:1])
    torch.testing.assert_close(both[:, :6], one, rtol=1e-4, atol=1e-4)
    assert (both - swapped).abs().max() > 1e-3
    with pytest.raises(ValueError, match="8 image placeholder tokens, but 4"):
        model(torch.tensor([ids]), pictures[:1])


def test_generation_is_greedy_and_stops(tmp_path: Path) -> None:
    model = build(*ALL_KINDS)
    model.save(tmp_path)
    loaded = NativeReference.from_pretrained(tmp_path)
    prompt = [5, 9, 11]
    generated = loaded.generate(prompt, None, max_tokens=6, eos=-1)
    assert len(generated) == 6
    logits = model(torch.tensor([prompt + generated]))
    assert logits[0, len(prompt) - 1 : -1].argmax(dim=-1).tolist() == generated
    assert loaded.generate(prompt, None, max_tokens=6, eos=generated[0]) == generated[:1]
