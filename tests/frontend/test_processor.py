"""What users pass becomes tokens, pictures and places; what cannot be is one clear sentence."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hybrid.checkpoints import find_checkpoint
from hybrid.encoders.families.hybrid_native import NativeImageProcessor
from hybrid.frontend.messages import read_conversation
from hybrid.frontend.processor import Processor
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.sampling_params import SamplingParams

EOS, IMAGE = 2, 3
PER_IMAGE = 16


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(find_checkpoint("tiny"))


def make(tokenizer: Tokenizer | None, max_model_len: int = 200, vision: bool = True) -> Processor:
    return Processor(
        tokenizer,
        vocab_size=869,
        max_model_len=max_model_len,
        eos_token_ids=(EOS,),
        images=NativeImageProcessor(IMAGE, PER_IMAGE, 64) if vision else None,
    )


@pytest.fixture(scope="module")
def processor(tokenizer: Tokenizer) -> Processor:
    return make(tokenizer)


def picture(colour: str = "red") -> Image.Image:
    return Image.new("RGB", (30, 20), colour)


def png(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_text_and_token_ids_give_the_same_tokens(processor: Processor, tokenizer: Tokenizer) -> None:
    text = processor.process("What is this?")
    ids = text.token_ids.tolist()
    assert text.text == "What is this?" and tokenizer.decode(ids) == "What is this?"
    for same in (ids, tuple(ids), np.array(ids), {"prompt_token_ids": ids}):
        prompt = processor.process(same)
        assert (prompt.text, prompt.token_ids.tolist()) == (None, ids)
    assert processor.process({"prompt": "What is this?", "cache_salt": "s"}).cache_salt == "s"


def test_every_placeholder_becomes_the_tokens_of_its_image(processor: Processor) -> None:
    prompt = processor.process(
        {"prompt": "a<|image|>b<|image|>", "multi_modal_data": {"image": [picture("red"), picture("blue")]}}
    )
    ids = prompt.token_ids.tolist()
    assert ids.count(IMAGE) == 2 * PER_IMAGE and len(ids) == 2 * PER_IMAGE + 2
    assert [(image.offset, image.num_tokens) for image in prompt.images] == [(1, PER_IMAGE), (2 + PER_IMAGE, PER_IMAGE)]
    assert prompt.images[0].mm_hash != prompt.images[1].mm_hash
    assert {entry.arrays["pixel_values"].shape for entry in prompt.encoder_inputs.values()} == {(3, 64, 64)}


def test_equal_pictures_share_their_pixels_however_they_come(processor: Processor, tmp_path: Path) -> None:
    image = picture()
    path = tmp_path / "100%25 red picture.png"
    image.save(path)
    url = "data:image/png;base64," + base64.b64encode(png(image)).decode()
    sources: list[Any] = [image, str(path), path, path.as_uri(), png(image), np.asarray(image), url]
    prompt = processor.process({"prompt": "<|image|>" * len(sources), "multi_modal_data": {"image": sources}})
    assert len(prompt.encoder_inputs) == 1
    assert len({image.mm_hash for image in prompt.images}) == 1


def test_resume_hints_follow_every_message(processor: Processor, tokenizer: Tokenizer) -> None:
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|image|>Hello<|im_end|>\n<|im_start|>assistant\n"
    )
    prompt = processor.process({"prompt": text, "multi_modal_data": {"image": picture()}})
    ids = prompt.token_ids.tolist()
    assert len(prompt.resume_hints) == 2
    for hint in prompt.resume_hints:
        assert tokenizer.decode(ids[:hint]).endswith("<|im_end|>\n")


def test_a_chat_is_rendered_and_hinted(processor: Processor, tokenizer: Tokenizer) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image", "image": picture()}, {"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]},
    ]
    prompt = processor.process_chat(read_conversation(messages))
    assert prompt.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|image|>Hello<|im_end|>\n"
        "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(prompt.images) == 1
    assert len(prompt.resume_hints) == 4
    for hint in prompt.resume_hints:
        assert tokenizer.decode(prompt.token_ids.tolist()[:hint]).endswith("<|im_end|>\n")


def test_hints_come_from_the_template_where_messages_have_no_end_token(tokenizer: Tokenizer) -> None:
    """Without end-of-text tokens in the prompt, the ends are found in the rendered text."""
    processor = Processor(tokenizer, vocab_size=869, max_model_len=200)
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "x"},
    ]
    prompt = processor.process_chat(read_conversation(messages))
    ids = prompt.token_ids.tolist()
    assert [tokenizer.decode(ids[:hint]) for hint in prompt.resume_hints] == [
        "<|im_start|>user\nHello<|im_end|>\n",
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n",
    ]


def test_of_very_many_messages_few_are_looked_for(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of each is found by rendering all before it."""
    renders = []
    render = Tokenizer.render_chat

    def counted(self: Tokenizer, messages: Any, *more: Any) -> str:
        renders.append(len(messages))
        return render(self, messages, *more)

    monkeypatch.setattr(Tokenizer, "render_chat", counted)
    processor = make(tokenizer, max_model_len=10_000)
    processor.process_chat(read_conversation([{"role": "user", "content": "a"}] * 300))
    assert len(renders) <= 65 and {1, 2, 299} < set(renders)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"type": "image", "image": "PIC"}, "PIC"),
        ({"type": "image_url", "image_url": {"url": "URL"}}, "URL"),
        ({"type": "image_url", "image_url": "URL"}, "URL"),
        ({"type": "input_image", "image_url": "URL"}, "URL"),
    ],
)
def test_the_ways_to_bring_a_picture(content: dict[str, Any], kind: str) -> None:
    conversation = read_conversation([{"role": "user", "content": [content, {"type": "text", "text": "?"}]}])
    assert conversation.images == (kind,)
    assert conversation.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "?"}]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ({"prompt": ""}, "the prompt is empty"),
        ({}, "needs one of 'prompt' and 'prompt_token_ids'"),
        ({"prompt": "a", "prompt_token_ids": [5]}, "needs one of"),
        ({"prompt": 7}, "'prompt' must be a string, got int"),
        ({"prompt": "a", "image": "x.png"}, "no key 'image'"),
        ({"prompt": "a", "cache_salt": 3}, "cache_salt must be a string, got 3"),
        ({"prompt": "a", "multi_modal_data": {"video": 1}}, r"got keys \['video'\]"),
        ({"prompt": "a", "multi_modal_data": "x.png"}, "got str"),
        (7, "got int"),
        (b"bytes", "got bytes"),
        ([1, "a"], "token ids must be integers, got 'a'"),
        ([1, True], "token ids must be integers, got True"),
        ([1, 2.0], "got 2.0"),
        ([1, 869], "token id 869 is not below the vocabulary size 869"),
        ([-1], "token id -1"),
        (np.zeros((2, 2), dtype=np.int64), "token ids must be integers"),
        ("\ud800", "not valid Unicode"),
        ("x" * 400, r"the prompt has \d+ tokens, more than the 199 that max_model_len 200 leaves room for"),
        ("<|image|>", r"the prompt has 1 image placeholder \('<|image|>'\) and no images"),
        ({"prompt": "a", "multi_modal_data": {"image": picture()}}, r"1 image but no placeholder; write '<\|image\|>'"),
        (
            {"prompt": "<|image|>", "multi_modal_data": {"image": [picture(), picture()]}},
            r"1 image placeholder \('<|image|>'\) and 2 images",
        ),
        ({"prompt": "<|image|>" * 13, "multi_modal_data": {"image": [picture()] * 13}}, "the prompt has 208 tokens"),
        ({"prompt": "<|image|>", "multi_modal_data": {"image": "/no/such.png"}}, "does not exist"),
        ({"prompt": "<|image|>", "multi_modal_data": {"image": 7}}, "not int"),
        ({"prompt": "<|image|>", "multi_modal_data": {"image": b"no picture"}}, "is not an image"),
        ({"prompt": "<|image|>", "multi_modal_data": {"image": png(picture())[:-30]}}, "cannot be decoded"),
        ({"prompt": "<|image|>", "multi_modal_data": {"image": "http://x/y.png"}}, "is not fetched"),
        ({"prompt": "<|image|>", "multi_modal_data": {"image": "data:image/png;base64,@@"}}, "no valid base64"),
        ({"prompt": "<|image|>", "multi_modal_data": {"image": "data:image/png"}}, "no comma"),
        (
            {"prompt": "<|image|><|image|>", "multi_modal_data": {"image": [picture(), b"no"]}},
            "image 2 of 2: the image data is not an image",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(processor: Processor, prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        processor.process(prompt)
    assert "\n" not in str(caught.value)


def call(name: str, arguments: object) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_arguments_of_calls_are_mappings_for_templates() -> None:
    calls = [call("f", '{"a": 1}'), call("g", {"b": 2}), call("h", "")]
    [message] = read_conversation([{"role": "assistant", "content": None, "tool_calls": calls}]).messages
    assert message["content"] == ""
    assert message["tool_calls"] == [call("f", {"a": 1}), call("g", {"b": 2}), call("h", {})]
    assert calls[0] == call("f", '{"a": 1}')
    empty: tuple[object, ...] = (None, [])
    for none in empty:  # as clients send back what they got
        [message] = read_conversation([{"role": "assistant", "content": "x", "tool_calls": none}]).messages
        assert message == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "the conversation is empty"),
        ("hello", "must be a list of mappings, got str"),
        ([["x"]], "message 0: a message must be a mapping"),
        ([{"content": "x"}], "message 0: 'role' must be a string"),
        ([{"role": "user"}], "'content' must be a string or a list of parts, got NoneType"),
        ([{"role": "user", "content": [{"type": "video"}]}], "a part of type 'video' is not known"),
        ([{"role": "user", "content": [{"type": "text"}]}], "a text part needs 'text'"),
        ([{"role": "user", "content": [{"type": "image"}]}], "message 0: .*no picture"),
        ([{"role": "assistant", "tool_calls": "x"}], "message 0: 'tool_calls' must be a list, got str"),
        ([{"role": "assistant", "tool_calls": [{"name": "f"}]}], "tool call 0 must be"),
        ([{"role": "assistant", "tool_calls": [call("f", '{"a"')]}], "tool call 0: 'arguments' are no JSON"),
        ([{"role": "assistant", "tool_calls": [call("f", "[" * 10**5)]}], "tool call 0: 'arguments' are no JSON"),
        ([{"role": "assistant", "tool_calls": [call("f", "[1]")]}], "'arguments' must be a JSON object"),
    ],
)  # fmt: skip
def test_bad_messages_are_one_sentence(messages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_conversation(messages)


def test_a_text_that_no_tokens_could_shorten_enough_is_not_even_tokenised(
    processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("tokenised")

    monkeypatch.setattr(Tokenizer, "encode", never)
    with pytest.raises(ValueError, match=r"^the prompt has 1,000,000 characters, more than the [\d,]+ that fit into"):
        processor.process("x" * 10**6)
    monkeypatch.undo()
    longest = "<|im_start|>"  # of all tokens
    assert processor.process(longest * 199).num_tokens == 199
    with pytest.raises(ValueError, match="the prompt has 200 tokens"):
        processor.process(longest * 200)


def test_pictures_behind_the_end_of_the_context_are_not_even_opened(processor: Processor) -> None:
    fitting = 200 // PER_IMAGE
    sources: list[Any] = [*[picture()] * fitting, b"no picture"]
    prompt = {"prompt": "<|image|>" * len(sources), "multi_modal_data": {"image": sources}}
    with pytest.raises(ValueError, match=f"image {fitting + 1} of {fitting + 1}: the image data is not an image"):
        processor.process(prompt)
    sources.insert(0, picture())
    with pytest.raises(ValueError, match="the prompt has 208 tokens in its first 13 images, more than the 199 that"):
        processor.process(prompt | {"prompt": "<|image|>" * len(sources)})


def test_a_text_model_refuses_pictures(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="the model takes no images, and the prompt brings 1"):
        make(tokenizer, vision=False).process({"prompt": "a", "multi_modal_data": {"image": picture()}})


def test_without_a_tokenizer_only_token_ids_go() -> None:
    processor = make(None)
    assert processor.process([5, 6]).token_ids.tolist() == [5, 6]
    prompt = processor.process({"prompt_token_ids": [5, IMAGE], "multi_modal_data": {"image": picture()}})
    assert prompt.num_tokens == 1 + PER_IMAGE
    with pytest.raises(ValueError, match="text needs a tokenizer"):
        processor.process("hello")
    with pytest.raises(ValueError, match="a chat needs a tokenizer"):
        processor.process_chat(read_conversation([{"role": "user", "content": "x"}]))


def test_max_tokens_is_what_the_context_holds(processor: Processor) -> None:
    prompt = processor.process([5] * 150)
    assert processor.max_tokens(prompt, SamplingParams(max_tokens=10)) == 10
    assert processor.max_tokens(prompt, SamplingParams(max_tokens=1000)) == 50
    assert processor.max_tokens(prompt, SamplingParams(max_tokens=None)) == 50
    with pytest.raises(ValueError, match="min_tokens 60 does not fit: after a prompt of 150 tokens"):
        processor.max_tokens(prompt, SamplingParams(max_tokens=None, min_tokens=60))
