"""Rows of tokens are those of transformers' processor of Pixtral; what an image processor's configuration may say."""

from typing import Any

import numpy as np
import pytest
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

from hybrid.models.blueprint.config_reader import ConfigReader
from hybrid.models.blueprint.row_tokens import RowTokens, read_row_tokens
from hybrid.models.blueprint.vision import ImageCost

from .test_scaled_tokens import sizes

PUBLISHED = {"Pixtral-12B": RowTokens(16, 1024, 1024), "Mistral-Small-3.1": RowTokens(28, 1540, 1540)}
CASES = [*PUBLISHED.values(), RowTokens(8, 30, 30), RowTokens(28, 300, 500), RowTokens(7, 6, 100)]


@pytest.mark.parametrize("tokens", CASES)
def test_tokens_are_those_of_transformers(tokens: RowTokens) -> None:
    counts = []
    for width, height in sizes(0):
        image = np.broadcast_to(np.zeros(()), (3, height, width))
        resized = get_resize_output_image_size(
            image, (tokens.max_height, tokens.max_width), (tokens.side,) * 2, input_data_format="channels_first"
        )
        if 0 in resized:
            with pytest.raises(ValueError, match=f"an image of {width} x {height} pixels is too thin"):
                tokens.grid(width, height)
            continue
        rows, columns = tokens.grid(width, height)
        assert (rows * tokens.side, columns * tokens.side) == resized
        counts.append(rows * (columns + 1) - 1)
        assert tokens(width, height) == ImageCost((counts[-1],), 1)
    assert min(counts) == tokens.least
    assert max(counts) <= tokens.most


def test_published_counts() -> None:
    assert [tokens.most for tokens in PUBLISHED.values()] == [64 * 65 - 1, 55 * 56 - 1]
    assert [tokens(8000, 8000) for tokens in PUBLISHED.values()] == [tokens.costliest for tokens in PUBLISHED.values()]
    assert PUBLISHED["Pixtral-12B"](1024, 512).prompt_tokens == 32 * 65


def read(**keys: Any) -> RowTokens:
    return read_row_tokens(ConfigReader(keys, "preprocessor_config.json"), 28, 1540)


def test_what_is_read() -> None:
    assert read_row_tokens(None, 28, 1540) == PUBLISHED["Mistral-Small-3.1"]
    assert read(size={"longest_edge": 1540}) == PUBLISHED["Mistral-Small-3.1"]
    assert read() == RowTokens(28, 1024, 1024)
    assert read(size={"height": 20, "width": 30}) == RowTokens(28, 20, 30)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"do_resize": False}, "do_resize is False"),
        ({"do_center_crop": True}, "do_center_crop is True"),
        ({"size": {"shortest_edge": 28}}, r"preprocessor_config\.json\.size\.height is missing"),
    ],
)
def test_what_cannot_be_is_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**keys)
