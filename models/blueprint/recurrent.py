"""Recurrent parts of a decoder layer, as frozen data: Mamba-1, Mamba-2, gated delta net, short convolution, RG-LRU.

Each keeps one state per request: the last kernel - 1 inputs of a causal convolution, and (most of them) a matrix.
"""

from dataclasses import dataclass, replace
from typing import Literal

from hybrid.pools.specs import LayerSpec, MambaSpec

from .parts import Activation, CacheDtypes, Norm, Shapes, linear


def _state(channels: int, kernel: int, shape: tuple[int, ...], dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
    return (MambaSpec((channels, kernel - 1), shape, dtypes.kv, dtypes.state),)


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Selective scan with one decay per channel and state (Gu and Dao 2023)."""

    name: str
    hidden_size: int
    inner_size: int
    state_size: int
    dt_rank: int
    conv_kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    dt_norm: Norm | None = None  # of the three outputs of x_proj
    b_norm: Norm | None = None
    c_norm: Norm | None = None

    def tensors(self) -> Shapes:
        inner, at = self.inner_size, self.name
        shapes = linear(f"{at}.in_proj", 2 * inner, self.hidden_size, self.proj_bias)
        shapes |= {f"{at}.conv1d.weight": (inner, 1, self.conv_kernel)}
        if self.conv_bias:
            shapes[f"{at}.conv1d.bias"] = (inner,)
        shapes |= linear(f"{at}.x_proj", self.dt_rank + 2 * self.state_size, inner)
        shapes |= linear(f"{at}.dt_proj", inner, self.dt_rank, bias=True)
        shapes |= {f"{at}.A_log": (inner, self.state_size), f"{at}.D": (inner,)}
        for norm in (self.dt_norm, self.b_norm, self.c_norm):
            if norm is not None:
                shapes |= norm.tensors()
        return shapes | linear(f"{at}.out_proj", self.hidden_size, inner, self.proj_bias)

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        return _state(self.inner_size, self.conv_kernel, (self.state_size, self.inner_size), dtypes)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """State space duality with one decay per head (Dao and Gu 2024). in_proj gives z, x, b, c and dt."""

    name: str
    hidden_size: int
    num_heads: int
    head_dim: int
    state_size: int
    n_groups: int
    conv_kernel: int
    norm: Norm | None  # of the gated output; None: the gate alone
    norm_before_gate: bool = False
    conv_bias: bool = True
    proj_bias: bool = False
    out_bias: bool | None = None  # of out_proj; None: as proj_bias
    dt_limit: tuple[float, float] = (0.0, float("inf"))  # dt is clamped to it
    in_multiplier: float = 1.0
    out_multiplier: float = 1.0
    multipliers: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)  # of z, x, b, c, dt

    def __post_init__(self) -> None:
        if self.num_heads % self.n_groups:
            raise ValueError(f"{self.name}: {self.num_heads} heads are no multiple of {self.n_groups} groups")

    @property
    def biased_out(self) -> bool:
        return self.proj_bias if self.out_bias is None else self.out_bias

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """x, b and c side by side."""
        return self.inner_size + 2 * self.n_groups * self.state_size

    def tensors(self) -> Shapes:
        at, channels = self.name, self.conv_channels
        outputs = self.inner_size + channels + self.num_heads
        shapes = linear(f"{at}.in_proj", outputs, self.hidden_size, self.proj_bias)
        shapes |= {f"{at}.conv1d.weight": (channels, 1, self.conv_kernel)}
        if self.conv_bias:
            shapes[f"{at}.conv1d.bias"] = (channels,)
        shapes |= {f"{at}.{name}": (self.num_heads,) for name in ("dt_bias", "A_log", "D")}
        if self.norm is not None:
            shapes |= self.norm.tensors()
        return shapes | linear(f"{at}.out_proj", self.hidden_size, self.inner_size, self.biased_out)

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        return _state(self.conv_channels, self.conv_kernel, (self.num_heads, self.head_dim, self.state_size), dtypes)


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Gated delta rule (Yang et al. 2024): the state forgets, and what a key held is replaced by its new value.

    layout: how the checkpoint stores the projections. "fused": in_proj_qkvz and in_proj_ba, interleaved by key head
    (Qwen3-Next); "split": in_proj_qkv, in_proj_z, in_proj_b, in_proj_a (Qwen3.5); "separate": q, k, v, g, b and a
    projections and three convolutions (OLMo hybrid).
    """

    name: str
    hidden_size: int
    num_k_heads: int
    num_v_heads: int
    k_head_dim: int
    v_head_dim: int
    conv_kernel: int
    norm: Norm  # per value head, of the output before its gate
    layout: Literal["fused", "split", "separate"]
    negative_eigenvalues: bool = False  # beta up to 2
    # separate: channels of the three stored convolutions, together those of q, k and v; None: they are those of q, k, v
    stored_channels: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        if self.num_v_heads % self.num_k_heads:
            raise ValueError(f"{self.name}: {self.num_v_heads} value heads are no multiple of {self.num_k_heads}")

    @property
    def key_size(self) -> int:
        return self.num_k_heads * self.k_head_dim

    @property
    def value_size(self) -> int:
        return self.num_v_heads * self.v_head_dim

    @property
    def conv_channels(self) -> int:
        """q, k and v side by side."""
        return 2 * self.key_size + self.value_size

    @property
    def separate_convs(self) -> tuple[str, str, str]:
        """Tensors of the separate layout."""
        return f"{self.name}.q_conv1d.weight", f"{self.name}.k_conv1d.weight", f"{self.name}.v_conv1d.weight"

    def as_stored(self, shapes: Shapes) -> "GatedDeltaNet":
        """transformers keeps one convolution and saves it in thirds, whatever the sizes of q, k and v."""
        q, k, v = (shapes.get(name, (0,))[0] for name in self.separate_convs)
        return replace(self, stored_channels=(q, k, v)) if q + k + v == self.conv_channels else self

    def tensors(self) -> Shapes:
        at, hidden, heads = self.name, self.hidden_size, self.num_v_heads
        keys, values = self.key_size, self.value_size
        if self.layout == "fused":
            shapes = linear(f"{at}.in_proj_qkvz", 2 * keys + 2 * values, hidden)
            shapes |= linear(f"{at}.in_proj_ba", 2 * heads, hidden)
        elif self.layout == "split":
            shapes = linear(f"{at}.in_proj_qkv", 2 * keys + values, hidden) | linear(f"{at}.in_proj_z", values, hidden)
            shapes |= linear(f"{at}.in_proj_b", heads, hidden) | linear(f"{at}.in_proj_a", heads, hidden)
        else:
            shapes = linear(f"{at}.q_proj", keys, hidden) | linear(f"{at}.k_proj", keys, hidden)
            shapes |= linear(f"{at}.v_proj", values, hidden) | linear(f"{at}.g_proj", values, hidden)
            shapes |= linear(f"{at}.b_proj", heads, hidden) | linear(f"{at}.a_proj", heads, hidden)
        if self.layout == "separate":
            for name, channels in zip(self.separate_convs, self.stored_channels or (keys, keys, values)):
                shapes[name] = (channels, 1, self.conv_kernel)
        else:
            shapes[f"{at}.conv1d.weight"] = (self.conv_channels, 1, self.conv_kernel)
        shapes |= {f"{at}.dt_bias": (heads,), f"{at}.A_log": (heads,)} | self.norm.tensors()
        return shapes | linear(f"{at}.{'o_proj' if self.layout == 'separate' else 'out_proj'}", hidden, values)

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        return _state(
            self.conv_channels, self.conv_kernel, (self.num_v_heads, self.k_head_dim, self.v_head_dim), dtypes
        )


@dataclass(frozen=True, slots=True)
class ShortConv:
    """LFM2's gated short convolution: in_proj gives b, c and x; out_proj(c * conv(b * x))."""

    name: str
    hidden_size: int
    conv_kernel: int
    bias: bool = False

    def tensors(self) -> Shapes:
        at, size = self.name, self.hidden_size
        shapes = linear(f"{at}.in_proj", 3 * size, size, self.bias) | linear(f"{at}.out_proj", size, size, self.bias)
        shapes[f"{at}.conv.weight"] = (size, 1, self.conv_kernel)
        if self.bias:
            shapes[f"{at}.conv.bias"] = (size,)
        return shapes

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        return _state(self.hidden_size, self.conv_kernel, (), dtypes)


@dataclass(frozen=True, slots=True)
class RGLRU:
    """The recurrent block of Griffin (De et al. 2024): a gated branch beside a convolution and a gated linear
    recurrence with a diagonal decay."""

    name: str
    hidden_size: int
    width: int
    num_heads: int  # blocks of the block-diagonal gates
    conv_kernel: int
    activation: Activation  # of the branch beside the recurrence

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise ValueError(f"{self.name}: width {self.width} is no multiple of {self.num_heads} heads")

    def tensors(self) -> Shapes:
        at, width, block = self.name, self.width, self.width // self.num_heads
        shapes = linear(f"{at}.linear_y", width, self.hidden_size, True)
        shapes |= linear(f"{at}.linear_x", width, self.hidden_size, True)
        shapes |= linear(f"{at}.linear_out", self.hidden_size, width, True)
        shapes |= {f"{at}.conv_1d.weight": (width, 1, self.conv_kernel), f"{at}.conv_1d.bias": (width,)}
        shapes[f"{at}.rg_lru.recurrent_param"] = (width,)
        for gate in ("input_gate", "recurrent_gate"):
            shapes[f"{at}.rg_lru.{gate}_weight"] = (self.num_heads, block, block)
            shapes[f"{at}.rg_lru.{gate}_bias"] = (self.num_heads, block)
        return shapes

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        return _state(self.width, self.conv_kernel, (self.width,), dtypes)
