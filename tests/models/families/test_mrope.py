"""Decoders with mrope over prompts with images compute what transformers' text models compute, however the prompts are
cut up. See `mrope` for where images come from."""

from dataclasses import replace

import pytest
import torch

from hybrid.runner.loading import load
from tests.models.forward import RowImages, chunked_logits

from .mrope import CASES, Layout, TextOracle
from .test_families import TOLERANCE

LAYOUTS: list[Layout] = [
    [(2, 3), 4, (3, 2), 1],  # token by token
    [3, (4, 3), 5, (1, 6), 1, (2, 1), 12],
    [20, (5, 4), 11],
    [41],
]
SCHEDULES = [
    [[17, 41, 51, 41]],
    [[1, 9, 25, 10], [1, 1, 1, 1], [1, 7, 6, 10], [1, 17, 10, 5], [1, 1, 7, 12], [1, 1, 1, 1]],
    [[1, 1, 1, 1]] * 12,
]


@pytest.fixture(scope="module", params=CASES)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextOracle:
    return TextOracle(request.param, tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["whole", "chunks", "token by token"])
def test_logits_of_every_position(oracle: TextOracle, schedule: list[list[int]]) -> None:
    decoder = load(oracle.folder, torch.float32).decoder
    prompts = [oracle.prompt(layout, seed) for seed, layout in enumerate(LAYOUTS)]
    images = [prompt.images for prompt in prompts]
    rows = [prompt.token_ids for prompt in prompts]
    for prompt, logits in zip(prompts, chunked_logits(decoder, rows, schedule, images=images)):
        reference = oracle.image_logits(prompt)[: len(logits)]
        error = (logits - reference).abs().amax(dim=-1) / reference.abs().amax(dim=-1)
        assert float(error.max()) < TOLERANCE


def test_positions_and_levels_matter(oracle: TextOracle) -> None:
    """What the test above compares is not the same anyway."""
    decoder = load(oracle.folder, torch.float32).decoder
    prompt = oracle.prompt(LAYOUTS[1], 1)
    images = prompt.images
    assert images is not None

    def last(images: RowImages) -> torch.Tensor:
        return chunked_logits(decoder, [prompt.token_ids], [[41]], images=[images])[0][-1]

    other_grids = oracle.prompt([3, (3, 4), 5, (6, 1), 1, (1, 2), 12], 1).images
    assert other_grids is not None and other_grids.tokens == images.tokens
    assert not torch.allclose(last(images), last(other_grids), rtol=1e-2)
    if oracle.levels:
        levels = images.embeddings.clone()
        levels[:, oracle.hidden_size :] = 0
        assert not torch.allclose(last(images), last(replace(images, embeddings=levels)), rtol=1e-2)


def test_text_beside_images_is_as_text_alone(oracle: TextOracle) -> None:
    """To the last bit."""
    decoder = load(oracle.folder, torch.float32).decoder
    rows = [oracle.prompt([length], length).token_ids for length in (21, 30)]
    schedule = [[1, 12], [9, 10], [1, 1], [1, 1]]
    alone = chunked_logits(decoder, rows, schedule)
    beside = chunked_logits(decoder, rows, schedule, images=[None, None])
    for one, other in zip(alone, beside):
        assert torch.equal(one, other)
