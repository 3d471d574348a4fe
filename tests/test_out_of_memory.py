"""A device that runs out of memory in a step: the step fails in a sentence, and the engine goes on."""

from typing import Any

import pytest
import torch
from PIL import Image

from hybrid import LLM, RequestOutput, SamplingParams
from hybrid.encoders.families.hybrid_native import NativeEncoder
from hybrid.models.decoder import Decoder

# As torch says it.
SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.07 are free. "
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)
TOLD = "OutOfMemoryError: CUDA out of memory; lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs"
PICTURES = [{"type": "image", "image": Image.new("RGB", (64, 64), colour)} for colour in ("red", "green", "blue")]
MESSAGES = [[{"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}] for picture in PICTURES]
PLACES = {"decoder": (Decoder, "forward"), "encoder": (NativeEncoder, "__call__")}


def new_llm() -> LLM:
    return LLM("tiny", device="cpu", memory="64MiB")


def answers(llm: LLM) -> list[RequestOutput]:
    return llm.chat(MESSAGES, SamplingParams(max_tokens=6, temperature=0.0), use_tqdm=False)


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture
def llm() -> LLM:
    return new_llm()


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    return tokens(answers(new_llm()))


@pytest.mark.parametrize("place", PLACES)
def test_a_step_that_fails_is_done_again_in_smaller_ones(
    place: str, llm: LLM, expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call with three requests or pictures has no room."""
    owner, name = PLACES[place]
    compute, sizes = getattr(owner, name), []

    def call(self: Any, given: Any) -> Any:
        sizes.append(given.num_rows if place == "decoder" else len(given))
        if len(sizes) == 1:
            raise torch.OutOfMemoryError(SAID)
        return compute(self, given)

    monkeypatch.setattr(owner, name, call)
    assert tokens(answers(llm)) == expected
    assert sizes[0] == 3 and llm.engine.scheduler.stats().failed_steps == 1


@pytest.mark.parametrize("place", PLACES)
def test_what_never_has_room_ends_in_a_sentence(
    place: str, llm: LLM, expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(self: Any, given: Any) -> None:
        raise torch.OutOfMemoryError(SAID)

    with monkeypatch.context() as patch:
        patch.setattr(*PLACES[place], call)
        failed = answers(llm)
    assert [output.error for output in failed] == [TOLD] * 3
    llm.engine.scheduler.check()
    for pool, ledger in llm.stats().ledgers.items():
        assert (ledger.reserved, ledger.held, ledger.pinned, ledger.pending) == (0, 0, 0, 0), pool
    assert tokens(answers(llm)) == expected
