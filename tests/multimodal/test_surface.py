"""A published vision-language model through what users touch: prompts, streams, the command line; and odd pictures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from typer.testing import CliRunner

from hybrid import LLM, SamplingParams
from hybrid.cli import app
from hybrid.encoders.families import idefics3
from hybrid.models.blueprint.split_tokens import SplitTokens
from hybrid.models.blueprint.vision import Vision

from .oracle import Oracle, all_cases, picture

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(all_cases()["gemma3: windows"], tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    oracle = Oracle(all_cases()["llava: CLIP"], tmp_path_factory.mktemp("llava"))
    return LLM(oracle.folder, dtype="float32", memory="16MiB", max_model_len=256)


def test_a_chat_at_the_command_line(gemma3: Oracle, tmp_path: Path) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for seed, path in enumerate(paths):
        picture(seed, 30, 20 + seed).save(path)
    llm = LLM(gemma3.folder, memory="16MiB")
    content = [*({"type": "image", "image": path} for path in paths), {"type": "text", "text": "Which?"}]
    [output] = llm.chat([{"role": "user", "content": content}], SamplingParams(temperature=0, max_tokens=8))
    arguments = [f"--model={gemma3.folder}", "--memory=16MiB", "--temperature=0", "--max-tokens=8", "--prompt=Which?"]
    done = CliRunner().invoke(app, ["chat", *arguments, *(f"--image={path}" for path in paths)])
    assert done.exit_code == 0, done.output
    assert done.stdout.rstrip("\n") == output.outputs[0].text.rstrip("\n")


def test_pictures_in_several_turns_at_the_command_line(gemma3: Oracle, tmp_path: Path) -> None:
    paths = [tmp_path / f"{seed}.png" for seed in range(3)]
    for seed, path in enumerate(paths):
        picture(seed, 30, 20 + seed).save(path)
    llm = LLM(gemma3.folder, memory="16MiB", max_num_seqs=8)
    params = SamplingParams(temperature=0, max_tokens=8)
    messages: list[dict[str, Any]] = []
    for question, shown in (("Which?", paths[:2]), ("And?", paths[2:])):
        content = [*({"type": "image", "image": path} for path in shown), {"type": "text", "text": question}]
        messages.append({"role": "user", "content": content})
        [output] = llm.chat(messages, params, use_tqdm=False)
        messages.append({"role": "assistant", "content": output.outputs[0].text})
    a, b, c = paths
    lines = [f"/image {a}", f"/image {b.as_uri()}", "Which?", f"/image {c}", "And?"]
    arguments = [f"--model={gemma3.folder}", "--memory=16MiB", "--temperature=0", "--max-tokens=8"]
    local = f"--allowed-local-media-path={tmp_path}"
    done = CliRunner().invoke(app, ["chat", *arguments, local], input="\n".join(lines))
    assert done.exit_code == 0, done.output
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    assert done.stdout.split() == "\n".join(answers).split()
    cost = llm.num_image_tokens(picture(0, 30, 20))
    assert done.stderr.count(f": {cost} tokens; it goes with your next message") == 3
    refused = CliRunner().invoke(app, ["generate", "<begin>?", *arguments, f"--image={b.as_uri()}"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "may not be read" in refused.stderr
    assert CliRunner().invoke(app, ["generate", "<begin>?", *arguments, f"--image={b.as_uri()}", local]).exit_code == 0


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("model", ["tiny", "gemma3"])
def test_the_same_image_of_fifty_requests_is_encoded_once(
    model: str, enable_prefix_caching: bool, gemma3: Oracle
) -> None:
    """Also while they come and go, with another image between them."""
    folder = gemma3.folder if model == "gemma3" else model
    llm = LLM(folder, memory="32MiB", max_num_seqs=16, enable_prefix_caching=enable_prefix_caching, num_threads=1)
    shared, other = picture(7, 40, 30), picture(8, 40, 30)
    chats = [
        [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": f"{index}?"}]}]
        for index, image in enumerate([*[shared] * 25, other, *[shared] * 25])
    ]
    outputs = llm.chat(chats, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3] * 51
    runner: Any = llm.engine._runner
    assert runner.num_encoded_images == llm.stats().shared["encoder"].loads == 2


def test_a_text_prompt_with_placeholders(llava: LLM) -> None:
    images = [picture(0, 20, 30), picture(1, 30, 20)]
    prompt = {"prompt": "<turn>user\n<image> and <image>", "multi_modal_data": {"image": images}}
    [output] = llava.generate(prompt, GREEDY, use_tqdm=False)
    [*_, streamed] = llava.stream(prompt, GREEDY)
    assert streamed.outputs == output.outputs
    assert len(output.prompt_token_ids) == len("_user\n and ") + 2 * 16
    with pytest.raises(ValueError, match=r"2 image placeholders \('<image>'\) and 1 image"):
        llava.generate({**prompt, "multi_modal_data": {"image": images[:1]}}, GREEDY)


def test_image_tokens_in_the_words_of_a_user_are_refused(gemma3: Oracle) -> None:
    """Where another token stands for an image in prompts."""
    llm = LLM(gemma3.folder, memory="16MiB")
    prompt = {"prompt": "<begin><image>", "multi_modal_data": {"image": picture(0, 20, 30)}}
    with pytest.raises(ValueError, match="holds '<image>' 2 times where its images make it once"):
        llm.generate(prompt, GREEDY)


def test_pictures_of_any_size(tmp_path: Path) -> None:
    """A model whose pictures keep their size; what it cannot be shown says so, and harms nobody."""
    oracle = Oracle(all_cases()["qwen3_vl: levels"], tmp_path)
    llm = LLM(oracle.folder, dtype="float32", memory="16MiB", max_model_len=256)

    def ask(source: Any) -> int:
        """Tokens of the image."""
        prompt = {"prompt": "<begin><image><finish>?", "multi_modal_data": {"image": source}}
        [output] = llm.generate(prompt, GREEDY, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 8
        return list(output.prompt_token_ids).count(oracle.image_token_id)

    assert [ask(source) for source in (Image.new("RGB", (1, 1)), picture(3, 20, 20), picture(2, 20, 30))] == [1, 4, 8]
    assert ask(Image.new("RGB", (400, 3_000))) <= 40 < ask(Image.new("RGB", (20, 4_000)))
    for size in ((1, 10_000), (201, 1)):
        with pytest.raises(ValueError, match=f"{size[0]} x {size[1]} pixels is too thin"):
            ask(Image.new("RGB", size))
    llm.engine.scheduler.check()
    assert ask(np.full((9, 7), 65535, dtype=np.uint16)) == 1


def test_a_picture_too_thin_for_a_tower_of_published_size() -> None:
    """CLIP's processor makes the shorter side 336 pixels before it crops: of 1 x 10,000 that would be gigabytes."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    from hybrid.encoders.transformers_processor import Expansion, TransformersImageProcessor

    processor: Any = CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    images = TransformersImageProcessor(processor, lambda features: Expansion((3,), [(features, (576,))]), 3)
    with pytest.raises(ValueError, match="1 x 10000 pixels is too thin"):
        images(Image.new("RGB", (1, 10_000)))
    assert images(Image.new("RGB", (100, 5_000))).inputs[0].arrays["pixel_values"].shape == (1, 3, 336, 336)


