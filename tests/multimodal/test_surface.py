"""A published vision-language model through what users touch: prompts, streams, the command line; and odd pictures."""

from io import BytesIO
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


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


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


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(2, 30, 20), "JPEG", exif=exif)


def palette() -> bytes:
    image = picture(3, 20, 20).quantize(8)
    return encoded(image, "PNG", transparency=0)


@pytest.mark.parametrize(
    "source",
    [
        Image.new("RGB", (1, 1), "red"),
        Image.new("RGB", (40, 4000), "blue"),
        palette(),
        np.full((9, 7), 65535, dtype=np.uint16),
        encoded(picture(4, 20, 20), "GIF", save_all=True, append_images=[picture(5, 20, 20)]),
        encoded(picture(4, 20, 20), "WEBP", save_all=True, append_images=[picture(5, 20, 20)]),
        rotated(),
    ],
    ids=["1x1", "thin", "palette", "16 bits", "GIF", "WebP", "EXIF"],
)
def test_odd_pictures_are_answered(llava: LLM, source: Any) -> None:
    [output] = llava.generate({"prompt": "<image>?", "multi_modal_data": {"image": source}}, GREEDY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 8
    assert len(output.prompt_token_ids) == 17


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Image.new("1", (1, 500_000)), "has 1 x 500000 pixels; at most"),
        (Image.new("1", (2, 60_000)), None),
        (Image.new("1", (12_000, 12_000)), "has 12000 x 12000 pixels; at most"),
        (encoded(picture(6, 20, 20), "PNG")[:-40], "cannot be decoded"),
        (b"", "is not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not an image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "is not an image"),
    ],
    ids=["too long", "long", "too large", "truncated", "empty", "SVG", "HEIC"],
)
def test_pictures_that_are_refused_harm_nobody(llava: LLM, source: Any, message: str | None) -> None:
    prompt = {"prompt": "<image>?", "multi_modal_data": {"image": source}}
    if message is None:
        llava.generate(prompt, GREEDY, use_tqdm=False)
    else:
        with pytest.raises(ValueError, match=message):
            llava.generate(prompt, GREEDY, use_tqdm=False)
    llava.engine.scheduler.check()
    [output] = llava.generate("words", GREEDY, use_tqdm=False)
    assert output.error is None


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

    assert [ask(source) for source in (Image.new("RGB", (1, 1)), palette(), rotated())] == [1, 4, 8]
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
    images = idefics3.image_processor({}, tmp_path, Vision({}, 3, SplitTokens(4, 16, 16), width=1))
    assert images is not None
    assert len(images(Image.new("RGB", (20, 20), "red")).inputs) == 1
    with pytest.raises(ValueError, match="zeros only"):
        images(Image.new("RGB", (20, 20), "black"))
