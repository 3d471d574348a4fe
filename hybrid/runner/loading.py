"""Loading: a checkpoint folder or GGUF file -> decoder and, where it sees images, encoder.

Models and encoders do not know each other; here they are put together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hybrid.encoders.families import family
from hybrid.encoders.inputs import Encoder
from hybrid.models.blueprint.model import Model
from hybrid.models.decoder import Decoder
from hybrid.models.loading import open_checkpoint
from hybrid.models.ops.transfer import make_current
from hybrid.models.weights import Weights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint ready to serve: pass `decoder` and `encoder` to ModelRunner."""

    model: Model
    decoder: Decoder
    encoder: Encoder | None
    config: Mapping[str, Any]  # the whole `config.json`


def load(
    path: str | Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    *,
    images: bool = True,
) -> LoadedModel:
    """Read a folder or GGUF file. Raises ValueError as `models.loading.open_checkpoint` does.

    dtype None: the checkpoint's own, but float32 on a CPU that is slow in anything shorter. images: false leaves out
    what sees them.
    """
    checkpoint = open_checkpoint(path)
    model = checkpoint.model if images else replace(checkpoint.model, vision=None)
    target = make_current(torch.device(device))
    if dtype is None:
        dtype = checkpoint.dtype if target.type != "cpu" or _fast_bfloat16() else torch.float32
    try:
        weights = Weights(checkpoint.tensors, dtype, target)
        decoder = Decoder(model, weights)
        encoder = None
        if model.vision is not None:
            encoder = family(checkpoint.config["model_type"]).encoder(checkpoint.config, weights)
    finally:
        checkpoint.tensors.close()
    return LoadedModel(model, decoder, encoder, checkpoint.config)


def _fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware tiles (AMX); AVX-512 alone is slower than float32."""
    return bool(torch.cpu._is_amx_tile_supported())
