"""Planned concurrency is what the scheduler reaches, and close to what bytes allow; what a plan consists of."""

from dataclasses import replace
from typing import Any

import pytest

from hybrid import LLM
from hybrid.capacity.question import NothingFitsError
from hybrid.capacity.sizing.planning import plan
from hybrid.models.blueprint.vision import ImageCost
from tests.capacity.questions import GIB, MIB, longer, peak_running, planned, question

SHAPES = (
    "Jamba-v0.1",
    "Nemotron-H-8B-Base-8K",
    "granite-4.0-h-tiny",
    "Falcon-H1-7B",
    "gemma-3-12b-it",
    "gpt-oss-20b",
    "Qwen3-Next-80B-A3B-Instruct",
)


@pytest.mark.parametrize("tokens", [2048, 8192, 32768, 131072])
@pytest.mark.parametrize("name", SHAPES)
def test_the_scheduler_reaches_the_plan_and_the_plan_the_bytes(name: str, tokens: int) -> None:
    """In 40 GiB, to the last token and without a retraction; at least 0.97 of the requests that the bytes of one
    decoding request would allow without any padding. Answers are so long that all requests overlap."""
    asked = longer(question(name, weights_dtype="bfloat16", context=tokens - 256, output=256), tokens)
    first = plan(asked)
    output = first.concurrency * tokens // asked.max_num_batched_tokens + 128
    made = plan(replace(asked, context=tokens - output, output=output))
    assert peak_running(made, extra=1) == made.concurrency == first.concurrency
    spec = made.spec
    one = tokens * spec.full_bytes_per_token + min(tokens, spec.sliding_window) * spec.window_bytes_per_token
    assert made.concurrency >= 0.97 * (made.memory_bytes // (one + spec.state_bytes_per_slot))


@pytest.mark.parametrize("name", ["Jamba-v0.1", "gemma-3-12b-it", "gpt-oss-20b", "mamba-130m-hf", "LFM2-1.2B"])
def test_few_requests_with_adapters(name: str) -> None:
    """All adapters are there at once, and paid for."""
    many = {"max_num_seqs": 12, "adapters": 5, "rank": 12, "weights_dtype": "bfloat16"}
    made = planned(name, memory_bytes=4 * GIB, context=1000, output=300, **many)
    assert made.sizes.lora_units == 5 * 2
    assert made.pools.lora == 10 * made.question.model.lora_bytes_per_unit(made.question.dtype)
    assert made.pools.total <= made.memory_bytes
    assert peak_running(made) == made.concurrency


@pytest.mark.parametrize(("name", "prefix"), [("Llama-3.1-8B", 3008), ("Jamba-v0.1", 3000), ("gemma-3-12b-it", 3001)])
def test_a_shared_prefix_is_kept_once(name: str, prefix: int) -> None:
    alone = planned(name, memory_bytes=5 * GIB, context=4000, output=80, weights_dtype="bfloat16")
    made = plan(replace(alone.question, shared_prefix=prefix))
    assert made.concurrency > alone.concurrency
    assert made.shared_bytes == prefix // 16 * 16 * made.spec.full_bytes_per_token
    assert made.request_bytes.full == alone.request_bytes.full - made.shared_bytes
    assert peak_running(made) == made.concurrency


@pytest.mark.parametrize("images", [0, 1, 3])
def test_images(images: int) -> None:
    made = planned("tiny", memory_bytes=8 * MIB, context=60, output=40, images=images)
    assert made.question.total_tokens == 100 + images * made.question.image_tokens
    assert made.sizes.encoder_tokens == min(max(4, made.concurrency), 16) * made.question.image_tokens
    assert peak_running(made) == made.concurrency
    with pytest.raises(ValueError, match=r"Jamba-v0\.1 is served without images"):
        question("Jamba-v0.1", images=1)


class ByArea:
    """A token for 64 pixels, in entries of 16 and what is left, and a mark at the end."""

    least = 1
    most = 16
    costliest = ImageCost((16,) * 4, 1)

    def __call__(self, width: int, height: int) -> ImageCost:
        whole, rest = divmod(width * height // 64, 16)
        return ImageCost((16,) * whole + ((rest,) if rest else ()), 1)


def test_images_of_any_size() -> None:
    """The blueprint says how many tokens a picture becomes; the encoder pool holds its entries one after another."""
    asked = question("tiny", memory_bytes=8 * MIB, context=60, output=40, images=2, image_size=(16, 24))
    assert asked.model.vision is not None
    asked = replace(asked, model=replace(asked.model, vision=replace(asked.model.vision, tokens=ByArea())))
    made = plan(asked)
    assert (asked.image_tokens, asked.total_tokens, made.life.encoder) == (7, 114, 6)
    assert peak_running(made) == made.concurrency
    large = plan(replace(asked, image_size=(64, 64)))
    assert (large.question.total_tokens, large.life.encoder) == (100 + 2 * 65, 16)
    assert plan(replace(asked, image_size=None)).question.total_tokens == large.question.total_tokens
    assert peak_running(large) == large.concurrency
    assert large.concurrency < made.concurrency


@pytest.mark.parametrize("more", [{}, {"adapters": 2, "rank": 8}])
def test_the_flags_give_the_engine_the_planned_sizes(more: dict[str, int]) -> None:
    made = planned("tiny", memory_bytes=24 * MIB, context=100, output=50, weights_dtype="float32", **more)
    words = made.flags().split()
    assert words[:2] == ["--dtype", "float32"]
    arguments: dict[str, Any] = {}
    for word, value in zip(words, [*words[1:], "--"]):
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            arguments[name] = True if value.startswith("--") else int(value) if value.isdigit() else value
    assert LLM("tiny", device="cpu", **arguments).sizes == made.sizes


def test_dtypes() -> None:
    """A byte for keys and values is half; states and convolutions stay."""
    plain = planned("Jamba-v0.1", context=8192)
    half = planned("Jamba-v0.1", context=8192, kv_dtype="float8_e4m3fn")
    assert 2 * half.request_bytes.full == plain.request_bytes.full
    assert half.request_bytes.state == plain.request_bytes.state
    assert half.flags() == "" and "keeps keys and values as it computes" in half.question.what_if[0]
    small = planned("Jamba-v0.1", context=8192, state_dtype="bfloat16")
    assert small.request_bytes.state < plain.request_bytes.state
    eight = planned("Jamba-v0.1", context=8192, weights_dtype="float8_e4m3fn")
    assert 2 * eight.weights_bytes == plain.weights_bytes
    assert eight.request_bytes == plain.request_bytes
    with pytest.raises(ValueError, match="dtype 'int3' is not one of"):
        question("Jamba-v0.1", kv_dtype="int3")


def test_a_budget_for_nothing() -> None:
    with pytest.raises(NothingFitsError, match=r"no request of 2048 tokens fits into 1,000 bytes; .* would hold one"):
        planned("Jamba-v0.1", memory_bytes=1000)
    needed = planned("Jamba-v0.1", memory_bytes=GIB).pools.total
    with pytest.raises(ValueError, match="max_model_len 200512 exceeds the model's limit of 131072"):
        planned("Llama-3.1-8B", context=200_000)
    assert needed <= GIB


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("context", 0, "context must be at least 1, got 0"),
        ("output", 0, "output must be at least 1, got 0"),
        ("adapters", -1, "adapters must be at least 0, got -1"),
        ("tp", 0, "tp must be at least 1, got 0"),
        ("shared_prefix", 1536, "shared_prefix 1536 leaves nothing of a context of 1536 tokens"),
        ("memory_bytes", None, "give memory, or a gpu"),
    ],
)
def test_impossible_questions(field: str, value: int | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        question("Jamba-v0.1", **{field: value})
