"""Decoder: any decoder that a blueprint describes, for serving, over a mixed batch of prefill chunks and decodes.

Built from a blueprint and named tensors; computes hidden states and logits. Knows no requests, plans or families.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .blueprint import decoder as blueprint
from .blueprint import experts, parts, per_layer, recurrent, zamba2
from .blueprint.model import Model
from .blueprint.parts import CacheDtypes
from .context import Context
from .layers.attention import Attention
from .layers.delta_net import GatedDeltaNet
from .layers.linear import Linear
from .layers.mamba1 import Mamba1
from .layers.mamba2 import Mamba2
from .layers.mlp import MLP
from .layers.moe import MoE
from .layers.norm import Norm
from .layers.per_layer import PerLayerEmbedding, PerLayerInput
from .layers.residual import Residual
from .layers.rglru import RGLRU
from .layers.short_conv import ShortConv
from .layers.step import Step
from .layers.zamba2 import SharedBlock, SharedHybrid
from .ops.decode_lora import Lora
from .ops.dispatch import select_ops
from .ops.lora import LoraBatch
from .ops.packages.shapes import RecurrentShapes
from .weights import Weights

Layer = Callable[[torch.Tensor, Step], torch.Tensor]
Blocks = dict[zamba2.SharedBlock, SharedBlock]  # what several layers share, built once


@dataclass(frozen=True, slots=True)
class Normed:
    """See `blueprint.decoder.Normed`."""

    pre_norm: Norm | None
    layer: Layer
    post_norm: Norm | None

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        out = self.layer(x if self.pre_norm is None else self.pre_norm(x), step)
        return out if self.post_norm is None else self.post_norm(out)


@dataclass(frozen=True, slots=True)
class Branch:
    """See `blueprint.decoder.Residual`."""

    pre_norm: Norm | None
    layers: tuple[Layer, ...]
    post_norm: Norm | None
    multiplier: float
    scale: torch.Tensor | None
    dtype: torch.dtype  # of what the layers read

    def __call__(self, stream: Residual, step: Step) -> None:
        """Mutates the stream."""
        normed = stream.normed(self.pre_norm).to(self.dtype)
        first, *others = self.layers
        added = first(normed, step)
        for layer in others:
            added = added + layer(normed, step)
        if self.post_norm is not None:
            added = self.post_norm(added)
        stream.add(added, self.multiplier)
        if self.scale is not None:
            stream.scale(self.scale)


class Decoder:
    """`forward` reads and writes the caches that its context brings: one per entry of `spec`, in layer order.

    The dtype of weights, keys and values is that of `weights`; scans, norms and logits are float32.
    can_capture: a CUDA graph may hold `forward` of a DecodeContext. uses_mrope: ropes know three positions per token.
    """

    def __init__(self, model: Model, weights: Weights) -> None:
        design = model.decoder
        self._design = design
        self.image_token_id = None if model.vision is None else model.vision.image_token_id
        self.bidirectional_images = model.vision is not None and model.vision.bidirectional
        self.spec = model.spec(str(weights.dtype).removeprefix("torch."))
        self._ops = select_ops(weights.device, RecurrentShapes.of(design.plain_parts(), weights.dtype))
        self.dtype = weights.dtype
        self._norm = Norm(design.norm, weights)
        # A tied table is kept twice where projections are packed: once to look rows up, once as the head.
        self._embedding = weights(design.embedding)
        self._embedding_factor = design.embedding_multiplier
        if design.embedding_multiplier_rounded:
            self._embedding_factor = torch.tensor(self._embedding_factor, dtype=self._embedding.dtype).item()
        size = self._embedding.shape
        self._table_site = weights.site(design.embedding.removesuffix(".weight"), *size, table=True)
        head = design.head or design.tied_head
        self._head = Linear(
            (self._embedding if design.head is None else weights(design.head),),
            sites=() if head is None else (weights.site(head.removesuffix(".weight"), size[1], size[0]),),
        )
        self._per_layer = None if design.per_layer is None else PerLayerEmbedding(design.per_layer, weights)
        index = 0
        indices: dict[str, int] = {}  # of the caches of attentions, by name
        layers = []
        blocks: Blocks = {}
        for layer in design.layers:
            branches = []
            for branch in layer.branches:
                built = []
                for part in branch.parts:
                    built.append(_build(part, weights, index, indices, blocks))
                    index += len(part.specs(CacheDtypes()))
                norms = (branch.pre_norm, branch.post_norm)
                pre, post = (None if norm is None else Norm(norm, weights) for norm in norms)
                scale = None if branch.scale is None else weights(branch.scale)
                branches.append(Branch(pre, tuple(built), post, branch.multiplier, scale, self.dtype))
            layers.append(tuple(branches))
        self._layers = tuple(layers)
        self.lora_sites = weights.sites
        self.can_capture = self._ops.captures
        self.uses_mrope = any(
            isinstance(part, parts.Attention) and part.rope is not None and part.rope.axes is not None
            for part in design.plain_parts()
        )

    @property
    def max_positions(self) -> int:
        return self._design.max_positions

    @property
    def vocab_size(self) -> int:
        return self._design.vocab_size

    def forward(self, context: Context) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size] after the last layer, before the final norm.

        Mutates the caches in `context`: keys and values of every token, and the state of every row.
        """
        x, images = self._embed(context.token_ids, context.lora), context.images
        levels: list[torch.Tensor] = []
        if images is not None:
            first, *levels = images.embeddings.to(x.dtype).split(self._design.hidden_size, dim=1)
            assert len(levels) == self._design.deepstack, f"image embeddings of {1 + len(levels)} levels"
            x[images.indices] = first
        step = Step(
            context,
            self._ops,
            x,
            None if self._per_layer is None else self._per_layer(context.token_ids, x, context.lora),
        )
        stream = Residual(x.float() if self._design.residual_float32 else x)
        for index, branches in enumerate(self._layers):
            for branch in branches:
                branch(stream, step)
            if images is not None and index < len(levels):
                stream.add_rows(images.indices, levels[index])
        return stream.value()

    def compute_logits(self, hidden: torch.Tensor, lora: LoraBatch | None = None) -> torch.Tensor:
        """[n, hidden_size] as `forward` gives it, and what adapters do to these n rows -> [n, vocab_size] float32."""
        logits = self._head(self._norm(hidden).to(self.dtype), lora).float()
        if self._design.logits_multiplier != 1.0:
            logits *= self._design.logits_multiplier
        if self._design.logits_softcap is not None:
            logits = torch.tanh(logits / self._design.logits_softcap) * self._design.logits_softcap
        return logits

    def _embed(self, token_ids: torch.Tensor, lora: Lora | None) -> torch.Tensor:
        x = self._embedding.index_select(0, token_ids)
        if lora is not None:
            lora.add_rows(self._table_site, token_ids, x)
        return x if self._embedding_factor == 1.0 else x * self._embedding_factor


