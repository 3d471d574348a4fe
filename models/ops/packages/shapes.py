"""RecurrentShapes: the sizes of a model's recurrent layers for which there are kernels of other packages."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from hybrid.pools.specs import MambaSpec

from ...blueprint.decoder import Plain
from ...blueprint.parts import CacheDtypes
from ...blueprint.recurrent import Mamba2
from ...blueprint.zamba2 import SharedHybrid


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A causal convolution."""

    channels: int
    kernel: int

    def __str__(self) -> str:
        return f"{self.channels} channels, kernel {self.kernel}"


@dataclass(frozen=True, slots=True)
class SsdShape:
    """A scan of Mamba-2."""

    heads: int
    channels: int  # per head
    groups: int
    size: int  # of a state, per channel

    def __str__(self) -> str:
        return f"{self.heads} heads of {self.channels}, {self.groups} groups, states of {self.size}"


@dataclass(frozen=True, slots=True)
class RecurrentShapes:
    """Each once."""

    convs: tuple[ConvShape, ...]
    ssds: tuple[SsdShape, ...]
    dtype: torch.dtype  # of inputs, weights and convolutions' states

    @classmethod
    def of(cls, parts: Iterable[Plain], dtype: torch.dtype) -> "RecurrentShapes":
        """Of a decoder with these parts."""
        mixers = [part.mixer if isinstance(part, SharedHybrid) else part for part in parts]
        states = [spec for mixer in mixers for spec in mixer.specs(CacheDtypes()) if isinstance(spec, MambaSpec)]
        convs = [ConvShape(channels, tail + 1) for channels, tail in (spec.conv_shape for spec in states)]
        scans = [mixer for mixer in mixers if isinstance(mixer, Mamba2)]
        ssds = [SsdShape(scan.num_heads, scan.head_dim, scan.n_groups, scan.state_size) for scan in scans]
        return cls(tuple(dict.fromkeys(convs)), tuple(dict.fromkeys(ssds)), dtype)
