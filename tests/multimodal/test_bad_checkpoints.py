"""Checkpoints whose image processor or tower is not what it should be are refused at the start, in one sentence: what
nobody found out until the first picture would be that user's error, or a step's that fails for everyone in it."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hybrid import LLM
from hybrid.encoders.checked import CheckedImageProcessor
from hybrid.encoders.inputs import EncoderInput, ProcessedImage
from hybrid.models.blueprint.vision import FixedTokens, ImageCost

from .oracle import Oracle, all_cases, picture

NAN, HUGE = float("nan"), 10**12
# case, where under "image_processor", value, part of the message
IMAGE_PROCESSORS: list[tuple[str, str, Any, str]] = [
    ("gemma3: windows", "rescale_factor", "x", "ufunc 'multiply'"),
    ("gemma3: windows", "rescale_factor", {}, "unsupported operand"),
    ("gemma3: windows", "image_mean", NAN, "byte_values of a picture that are not finite"),
    ("gemma3: windows", "image_std", 0, "byte_values of a picture that are not finite"),
    ("gemma3: windows", "image_mean", [0.5, 0.5], "mean must have 3 elements"),
    ("gemma3: windows", "resample", -1, "resampl"),
    ("gemma3: windows", "size.height", HUGE, "size.height must be an integer from 1 to 8,000"),
    ("gemma3: windows", "size.height", 0, "size.height must be an integer from 1 to 8,000"),
    ("gemma3: windows", "size.height", 23, "its vision tower reads [3, 24, 24]"),
    ("gemma3: windows", "size", NAN, "image processor"),
    ("gemma3: windows", "image_processor_type", "NoSuchProcessor", "cannot be read"),
    ("llava: CLIP", "crop_size.width", 10**6, "crop_size.width must be an integer from 1 to 8,000"),
    ("llava: CLIP", "size.shortest_edge", HUGE, "size.shortest_edge must be an integer from 1 to 8,000"),
    ("llava: CLIP", "do_center_crop", None, "its vision tower reads [3, 16, 16]"),
    ("idefics3: tiles", "do_resize", None, "do_resize is False, which is not supported"),
    ("idefics3: tiles", "size.longest_edge", 10**6, "size.longest_edge must be an integer from 1 to 8,000"),
    ("qwen3_vl: levels", "size.longest_edge", HUGE, "size.longest_edge must be between 1 and"),
    ("qwen3_vl: levels", "size.shortest_edge", -1, "size.shortest_edge must be between 1 and"),
    ("qwen3_vl: levels", "min_pixels", NAN, "min_pixels must be an integer, got nan"),
    ("qwen3_vl: levels", "max_pixels", 0, "max_pixels must be between 1 and"),
    ("qwen3_vl: levels", "patch_size", 0, "patch_size must be the vision tower's 4, got 0"),
    ("mistral3: rows", "do_resize", None, "do_resize is False, which is not supported"),
    ("lfm2_vl: tiles", "image_std", 0, "image_std and rescale_factor positive"),
]


# the same, anywhere in `config.json`
CONFIGURATIONS: list[tuple[str, str, Any, str]] = [
    ("llava: CLIP", "vision_config.layer_norm_eps", NAN, "the vision tower makes NaN of a picture"),
    ("llava: Pixtral", "vision_config.head_dim", 10**6, "the vision tower computes nothing: RuntimeError"),
    ("llava: Pixtral", "vision_config.head_dim", HUGE, "transformers cannot build the vision tower"),
    ("llava: Pixtral", "vision_config.rope_parameters.rope_theta", 0, "the vision tower makes NaN of a picture"),
    ("llava: Pixtral", "vision_config.hidden_act", "no_such_function", "transformers cannot build the vision tower"),
    ("llava: Pixtral", "vision_config.patch_size", 8, "patch_conv.weight"),
    ("gemma3: windows", "vision_config.num_hidden_layers", 3, "layers.2"),
    ("gemma3: windows", "vision_config.hidden_size", 18, "shape"),
    ("gemma3: windows", "vision_config.image_size", 48, "position_embedding.weight"),
    ("qwen3_vl: levels", "vision_config.deepstack_visual_indexes", [0, HUGE], "deepstack_visual_indexes"),
    ("qwen3_vl: levels", "vision_config.spatial_merge_size", 0, "spatial_merge_size must be between 1 and"),
    ("gemma3: windows", "boi_token_index", -1, "boi_token_index must be between 0 and"),
    ("gemma3: windows", "eoi_token_index", None, "eoi_token_index must be between 0 and 299, got 256000"),
    ("gemma3: windows", "image_token_index", 300, "image_token_index must be between 0 and 299"),
    ("llava: CLIP", "image_token_index", None, "image_token_id must be between 0 and 299, got 32000"),
    ("llava: CLIP", "image_token_index", 15, "the tokenizer has no token 15, which stands for an image"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A case's checkpoint, made once; to be copied before it is changed."""
    made: dict[str, Path] = {}

    def folder(case: str) -> Path:
        if case not in made:
            made[case] = Oracle(all_cases()[case], tmp_path_factory.mktemp("checkpoint")).folder
        return made[case]

    return folder