def _build(part: blueprint.Part, weights: Weights, cache_index: int, indices: dict[str, int], blocks: Blocks) -> Layer:
    """The layer of a part; its caches are those from `cache_index` on.

    Mutates `indices`, of attentions by name, and `blocks`: a new shared one is added.
    """
    match part:
        case blueprint.Normed():
            pre, post = (None if norm is None else Norm(norm, weights) for norm in (part.pre_norm, part.post_norm))
            return Normed(pre, _build(part.part, weights, cache_index, indices, blocks), post)
        case parts.Attention():
            indices[part.name] = cache_index if part.kv_from is None else indices[part.kv_from]
            return Attention(part, weights, indices[part.name])
        case per_layer.PerLayerInput():
            return PerLayerInput(part, weights)
        case parts.MLP():
            return MLP(part, weights)
        case experts.MoE():
            return MoE(part, weights)
        case recurrent.Mamba1():
            return Mamba1(part, weights, cache_index)
        case recurrent.Mamba2():
            return Mamba2(part, weights, cache_index)
        case recurrent.RGLRU():
            return RGLRU(part, weights, cache_index)
        case recurrent.GatedDeltaNet():
            return GatedDeltaNet(part, weights, cache_index)
        case recurrent.ShortConv():
            return ShortConv(part, weights, cache_index)
        case zamba2.SharedHybrid():
            if part.block not in blocks:
                blocks[part.block] = SharedBlock(part.block, weights)
            return SharedHybrid(part, blocks[part.block], weights, cache_index)
        case _:
            raise NotImplementedError(type(part).__name__)
