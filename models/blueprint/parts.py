"""Parts: norms, attention and MLPs of a decoder layer, as frozen data. Others: `recurrent`, `experts`.

Every part names its tensors with their shapes ([out, in] for projections, as in the checkpoint) and says what it keeps
per request. Fields that scale something (`*_multiplier`) are 1 where the architecture has no such thing.
"""

from dataclasses import dataclass
from typing import Literal

from hybrid.pools.specs import FullAttentionSpec, LayerSpec, SlidingWindowSpec

from .rope import Rope

Shape = tuple[int, ...]
Shapes = dict[str, Shape]  # tensor name -> shape
Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]
# How configurations spell them (`hidden_act` and the like).
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
}


def linear(name: str, outputs: int, inputs: int, bias: bool = False) -> Shapes:
    """The tensors of a projection."""
    shapes: Shapes = {f"{name}.weight": (outputs, inputs)}
    if bias:
        shapes[f"{name}.bias"] = (outputs,)
    return shapes


@dataclass(frozen=True, slots=True)
class CacheDtypes:
    """Dtypes of what is kept per request: keys, values and convolution tails; recurrent states."""

    kv: str = "float32"
    state: str = "float32"


@dataclass(frozen=True, slots=True)
class Norm:
    """x / rms(x) * (offset + weight), or LayerNorm; over the last dimension, or over groups of it."""

    name: str  # tensors `{name}.weight` and `{name}.bias`
    size: int
    eps: float
    kind: Literal["rms", "layer"] = "rms"
    weight: bool = True
    bias: bool = False
    offset: float = 0.0  # added to the weight: 1 in Gemma and Qwen3-Next
    groups: int = 1  # the mean square is taken over each group by itself

    def tensors(self) -> Shapes:
        shapes: Shapes = {f"{self.name}.weight": (self.size,)} if self.weight else {}
        if self.bias:
            shapes[f"{self.name}.bias"] = (self.size,)
        return shapes


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention, full or over a sliding window.

    Where `kv_from` names another attention of the decoder, before this one, its keys and values are read: this one has
    none, and keeps nothing.
    """

    name: str  # prefix of its tensors
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope | None
    sliding_window: int | None = None
    scale: float | None = None  # None: head_dim ** -0.5
    qkv_bias: bool = False
    out_bias: bool = False
    q_norm: Norm | None = None  # before rope; per head where its size is head_dim, else over all heads together
    k_norm: Norm | None = None
    v_norm: Norm | None = None  # per head
    values_are_keys: bool = False  # no v_proj: values are the keys before norm and rope
    kv_from: str | None = None
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    sinks: bool = False  # one more logit per head in the softmax, without a value
    output_gate: bool = False  # q_proj gives a gate beside each head's query: sigmoid(gate) * attended
    key_multiplier: float = 1.0
    in_multiplier: float = 1.0
    out_multiplier: float = 1.0
    projections: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj")

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.name}: {self.num_heads} heads are no multiple of {self.num_kv_heads} kv heads")

    def tensors(self) -> Shapes:
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        q, k, v, o = (f"{self.name}.{projection}" for projection in self.projections)
        shapes = linear(q, queries * (2 if self.output_gate else 1), self.hidden_size, self.qkv_bias)
        if self.kv_from is None:
            shapes |= linear(k, keys, self.hidden_size, self.qkv_bias)
            if not self.values_are_keys:
                shapes |= linear(v, keys, self.hidden_size, self.qkv_bias)
        shapes |= linear(o, self.hidden_size, queries, self.out_bias)
        for norm in (self.q_norm, self.k_norm, self.v_norm):
            if norm is not None:
                shapes |= norm.tensors()
        if self.sinks:
            shapes[f"{self.name}.sinks"] = (self.num_heads,)
        return shapes

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        if self.kv_from is not None:
            return ()
        if self.sliding_window is None:
            return (FullAttentionSpec(self.num_kv_heads, self.head_dim, dtypes.kv),)
        return (SlidingWindowSpec(self.num_kv_heads, self.head_dim, self.sliding_window, dtypes.kv),)


@dataclass(frozen=True, slots=True)
class MLP:
    """down(act(gate(x)) * up(x)) where there is a gate, else down(act(up(x)))."""

    name: str
    hidden_size: int
    intermediate_size: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    gate_multiplier: float = 1.0  # inside the activation
    down_multiplier: float = 1.0
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    fused: str | None = None  # one tensor [2 * intermediate, hidden], gate first, instead of gate and up

    def tensors(self) -> Shapes:
        gate, up, down = (f"{self.name}.{projection}" for projection in self.projections)
        shapes = linear(down, self.hidden_size, self.intermediate_size, self.bias)
        if self.fused is not None:
            return shapes | linear(f"{self.name}.{self.fused}", 2 * self.intermediate_size, self.hidden_size, self.bias)
        if self.gated:
            shapes |= linear(gate, self.intermediate_size, self.hidden_size, self.bias)
        return shapes | linear(up, self.intermediate_size, self.hidden_size, self.bias)

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        del dtypes
        return ()
