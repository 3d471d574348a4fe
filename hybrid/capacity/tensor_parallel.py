"""Tensor parallelism: what one of several devices holds of a model. Heads, experts' widths and the vocabulary are
divided; norms, routers and everything else is held by every device.

Knows blueprints. What does not divide is refused, not replicated.
"""

from dataclasses import replace
from typing import Any

from hybrid.models.blueprint.decoder import Decoder, Layer, Normed, Part, Residual
from hybrid.models.blueprint.experts import MoE
from hybrid.models.blueprint.model import Model
from hybrid.models.blueprint.parts import MLP, Attention
from hybrid.models.blueprint.recurrent import RGLRU, GatedDeltaNet, Mamba1, Mamba2

# What of a part is divided; its tensors and what it keeps follow.
DIVIDED: dict[type, tuple[str, ...]] = {
    Attention: ("num_heads", "num_kv_heads"),
    MLP: ("intermediate_size",),
    MoE: ("intermediate_size",),
    Mamba1: ("inner_size",),
    Mamba2: ("num_heads", "n_groups"),
    GatedDeltaNet: ("num_k_heads", "num_v_heads"),
    RGLRU: ("width", "num_heads"),
}


def share_of(model: Model, tp: int) -> Model:
    """The part of `model` that each of `tp` devices holds. Raises ValueError naming what does not divide."""
    if tp == 1:
        return model

    def residual(branch: Residual) -> Residual:
        return replace(branch, parts=tuple(_share(part, tp) for part in branch.parts))

    decoder: Decoder = model.decoder
    layers = tuple(Layer(tuple(map(residual, layer.branches))) for layer in decoder.layers)
    vocabulary = _divide("vocabulary", decoder.vocab_size, tp, "vocab_size")
    return replace(model, decoder=replace(decoder, layers=layers, vocab_size=vocabulary))


def _share(part: Part, tp: int) -> Part:
    if isinstance(part, Normed):
        inner = _share(part.part, tp)
        assert not isinstance(inner, Normed)
        return replace(part, part=inner)
    names = DIVIDED.get(type(part))
    if names is None:
        raise ValueError(f"tp {tp}: {type(part).__name__} layers cannot be divided over devices")
    owner = str(getattr(part, "name", ""))
    changed: dict[str, Any] = {name: _divide(owner, getattr(part, name), tp, name) for name in names}
    if isinstance(part, MoE) and part.shared is not None:
        changed["shared"] = _share(part.shared, tp)
    return replace(part, **changed)


def _divide(owner: str, size: int, tp: int, name: str) -> int:
    if size % tp:
        raise ValueError(f"tp {tp} does not divide {name} {size} of {owner}")
    return size // tp