def test_a_tile_that_a_model_would_take_for_none(tmp_path: Path) -> None:
    """Idefics 3 leaves out tiles of zeros, which black pictures are where no mean is subtracted."""
    square = {"longest_edge": 16}
    Idefics3ImageProcessorPil(size=square, max_image_size=square, image_mean=[0.0] * 3).save_pretrained(tmp_path)
    images = idefics3.image_processor({}, tmp_path, Vision({}, 3, SplitTokens(4, 16, 16)))
    assert images is not None
    assert len(images(Image.new("RGB", (20, 20), "red")).inputs) == 1
    with pytest.raises(ValueError, match="zeros only"):
        images(Image.new("RGB", (20, 20), "black"))


def rewrite(folder: Path, **keys: Any) -> None:
    """Of the processor's configuration; None: there is no such key."""
    file = folder / "processor_config.json"
    found = json.loads(file.read_text(encoding="utf-8")) | keys
    file.write_text(json.dumps({key: value for key, value in found.items() if value is not None}), encoding="utf-8")


def test_where_no_file_describes_an_image_processor_text_is_served(tmp_path: Path) -> None:
    """There is one of the whole model's processor all the same."""
    folder = Oracle(all_cases()["llava: CLIP"], tmp_path).folder
    rewrite(folder, image_processor=None)
    (folder / "preprocessor_config.json").unlink(missing_ok=True)
    llm = LLM(folder, dtype="float32", memory="16MiB", max_model_len=256)
    [output] = llm.chat([{"role": "user", "content": "Hello"}], GREEDY, use_tqdm=False)
    assert output.error is None
    with pytest.raises(ValueError, match="says nowhere how images are to be prepared"):
        llm.num_image_tokens(picture(0, 20, 30))


