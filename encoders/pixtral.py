"""Pixtral's pictures: rows of image tokens with a mark after each. Source: transformers' `processing_pixtral.py`."""

from collections.abc import Sequence
from pathlib import Path

import torch

from .inputs import Arrays, EncoderInput, VisionFacts
from .processor_files import WHOLE, whole_keys
from .transformers_encoder import TransformersEncoder
from .transformers_processor import Expansion, TransformersImageProcessor, load_image_processor


class RowEncoder(TransformersEncoder):
    """See `inputs.Encoder`. Embeddings of marks between two rows are zeros, which nobody reads."""

    def _encode(self, inputs: Sequence[EncoderInput]) -> Sequence[torch.Tensor]:
        """One by one: together they would be one sequence, whose mask grows with the square of its length."""
        return [self._encode_one(entry) for entry in inputs]

    def _encode_one(self, entry: EncoderInput) -> torch.Tensor:
        # transformers' Mistral 3 loses a dimension of a single token: such a picture is computed twice
        embeddings = super()._encode([entry] * (2 if entry.runs == (1,) else 1))[0]
        rows = embeddings.unflatten(0, (len(entry.runs), -1))
        return torch.nn.functional.pad(rows, (0, 0, 0, 1)).flatten(0, 1)[:-1]


def image_processor(folder: Path, vision: VisionFacts, side: int) -> TransformersImageProcessor | None:
    """side: pixels of a token. Raises ValueError."""
    processor = load_image_processor(folder)
    if processor is None:
        return None
    mark, end = (_token(folder, name) for name in ("image_break_token", "image_end_token"))

    def expand(features: Arrays) -> Expansion:
        [(height, width)] = features["image_sizes"].tolist()
        rows, columns = height // side, width // side
        parts = [part for _ in range(rows) for part in (vision.image_token_id, mark)]
        return Expansion((*parts[:-1], end), [(features, (columns,) * rows)])

    return TransformersImageProcessor(processor, expand, vision.image_token_id, tokens=vision.tokens, patch_size=side)


def _token(folder: Path, name: str) -> str:
    """What the whole model's processor writes for a mark."""
    token = whole_keys(folder).get(name, {"image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}[name])
    if not isinstance(token, str):
        raise ValueError(f"{WHOLE}: {name} must be a string, got {token!r}")
    return token
