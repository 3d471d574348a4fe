"""TransformersEncoder: vision tower and projector as transformers computes them, with tensors that we read.

Only the decoder is left out; glue between tower and decoder is transformers' own `get_image_features`.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import nn

from .checked import one_line
from .inputs import EncoderInput
from .upload import upload

DECODERS = ("language_model", "text_model")  # what transformers' whole models call their text decoder


class TransformersEncoder:
    """See `inputs.Encoder`. Inputs whose arrays can lie one after the other are computed together. Where they have
    `byte_values` (see `transformers_processor`), their `pixel_values` are bytes, which are looked up there."""

    def __init__(self, config: Mapping[str, Any], get: Callable[[str], torch.Tensor]) -> None:
        """config: the whole `config.json`. get: a tensor by the name that transformers' model gives its parameter; each
        is asked for once and kept. Raises ValueError for a configuration that transformers refuses."""
        self.model = _build(config, get)
        first = next(self.model.parameters())
        self._device, self._dtype = first.device, first.dtype

    @property
    def projections(self) -> Mapping[str, nn.Linear]:
        """See `inputs.Encoder`."""
        return {name: module for name, module in self.model.named_modules() if isinstance(module, nn.Linear)}

    def __call__(self, inputs: Sequence[EncoderInput]) -> Sequence[torch.Tensor]:
        """See `inputs.Encoder`."""
        order = sorted(range(len(inputs)), key=lambda index: _shapes(inputs[index]))
        embeddings: dict[int, torch.Tensor] = {}
        for _, group in groupby(order, key=lambda index: _shapes(inputs[index])):
            indices = list(group)
            embeddings |= zip(indices, self._encode([inputs[index] for index in indices]))
        return [embeddings[index] for index in range(len(inputs))]

    def _encode(self, inputs: Sequence[EncoderInput]) -> Sequence[torch.Tensor]:
        compute: Any = self.model.get_image_features
        output = compute(**self._batch(inputs), return_dict=True)
        levels = getattr(output, "deepstack_features", None) or ()  # each for all pictures
        return [torch.cat(of_one, dim=-1) for of_one in zip(output.pooler_output, *levels)]

    def _batch(self, inputs: Sequence[EncoderInput]) -> Mapping[str, torch.Tensor]:
        """What transformers' model reads: arrays of inputs, one after the other."""
        batch = {
            name: self._tensor(np.concatenate([entry.arrays[name] for entry in inputs])) for name in inputs[0].arrays
        }
        if "byte_values" in batch:
            batch["pixel_values"] = _looked_up(batch["pixel_values"], batch.pop("byte_values")[0])
        return batch

    def _tensor(self, values: Any) -> torch.Tensor:
        tensor = upload(values, self._device)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


def _build(config: Mapping[str, Any], get: Callable[[str], torch.Tensor]) -> nn.Module:
    """transformers' model without its decoder."""
    from transformers import CONFIG_MAPPING, AutoModel
    from transformers.initialization import no_init_weights

    auto: Any = AutoModel
    try:
        parsed = CONFIG_MAPPING[config["model_type"]](**config)  # `from_dict` warns about the defaults of others
        with torch.device("meta"), no_init_weights():
            model = auto.from_config(parsed)
    except Exception as error:  # whatever a configuration makes transformers raise
        raise _refused(error) from None
    for name in DECODERS:
        if hasattr(model, name):
            setattr(model, name, None)
    # 1. parameters are those of the checkpoint; transformers' initialisation passes by what is marked so
    device = torch.device("cpu")
    for name, _ in list(model.named_parameters()):
        owner, _, last = name.rpartition(".")
        tensor = nn.Parameter(get(name), requires_grad=False)
        tensor._is_hf_initialized = True  # type: ignore[attr-defined]
        device = tensor.device
        setattr(model.get_submodule(owner), last, tensor)
    # 2. buffers are computed: no checkpoint holds them
    try:
        for name, buffer in list(model.named_buffers()):
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, torch.empty_like(buffer, device=device))
        model.initialize_weights()
    except Exception as error:
        raise _refused(error) from None
    built: nn.Module = model.eval()
    return built


def _refused(error: Exception) -> ValueError:
    return ValueError(f"transformers cannot build the vision tower: {one_line(error)}")


def _looked_up(pixels: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """pixels: bytes [..., channels, height, width]. values: [channels, 256]."""
    channels = zip(pixels.unbind(-3), values)
    return torch.stack([of.index_select(0, each.int().flatten()).view(each.shape) for each, of in channels], dim=-3)


def _shapes(entry: EncoderInput) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What must be equal for arrays to lie one after the other."""
    return tuple((name, values.shape[1:]) for name, values in entry.arrays.items())
