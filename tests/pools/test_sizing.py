"""Sizing: bytes by hand, and pools that never exceed the memory given.

The model below, in bytes, everything float32 unless said:
    full attention     2 (K, V) x 2 heads x 16       x 4 =  256 per token, in two layers           512
    sliding window     2 (K, V) x 1 head  x 16       x 2 =   64 per token (bfloat16), one layer     64
    recurrent state    conv 96 x 3 x 4 = 1,152; SSM 4 x 16 x 8 x 4 = 2,048; one layer            3,200
    image embeddings   64 x 4                            =  256 per token
"""

from dataclasses import replace

import pytest

from hybrid.pools.sizing import (
    Kinds,
    Need,
    PoolSizes,
    blocks_for,
    default_encoder_tokens,
    life_units,
    lora_units,
    never_fits,
    pool_bytes,
    size_pools,
)
from hybrid.pools.specs import (
    EncoderSpec,
    FullAttentionSpec,
    MambaSpec,
    ModelSpec,
    SlidingWindowSpec,
    dtype_bytes,
)

FULL = FullAttentionSpec(num_kv_heads=2, head_size=16)
WINDOW = SlidingWindowSpec(num_kv_heads=1, head_size=16, sliding_window=24, dtype="bfloat16")
STATE = MambaSpec(conv_shape=(96, 3), ssm_shape=(4, 16, 8))
MODEL = ModelSpec(
    layers=((FULL,), (WINDOW,), (STATE, FULL), ()), encoder=EncoderSpec(hidden_size=64, max_tokens_per_image=49)
)
SIZES = PoolSizes(
    num_rows=4, num_full_blocks=100, num_window_blocks=20, num_state_slots=8, encoder_tokens=200, lora_units=16,
    block_size=16, sliding_window=24, max_model_len=512,
)  # fmt: skip


def test_bytes_of_the_specs() -> None:
    assert (FULL.bytes_per_token, WINDOW.bytes_per_token, STATE.bytes_per_slot) == (256, 64, 3200)
    assert (MODEL.full_bytes_per_token, MODEL.window_bytes_per_token, MODEL.state_bytes_per_slot) == (512, 64, 3200)
    assert MODEL.sliding_window == 24
    assert MambaSpec(conv_shape=(96, 3), ssm_shape=(), conv_dtype="bfloat16").bytes_per_slot == 576
    assert [dtype_bytes(name) for name in ("float64", "float16", "int8")] == [8, 2, 1]
    with pytest.raises(ValueError, match="dtype 'int3' is not one of"):
        dtype_bytes("int3")
    with pytest.raises(ValueError, match="layer 1: sliding_window 0 is less than 1"):
        ModelSpec(layers=((FULL,), (replace(WINDOW, sliding_window=0),)))


def test_bytes_of_the_pools() -> None:
    """With a null block: 101 x 16 x 512 = 827,392; 21 x 16 x 64 = 21,504; 8 x 3,200 = 25,600; 200 x 256 = 51,200;
    and 16 rank units of 1,000 bytes."""
    memory = pool_bytes(SIZES, MODEL, 1_000)
    assert (memory.full, memory.window, memory.state, memory.encoder) == (827_392, 21_504, 25_600, 51_200)
    assert (memory.lora, memory.total) == (16_000, 941_696)
    assert pool_bytes(SIZES, ModelSpec(((STATE,),))).total == 25_600


def test_kinds() -> None:
    assert Kinds.of(MODEL) == Kinds(full=True, window=True, state=True)
    assert Kinds.of(ModelSpec(layers=((STATE,),))) == Kinds(full=False, window=False, state=True)


