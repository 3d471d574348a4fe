"""Per-layer inputs (Gemma 4's small models, as in Gemma 3n): every layer gets a small vector per token of its own."""

from dataclasses import dataclass

from hybrid.pools.specs import LayerSpec

from .parts import Activation, CacheDtypes, Norm, Shapes, linear


@dataclass(frozen=True, slots=True)
class PerLayerEmbedding:
    """All layers' vectors: (norm(projection(e) * hidden_size ** -0.5) + table[token] * size ** 0.5) / 2 ** 0.5.

    e is the token's embedding as the first layer reads it; projection and table give all layers side by side, and the
    norm is over each layer's vector.
    """

    table: str  # tensor [vocab_size, num_layers * size]
    projection: str  # tensor `{projection}.weight` [num_layers * size, hidden_size]
    norm: Norm
    vocab_size: int
    hidden_size: int
    num_layers: int
    size: int

    def tensors(self) -> Shapes:
        width = self.num_layers * self.size
        shapes: Shapes = {self.table: (self.vocab_size, width)}
        return shapes | linear(self.projection, width, self.hidden_size) | self.norm.tensors()


@dataclass(frozen=True, slots=True)
class PerLayerInput:
    """down(act(gate(x)) * the layer's vector)."""

    gate: str  # tensor `{gate}.weight` [size, hidden_size]
    down: str  # tensor `{down}.weight` [hidden_size, size]
    hidden_size: int
    size: int
    layer: int
    activation: Activation

    def tensors(self) -> Shapes:
        return linear(self.gate, self.size, self.hidden_size) | linear(self.down, self.hidden_size, self.size)

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        del dtypes
        return ()