def test_a_mark_that_is_no_token_is_named_before_anything_runs(tmp_path: Path) -> None:
    """The encoder leaves room for one token between two rows."""
    folder = Oracle(all_cases()["mistral3: rows"], tmp_path).folder
    rewrite(folder, image_break_token="<none>")
    llm = LLM(folder, dtype="float32", memory="16MiB", max_model_len=256)
    prompt = {"prompt": "<image>", "multi_modal_data": {"image": picture(0, 20, 30)}}
    with pytest.raises(ValueError, match="between two rows of an image is not one token"):
        llm.generate(prompt, GREEDY, use_tqdm=False)
    one_row = {"prompt": "<image>", "multi_modal_data": {"image": picture(0, 30, 4)}}
    assert llm.generate(one_row, GREEDY, use_tqdm=False)[0].error is None


def test_images_of_one_prompt_may_be_limited(gemma3: Oracle) -> None:
    data = {"multi_modal_data": {"image": [picture(0, 20, 30)] * 2}}
    two = LLM(gemma3.folder, memory="16MiB", limit_mm_per_prompt={"image": 2, "video": 0})
    [output] = two.generate({"prompt": "<begin><begin>", **data}, GREEDY, use_tqdm=False)
    assert output.error is None
    one = LLM(gemma3.folder, memory="16MiB", limit_mm_per_prompt={"image": 1})
    with pytest.raises(ValueError, match="the prompt brings 2 images, limit_mm_per_prompt allows 1"):
        one.generate({"prompt": "<begin><begin>", **data}, GREEDY)


@pytest.mark.parametrize("model", ["tiny", "gemma3"])
def test_without_images_the_tower_is_not_loaded(model: str, gemma3: Oracle) -> None:
    """And text is what it was."""
    folder = gemma3.folder if model == "gemma3" else model
    seeing = LLM(folder, memory="16MiB", dtype="float32")
    blind = LLM(folder, memory="16MiB", dtype="float32", limit_mm_per_prompt={"image": 0})
    runner: Any = blind.engine._runner
    assert runner._encoder is None
    assert blind.stats().ledgers["encoder"].total == 0 < seeing.stats().ledgers["encoder"].total
    chat = [{"role": "user", "content": "Hello"}]
    [expected], [output] = (llm.chat(chat, GREEDY, use_tqdm=False) for llm in (seeing, blind))
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    with pytest.raises(ValueError, match="limit_mm_per_prompt allows no images"):
        blind.num_image_tokens(picture(0, 20, 30))
    content = [{"type": "image", "image": picture(0, 20, 30)}]
    with pytest.raises(ValueError, match="limit_mm_per_prompt allows no images, and the prompt brings 1"):
        blind.chat([{"role": "user", "content": content}], GREEDY)


@pytest.mark.parametrize("limits", [{"image": -1}, {"image": True}, {"images": 1}, 3])
def test_limits_that_can_never_be(limits: Any) -> None:
    with pytest.raises(ValueError, match="limit_mm_per_prompt"):
        LLM("tiny", limit_mm_per_prompt=limits)


@pytest.mark.parametrize(
    ("given", "message"), [("image=2", "must be JSON"), ("2", "got 2"), ('{"image": -1}', "at least 0, got -1")]
)
def test_limits_at_the_command_line(given: str, message: str) -> None:
    done = CliRunner().invoke(app, ["serve", "tiny", "--limit-mm-per-prompt", given])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
