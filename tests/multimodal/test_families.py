"""Every family that sees images computes what transformers computes, however its work is cut up.

The oracle is a random checkpoint that transformers saved, with the processor of its images, see `oracle`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybrid import LLM, RequestOutput, SamplingParams
from hybrid.capacity.model_file import open_model
from hybrid.capacity.question import image_cost
from hybrid.encoders.transformers_encoder import TransformersEncoder
from hybrid.frontend.messages import read_conversation
from hybrid.frontend.prompt import Prompt
from hybrid.models.context import ForwardContext, ImageTokens
from hybrid.models.decoder import Decoder
from hybrid.models.families.vision import TYPES
from hybrid.models.ops.lora import LoraBatch
from hybrid.runner.loading import LoadedModel, load
from tests.models.forward import caches_for, context_for

from .oracle import Chat, Oracle, all_cases, picture

CASES = all_cases()
MAX_TOKENS = 40
TOLERANCE = 1e-4  # of the largest logit of a position


def image(seed: int, width: int, height: int) -> dict[str, Any]:
    return {"type": "image", "image": picture(seed, width, height)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(words: str) -> dict[str, Any]:
    return {"role": "assistant", "content": words}


ONE, TWO, THREE = image(1, 40, 23), image(2, 16, 16), image(3, 9, 31)
FIRST = [user(ONE, text("\nWhat is this?"))]
SECOND = [*FIRST, assistant("the first"), user(text("And "), TWO, text(" that,\n"), THREE)]
CHATS: list[Chat] = [
    [{"role": "user", "content": "the words alone"}],
    FIRST,
    SECOND,
    [{"role": "user", "content": "other words, and more of them than before"}],
    [user(THREE, ONE, text("the same in another place"), TWO)],
]
NUM_IMAGES = (0, 1, 3, 0, 3)


@pytest.fixture(scope="module", params=CASES, ids=list(CASES))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(CASES[request.param], tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def loaded(oracle: Oracle) -> LoadedModel:
    return load(oracle.folder, torch.float32)


@pytest.fixture(scope="module")
def alone(oracle: Oracle) -> LLM:
    """One at a time, whole prompts, nothing cached."""
    return engine(oracle.folder, max_num_seqs=1, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def expected(oracle: Oracle, alone: LLM) -> list[tuple[int, ...]]:
    return tokens(chat(alone, oracle, CHATS))


def engine(folder: Path, **arguments: Any) -> LLM:
    defaults = {"memory": "16MiB", "max_model_len": 512, "block_size": 8}
    return LLM(folder, dtype="float32", **{**defaults, **arguments})


def chat(llm: LLM, oracle: Oracle, chats: Sequence[Chat]) -> list[RequestOutput]:
    never = {oracle.image_token_id: -100.0}  # transformers would look for an image in its place
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logit_bias=never)
    return llm.chat(list(chats), params, use_tqdm=False)


def tokens(outputs: Sequence[RequestOutput]) -> list[tuple[int, ...]]:
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def num_encoded(llm: LLM) -> int:
    """Images so far, those that were encoded again counted again."""
    runner: Any = llm.engine._runner
    encoded: int = runner.num_encoded_images
    return encoded


def test_every_family_that_sees_images_has_a_case() -> None:
    assert {name.split(":")[0] for name in CASES} == TYPES


def test_the_blueprint_names_the_tensors_of_the_encoder(loaded: LoadedModel) -> None:
    encoder, vision = loaded.encoder, loaded.model.vision
    assert isinstance(encoder, TransformersEncoder)
    assert vision is not None
    named = {name: tuple(tensor.shape) for name, tensor in encoder.model.named_parameters()}
    assert named == vision.tensors
    projections = {name: tuple(module.weight.shape) for name, module in encoder.projections.items()}
    assert projections == vision.lora_targets()
    assert not [name for name, tensor in encoder.model.named_buffers() if tensor.is_meta]


def test_prompts_are_those_of_the_processor(oracle: Oracle, alone: LLM) -> None:
    for messages, number in zip(CHATS, NUM_IMAGES):
        prompt = process(alone, messages)
        assert prompt.token_ids.tolist() == oracle.inputs(messages)["input_ids"][0].tolist()
        covered = [range(entry.offset, entry.offset + entry.num_tokens) for entry in prompt.images]
        places = np.flatnonzero(prompt.token_ids == oracle.image_token_id).tolist()
        assert set(places) <= {position for positions in covered for position in positions}
        assert len(prompt.images) >= number
        assert len(set(prompt.encoder_inputs)) == len(prompt.images)


def test_pixels_are_those_of_the_processor(oracle: Oracle, loaded: LoadedModel, alone: LLM) -> None:
    """To the last bit, though they are kept as bytes; LFM2-VL has a test of its own, as we prepare its pictures."""
    encoder, messages = loaded.encoder, [user(image(5, 50, 23))]
    assert isinstance(encoder, TransformersEncoder)
    entries = process(alone, messages).encoder_inputs.values()
    kept = {entry.arrays["pixel_values"].dtype for entry in entries}
    if loaded.config["model_type"] == "lfm2_vl":
        assert kept == {np.dtype(np.float32)}
        return
    assert kept == {np.dtype(np.uint8)}
    pixels = torch.cat([encoder._batch([entry])["pixel_values"].flatten() for entry in entries])
    assert torch.equal(pixels, oracle.inputs(messages)["pixel_values"].flatten())


def test_the_blueprint_counts_the_tokens_of_any_picture(loaded: LoadedModel, alone: LLM) -> None:
    """Those of its entries, and the encoder makes as many embeddings."""
    encoder, vision = loaded.encoder, loaded.model.vision
    embedding_size = loaded.model.decoder.image_embedding_size
    assert encoder is not None
    assert vision is not None
    for width, height in ((1, 1), (9, 31), (50, 3), (2, 38), (40, 23), (64, 64)):
        prompt = process(alone, [user(image(5, width, height))])
        counts = [entry.num_tokens for entry in prompt.images]
        assert list(vision.tokens(width, height).entries) == counts
        assert vision.tokens.least <= min(counts)
        assert max(counts) <= vision.tokens.most
        embeddings = encoder([prompt.encoder_inputs[entry.mm_hash] for entry in prompt.images])
        assert [tuple(entry.shape) for entry in embeddings] == [(count, embedding_size) for count in counts]


def test_the_planner_counts_by_how_much_a_picture_makes_a_prompt_longer(oracle: Oracle) -> None:
    """Its marks among them, where each is one token and joins no text beside it."""
    model = open_model(oracle.folder)

    def length(*between: dict[str, Any]) -> int:
        return int(oracle.inputs([user(text("Look: "), *between)])["input_ids"].shape[1])

    for size in ((40, 20), (50, 9), (64, 30)):
        assert image_cost(model, size).prompt_tokens == length(image(5, *size)) - length()
        assert image_cost(model, size).prompt_tokens <= image_cost(model, None).prompt_tokens


def test_token_ids_with_placeholders_are_expanded_too(oracle: Oracle, alone: LLM) -> None:
    processor = alone._processor
    assert processor.tokenizer is not None
    words = processor.tokenizer.render_chat(read_conversation(FIRST).messages)
    ids = processor.tokenizer.encode(words, False).token_ids
    prompt = processor.process({"prompt_token_ids": ids, "multi_modal_data": {"image": ONE["image"]}})
    assert prompt.token_ids.tolist().count(oracle.image_token_id) > 3
    assert [*prompt.encoder_inputs] == [entry.mm_hash for entry in process(alone, FIRST).images]


@pytest.mark.parametrize("chunk", [1000, 23, 7])
def test_logits_of_every_position(oracle: Oracle, loaded: LoadedModel, alone: LLM, chunk: int) -> None:
    for messages in CHATS:
        logits = all_logits(loaded, process(alone, messages), chunk)
        reference = oracle.logits(messages)
        error = (logits - reference).abs().amax(dim=-1) / reference.abs().amax(dim=-1)
        assert float(error.max()) < TOLERANCE


def test_greedy_tokens_are_those_of_the_oracle(oracle: Oracle, expected: list[tuple[int, ...]]) -> None:
    for messages, output in zip(CHATS, expected):
        assert len(output) == MAX_TOKENS
        assert oracle.is_greedy(messages, output)


def process(llm: LLM, messages: Chat) -> Prompt:
    return llm._processor.process_chat(read_conversation(messages))


@torch.inference_mode()
def all_logits(loaded: LoadedModel, prompt: Prompt, chunk: int, units: Sequence[int] = ()) -> torch.Tensor:
    """Of every token of a prompt, computed in chunks, of which none ends in an image whose tokens see each other.

    units: rank units of its adapter."""
    decoder, ids = loaded.decoder, prompt.token_ids.tolist()
    entries = [(i.offset, i.offset + i.num_tokens, prompt.encoder_inputs[i.mm_hash]) for i in prompt.images]
    assert loaded.encoder is not None
    embeddings = loaded.encoder([entry for _, _, entry in entries]) if entries else []
    caches = caches_for(decoder, 1)
    start, out = 0, []
    while start < len(ids):
        end = min(start + chunk, len(ids))
        if decoder.bidirectional_images:
            end = next((high for low, high, _ in entries if low < end < high), end)
        context = context_for([ids], [start], [end - start], caches)
        spans = [
            (max(low, start), min(high, end), low, vectors) for (low, high, _), vectors in zip(entries, embeddings)
        ]
        context = with_images(context, ids, start, [span for span in spans if span[0] < span[1]], decoder)
        if prompt.image_positions is not None:
            positions = prompt.image_positions.at(start, end - start)
            context = replace(context, image_positions=torch.from_numpy(positions))
        lora = LoraBatch(np.array([units] * (end - start))) if units else None
        out.append(decoder.compute_logits(decoder.forward(replace(context, lora=lora)), lora))
        start = end
    return torch.cat(out)


def with_images(
    context: ForwardContext,
    ids: list[int],
    start: int,
    spans: list[tuple[int, int, int, torch.Tensor]],
    decoder: Decoder,
) -> ForwardContext:
    """spans: first position and end in the chunk, which begins at `start`; the first of the image, its embeddings."""
    if not spans:
        return context
    places = [(p, p - low, v) for first, end, low, v in spans for p in range(first, end)]
    places = [(p, index, v) for p, index, v in places if ids[p] == decoder.image_token_id]
    indices = torch.tensor([p - start for p, _, _ in places])
    embeddings = torch.stack([v[index] for _, index, v in places])
    groups = np.array([(0, first - start, end - start) for first, end, _, _ in spans], dtype=np.int64)
    return replace(context, images=ImageTokens(indices, embeddings, groups if decoder.bidirectional_images else None))


# --- however its work is cut up ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"long_prefill_token_threshold": 17, "max_num_batched_tokens": 33, "max_num_seqs": 5},
        {"force_retraction_every": 3, "max_num_seqs": 4, "max_num_batched_tokens": 64},
        {"max_plans_in_flight": 2, "max_num_seqs": 5, "max_num_batched_tokens": 48},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_mixed_batches(oracle: Oracle, expected: list[tuple[int, ...]], arguments: dict[str, Any]) -> None:
    llm = engine(oracle.folder, **arguments)
    assert tokens(chat(llm, oracle, CHATS)) == expected
    if "force_retraction_every" in arguments:
        assert llm.stats().retractions > 10


def test_embeddings_give_way_to_each_other(oracle: Oracle, alone: LLM, expected: list[tuple[int, ...]]) -> None:
    """A pool and a budget for the largest image alone."""
    most = max(image.num_tokens for messages in CHATS for image in process(alone, messages).images)
    llm = engine(
        oracle.folder,
        encoder_tokens=most,
        max_num_encoder_tokens=most,
        max_num_batched_tokens=64,
        max_num_seqs=5,
        force_retraction_every=7,
    )
    assert tokens(chat(llm, oracle, CHATS)) == expected
    assert num_encoded(llm) > 3


def test_the_next_turn_hits_with_its_images(oracle: Oracle, expected: list[tuple[int, ...]]) -> None:
    llm = engine(oracle.folder, max_num_batched_tokens=64, max_num_seqs=5)
    [first] = chat(llm, oracle, [FIRST])
    assert (tokens([first])[0], first.num_cached_tokens) == (expected[1], 0)
    before = num_encoded(llm)
    [second] = chat(llm, oracle, [SECOND])
    assert tokens([second])[0] == expected[2]
    whole = process(llm, FIRST)
    assert second.num_cached_tokens >= whole.images[-1].offset + whole.images[-1].num_tokens
    assert num_encoded(llm) - before == len(process(llm, SECOND).images) - len(whole.images)


def test_another_image_never_hits(oracle: Oracle) -> None:
    llm = engine(oracle.folder)
    other = [user(image(4, 40, 23), text("\nWhat is this?"))]
    [first] = chat(llm, oracle, [FIRST])
    [second] = chat(llm, oracle, [other])
    assert second.num_cached_tokens <= process(llm, FIRST).images[0].offset
    assert oracle.is_greedy(other, tokens([second])[0])
    assert tokens([first]) != tokens([second])


def test_an_image_of_many_requests_is_encoded_once(oracle: Oracle, expected: list[tuple[int, ...]]) -> None:
    llm = engine(oracle.folder, max_num_seqs=8, enable_prefix_caching=False)
    assert set(tokens(chat(llm, oracle, [FIRST] * 8))) == {expected[1]}
    assert num_encoded(llm) == len(process(llm, FIRST).images)


def test_an_image_that_never_fits_is_refused(oracle: Oracle) -> None:
    """At the start where every image is as large, else when its request is added."""
    with pytest.raises(ValueError, match="encoder"):
        chat(engine(oracle.folder, encoder_tokens=2), oracle, [FIRST])
    with pytest.raises(ValueError, match="encode"):
        chat(engine(oracle.folder, max_num_encoder_tokens=2), oracle, [FIRST])


def test_an_image_that_never_fits_harms_nobody(
    oracle: Oracle, loaded: LoadedModel, alone: LLM, expected: list[tuple[int, ...]]
) -> None:
    """Where images have many sizes, the smaller ones are served beside it."""
    assert loaded.model.vision is not None
    small, large = (sorted({i.num_tokens for m in CHATS for i in process(alone, m).images})[end] for end in (0, -1))
    if small == large:
        assert loaded.model.vision.tokens.least == loaded.model.vision.tokens.most
        return
    for arguments, message in (
        ({"encoder_tokens": large - 1}, f"the encoder pool has {large - 1} tokens in all and {large} are needed"),
        ({"max_num_encoder_tokens": large - 1}, f"an image has {large} tokens, a step encodes at most {large - 1}"),
    ):
        llm = engine(oracle.folder, **arguments)
        with pytest.raises(ValueError, match=message):
            chat(llm, oracle, [SECOND])
        llm.engine.scheduler.check()
        fitting = [messages for messages in CHATS if all(i.num_tokens < large for i in process(alone, messages).images)]
        assert tokens(chat(llm, oracle, fitting)) == [expected[CHATS.index(messages)] for messages in fitting]