def start(folder: Path) -> LLM:
    return LLM(folder, dtype="float32", memory="16MiB", max_model_len=256, num_threads=1)


def changed(data: Mapping[str, Any], where: str, value: Any) -> dict[str, Any]:
    first, _, rest = where.partition(".")
    return {**data, first: changed(data[first], rest, value) if rest else value}


def change(file: Path, where: str, value: Any) -> None:
    file.write_text(json.dumps(changed(json.loads(file.read_text()), where, value)))


@pytest.mark.parametrize(("case", "where", "value", "message"), IMAGE_PROCESSORS)
def test_an_image_processor_of_no_use(
    folders: Callable[[str], Path], tmp_path: Path, case: str, where: str, value: Any, message: str
) -> None:
    folder = copytree(folders(case), tmp_path / "changed")
    change(folder / "processor_config.json", f"image_processor.{where}", value)
    assert_refused(folder, message)


@pytest.mark.parametrize(("case", "where", "value", "message"), CONFIGURATIONS)
def test_a_configuration_of_no_use(
    folders: Callable[[str], Path], tmp_path: Path, case: str, where: str, value: Any, message: str
) -> None:
    folder = copytree(folders(case), tmp_path / "changed")
    change(folder / "config.json", where, value)
    assert_refused(folder, message)


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        start(folder)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_null_leaves_a_step_out_as_in_transformers(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """Where a key that is absent means the default."""
    folder = copytree(folders("idefics3: tiles"), tmp_path / "changed")
    whole = start(folder).num_image_tokens(picture(0, 60, 40))
    change(folder / "processor_config.json", "image_processor.do_image_splitting", None)
    assert start(folder).num_image_tokens(picture(0, 60, 40)) < whole


class Odd:
    """An image processor that makes what `work` makes of pictures larger than the one tried at the start."""

    placeholder_id = image_token_id = 3

    def __init__(self, work: Callable[[], int]) -> None:
        self.work = work
        self.num_prepared = 0

    def __call__(self, image: Image.Image) -> ProcessedImage:
        self.num_prepared += 1
        tokens = self.work() if image.width > 100 else 4
        return ProcessedImage((3,), (EncoderInput("x", {"pixel_values": np.zeros(1)}, (tokens,)),))


@pytest.mark.parametrize(
    "error", [TypeError("of\ntwo lines"), MemoryError(), ZeroDivisionError("x" * 1000), KeyError()]
)
def test_whatever_a_processor_raises_is_one_sentence(error: Exception) -> None:
    def fail() -> int:
        raise error

    processor = CheckedImageProcessor(Odd(fail), FixedTokens(4), 10)
    assert processor(Image.new("RGB", (90, 90))).inputs[0].num_tokens == 4
    with pytest.raises(ValueError, match=f"200 x 1 pixels cannot be prepared: {type(error).__name__}") as refused:
        processor(Image.new("RGB", (200, 1)))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_tokens_that_the_blueprint_does_not_know() -> None:
    processor = CheckedImageProcessor(Odd(lambda: 5), FixedTokens(4), 10)
    with pytest.raises(
        ValueError, match="makes 5 tokens in 1 parts of an image of 200 x 1 pixels, and its configuration says 4"
    ):
        processor(Image.new("RGB", (200, 1)))


def test_an_image_that_no_prompt_holds_is_not_prepared() -> None:
    """A few bytes may be a picture whose pixels take gigabytes while they are prepared."""

    class AreaTokens(FixedTokens):
        def __call__(self, width: int, height: int) -> ImageCost:
            return ImageCost((4 if width <= 100 else width * height,))

    odd = Odd(lambda: 4)
    processor = CheckedImageProcessor(odd, AreaTokens(4), 10)
    with pytest.raises(ValueError, match="200 x 5 pixels becomes 1000 tokens, and a prompt has at most 10"):
        processor(Image.new("RGB", (200, 5)))
    assert odd.num_prepared == 0
