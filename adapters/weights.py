"""AdapterWeights: the matrices of one LoRA adapter on the host, as its file has them. Knows no pool and no batch."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LoraMatrices:
    """The change of one module: b @ a; every scale (alpha / r and its variants) is already in b.

    a [r, in], b [out, r]; stacked experts a [E, r, in], b [E, out, r]; an embedding a [r, vocab], b [hidden, r].
    """

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """Modules by the canonical names of `Model.lora_targets`. `rank` is the largest of theirs."""

    rank: int
    modules: Mapping[str, LoraMatrices]
