"""Decoder: a whole decoder as a blueprint: embeddings, layers of residual branches, final norm, head.

What follows from it by arithmetic alone: every tensor with its shape, what every layer keeps per request.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hybrid.pools.specs import LayerSpec

from .experts import MoE
from .parts import MLP, Attention, CacheDtypes, Norm, Shapes
from .per_layer import PerLayerEmbedding, PerLayerInput
from .recurrent import RGLRU, GatedDeltaNet, Mamba1, Mamba2, ShortConv
from .zamba2 import SharedHybrid

Plain = Attention | Mamba1 | Mamba2 | GatedDeltaNet | ShortConv | RGLRU | MLP | MoE | PerLayerInput | SharedHybrid


@dataclass(frozen=True, slots=True)
class Normed:
    """post_norm(part(pre_norm(x))): a part whose norms are its own, not its branch's."""

    pre_norm: Norm | None
    part: Plain
    post_norm: Norm | None = None

    def tensors(self) -> Shapes:
        norms = [norm.tensors() for norm in (self.pre_norm, self.post_norm) if norm is not None]
        return self.part.tensors() | {name: shape for shapes in norms for name, shape in shapes.items()}

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        return self.part.specs(dtypes)


Part = Plain | Normed


@dataclass(frozen=True, slots=True)
class Residual:
    """(x + multiplier * post_norm(sum of parts(pre_norm(x)))) * scale."""

    pre_norm: Norm | None
    parts: tuple[Part, ...]
    post_norm: Norm | None = None
    multiplier: float = 1.0
    scale: str | None = None  # tensor [1]


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: residual branches, one after the other."""

    branches: tuple[Residual, ...]

    def parts(self) -> Iterator[Part]:
        for branch in self.branches:
            yield from branch.parts


@dataclass(frozen=True, slots=True)
class Decoder:
    """Everything between token ids and logits."""

    vocab_size: int
    hidden_size: int
    max_positions: int
    layers: tuple[Layer, ...]
    embedding: str  # tensor [vocab_size, hidden_size]
    norm: Norm
    head: str | None  # tensor [vocab_size, hidden_size]; None: tied to the embedding
    tied_head: str | None = None  # a head that a checkpoint may hold though it is tied; counts where it is no copy
    embedding_multiplier: float = 1.0
    embedding_multiplier_rounded: bool = False  # to the dtype of the weights, as in Gemma
    logits_multiplier: float = 1.0
    logits_softcap: float | None = None
    per_layer: PerLayerEmbedding | None = None
    residual_float32: bool = False  # what the branches add up to is float32, whatever the dtype of the weights
    # Levels of an image's embedding beside the one that takes the token's place: level i is added to what layer i gives
    # (DeepStack, Meng et al. 2024).
    deepstack: int = 0

    @property
    def image_embedding_size(self) -> int:
        """Elements of one image token's embedding, its levels side by side."""
        return self.hidden_size * (1 + self.deepstack)

    def with_parts(self, change: Callable[[Part], Part]) -> "Decoder":
        """The same decoder with every part changed."""
        layers = tuple(
            replace(layer, branches=tuple(replace(b, parts=tuple(map(change, b.parts))) for b in layer.branches))
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def tensors(self) -> Shapes:
        """Name -> shape of everything that the checkpoint must hold for the decoder."""
        shapes: Shapes = {self.embedding: (self.vocab_size, self.hidden_size)} | self.norm.tensors()
        if self.head is not None:
            shapes[self.head] = (self.vocab_size, self.hidden_size)
        if self.per_layer is not None:
            shapes |= self.per_layer.tensors()
        for layer in self.layers:
            for branch in layer.branches:
                for norm in (branch.pre_norm, branch.post_norm):
                    if norm is not None:
                        shapes |= norm.tensors()
                if branch.scale is not None:
                    shapes[branch.scale] = (1,)
                for part in branch.parts:
                    shapes |= part.tensors()
        return shapes

    def plain_parts(self) -> Iterator[Plain]:
        """Every part, without the norms around it."""
        for part in (part for layer in self.layers for part in layer.parts()):
            yield part.part if isinstance(part, Normed) else part

    def layer_specs(self, dtypes: CacheDtypes) -> tuple[tuple[LayerSpec, ...], ...]:
        """What each layer keeps per request, in the order in which its parts come."""
        return tuple(tuple(spec for part in layer.parts() for spec in part.specs(dtypes)) for layer in self.layers)