def test_units() -> None:
    assert [blocks_for(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert [lora_units(rank) for rank in (0, 1, 8, 9, 64)] == [0, 1, 1, 2, 8]


def test_what_a_request_costs_over_its_life() -> None:
    """100 tokens: 7 blocks. A window of 24 spans at most ceil((24 + 14) / 16) = 3 blocks wherever it lies."""
    kinds = Kinds.of(MODEL)
    life = life_units(Need(100, image_tokens=(49, 12), lora_rank=12), SIZES, kinds)
    assert (life.rows, life.full, life.window, life.state, life.encoder, life.lora) == (1, 7, 3, 1, 49, 2)
    short = life_units(Need(10), SIZES, Kinds(full=True, window=True, state=False))
    assert (short.full, short.window, short.state) == (1, 1, 0)
    whole = life_units(Need(100, image_tokens=(49,), unsplit_images=True), SIZES, kinds)
    assert whole.window == 6  # 49 tokens and the 23 before them: 72, over at most 6 blocks


def test_what_never_fits_is_named_pool_by_pool() -> None:
    need = Need(16 * 101, image_tokens=(201,), lora_rank=129)
    shortages = never_fits(need, SIZES, Kinds.of(MODEL))
    assert all(short.never for short in shortages)
    assert [(short.pool, short.needed, short.capacity) for short in shortages] == [
        ("full attention", 101, 100),
        ("encoder", 201, 200),
        ("LoRA", 17, 16),
    ]
    assert never_fits(Need(1600, (200,), 128), SIZES, Kinds.of(MODEL)) == ()


@pytest.mark.parametrize(
    "model",
    [MODEL, ModelSpec(((FULL,),)), ModelSpec(((WINDOW,),)), ModelSpec(((STATE,),)), ModelSpec(((WINDOW, STATE),))],
)
@pytest.mark.parametrize("plans", [1, 2])
def test_pools_fill_the_memory_and_never_exceed_it(model: ModelSpec, plans: int) -> None:
    """Also where memory is scarce: down to what one request of max_model_len needs, and an error below."""
    accepted = refused_after_success = False
    for memory in range(2_000, 4_000_000, 61_003):
        try:
            sizes = size_pools(
                model, memory, block_size=16, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=512,
                max_plans_in_flight=plans,
            )  # fmt: skip
        except ValueError:
            refused_after_success |= accepted
            continue
        accepted = True
        assert pool_bytes(sizes, model).total <= memory
        assert never_fits(Need(512), sizes, Kinds.of(model)) == ()
        assert sizes.lookahead == plans - 1
    assert accepted and not refused_after_success, "more memory is never worse"


def test_the_encoder_pool_where_nobody_says() -> None:
    def default(most: int, seqs: int, picture: int | None = None) -> int:
        encoder = EncoderSpec(64, most, max_tokens_per_picture=picture)
        return default_encoder_tokens(replace(MODEL, encoder=encoder), seqs)

    assert [default(49, seqs) for seqs in (1, 4, 7, 16, 100)] == [4 * 49, 4 * 49, 7 * 49, 16 * 49, 16 * 49]
    assert default(2880, 100) == 16 * 1024
    assert default(9000, 1) == 9000
    assert default(64, 4, picture=832) == 4 * 832  # of 13 tiles
    assert default(64, 4, picture=64 * 17) == 4 * 1024
    assert default_encoder_tokens(ModelSpec(((FULL,),)), 8) == 0


def test_too_little_memory_says_what_is_missing() -> None:
    settings = {"block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 512}
    with pytest.raises(ValueError, match="memory of 1000 bytes does not hold one request: bounded pools alone need"):
        size_pools(MODEL, 1000, **settings)
    large = replace(MODEL, encoder=EncoderSpec(64, 9000))
    with pytest.raises(ValueError, match=r"of which 2304000 are for 9000 image tokens \(encoder_tokens\)"):
        size_pools(large, 2_000_000, **settings)
    assert size_pools(large, 2_000_000, **settings, encoder_tokens=64).encoder_tokens == 64
    with pytest.raises(ValueError, match="max_model_len 512 does not fit: the full attention pool has 19 blocks"):
        size_pools(ModelSpec(((FULL,),)), 16 * 256 * (19 + 1) + 5, **settings)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_rows", 0), ("block_size", 0), ("max_model_len", 0), ("lora_units", -1), ("encoder_tokens", -1)],
)
def test_impossible_sizes_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} {value}"):
        replace(SIZES, **{field: value})
