"""Zamba2's hybrid layers as frozen data: a block of attention and MLP that several layers share, and what each of them
adds of its own. Source: Zamba2 (Glorioso et al. 2024), transformers' `modeling_zamba2.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hybrid.pools.specs import FullAttentionSpec, LayerSpec

from .parts import Activation, CacheDtypes, Norm, Shapes, linear
from .recurrent import Mamba2
from .rope import Rope


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank additions of one layer to projections of its shared block, `{name}.0` and `{name}.1` of each.

    Tensors lie under the shared block, numbered by the uses of all blocks.
    """

    attention: tuple[str, str, str] | None  # of queries, keys and values
    mlp: str  # of gate and up side by side
    rank: int


@dataclass(frozen=True, slots=True)
class SharedBlock:
    """mlp(norm(attention(norm(x beside the first layer's input)))): twice hidden_size in, no residuals."""

    name: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope | None
    intermediate_size: int
    activation: Activation
    eps: float
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.name}: {self.num_heads} heads are no multiple of {self.num_kv_heads} kv heads")

    @property
    def attention_norm(self) -> Norm:
        return Norm(f"{self.name}.input_layernorm", 2 * self.hidden_size, self.eps)

    @property
    def mlp_norm(self) -> Norm:
        return Norm(f"{self.name}.pre_ff_layernorm", self.hidden_size, self.eps)

    @property
    def scale(self) -> float:
        """Of the scores: half of a head's size counts, as the input is twice as wide."""
        return float((self.head_dim / 2) ** -0.5)

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        keys = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, keys, keys

    def tensors(self) -> Shapes:
        shapes = self.attention_norm.tensors() | self.mlp_norm.tensors()
        for projection, size in zip("qkv", self.qkv_sizes):
            shapes |= linear(f"{self.name}.self_attn.{projection}_proj", size, 2 * self.hidden_size)
        shapes |= linear(f"{self.name}.self_attn.o_proj", self.hidden_size, self.qkv_sizes[0])
        mlp, inner = f"{self.name}.feed_forward", self.intermediate_size
        shapes |= linear(f"{mlp}.gate_up_proj", 2 * inner, self.hidden_size, self.mlp_bias)
        return shapes | linear(f"{mlp}.down_proj", self.hidden_size, inner, self.mlp_bias)


@dataclass(frozen=True, slots=True)
class SharedHybrid:
    """mixer(norm(x + linear(block(x)))): a whole residual branch. Keys and values are the layer's own."""

    block: SharedBlock
    adapters: Adapters
    linear: str  # a projection [hidden_size, hidden_size]
    norm: Norm
    mixer: Mamba2

    def tensors(self) -> Shapes:
        own = linear(self.linear, self.block.hidden_size, self.block.hidden_size)
        return self.shared() | own | self.norm.tensors() | self.mixer.tensors()

    def shared(self) -> Shapes:
        """Tensors that do not belong to this layer alone, and those that are numbered with them."""
        shapes = self.block.tensors()
        for name, inputs, outputs in self._adapted():
            shapes |= linear(f"{name}.0", self.adapters.rank, inputs) | linear(f"{name}.1", outputs, self.adapters.rank)
        return shapes

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        attention = FullAttentionSpec(self.block.num_kv_heads, self.block.head_dim, dtypes.kv)
        return (attention, *self.mixer.specs(dtypes))

    def _adapted(self) -> Iterator[tuple[str, int, int]]:
        """(name, inputs, outputs) of every adapter."""
        for name, size in zip(self.adapters.attention or (), self.block.qkv_sizes):
            yield name, 2 * self.block.hidden_size, size
        yield self.adapters.mlp, self.block.hidden_size, 2 * self.block.intermediate_size
