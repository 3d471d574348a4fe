"""LayerCosts: what one token, one context and one state cost in each kind of layer of a model: elements and operations.

Derived from the blueprint's tensors and specs; no torch. Knows no hardware and no batch. A product counts two
operations per element of its matrix. What layers of one kind cost is added up: they differ in nothing that matters.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from hybrid.models.blueprint.decoder import Decoder, Normed
from hybrid.models.blueprint.experts import MoE
from hybrid.models.blueprint.model import Model, is_target
from hybrid.models.blueprint.parts import Attention, Norm, Shape
from hybrid.models.blueprint.recurrent import RGLRU, GatedDeltaNet, Mamba1, Mamba2
from hybrid.models.blueprint.vision import Vision
from hybrid.models.blueprint.zamba2 import SharedHybrid
from hybrid.pools.specs import LORA_RANK_UNIT, ModelSpec

from .tally import Window

# Operations per element of a recurrent state and token, in the recurrent form: what decays, is added and is read out.
SCAN_OPERATIONS = {Mamba1: 7, Mamba2: 5, GatedDeltaNet: 7, RGLRU: 4}


@dataclass(frozen=True, slots=True)
class ExpertCosts:
    """Routed experts of all layers that have so many, of which a token takes so many. elements: of one, added up."""

    num_experts: int
    top_k: int
    elements: int

    def touched(self, num_tokens: int) -> float:
        """ExpertCosts of a layer that so many tokens choose, expected where all are as likely."""
        return self.num_experts * (1 - (1 - self.top_k / self.num_experts) ** num_tokens)


@dataclass(frozen=True, slots=True)
class AttentionCosts:
    """Attention of all layers with one window. operations: per pair of a token and a token that it sees.

    kept_bytes: of keys and values of one token, as read; written_bytes: as written, less where layers share them.
    """

    window: Window
    operations: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class VisionCosts:
    """The vision tower and its projector, about: every patch meets every matrix, and attention is left out. operations:
    per embedding that a picture becomes."""

    elements: int
    operations: float


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """dense: elements of everything that every token meets: projections, convolutions, norms, shared experts, routers.

    activations: inputs and outputs of these projections and of the experts, elements per token. head: elements of the
    matrix of logits and of the last norm. lora: elements per rank unit that a token meets outside of experts;
    lora_experts: of one expert in each of its layers. num_parts: attentions, MLPs, mixers: what kernels are launched
    for.
    """

    hidden_size: int
    vocab_size: int
    num_parts: int
    dense: int
    activations: int
    head: int
    experts: tuple[ExpertCosts, ...]
    attention: tuple[AttentionCosts, ...]
    scan_operations: int  # per token
    state_bytes: int  # of one request
    lora: int
    lora_experts: tuple[ExpertCosts, ...]
    vision: VisionCosts | None

    @classmethod
    def of(cls, model: Model, spec: ModelSpec, lora_modules: Iterable[str] | None = None) -> "LayerCosts":
        """spec: of the same model, with the dtypes in which it keeps what it keeps."""
        decoder = model.decoder
        parts = list(decoder.plain_parts())
        dense = [shape for part in parts for shape in _own_shapes(part)]
        dense += [shape for norm in _norms(decoder) for shape in norm.tensors().values()]
        if decoder.per_layer is not None:
            table = decoder.per_layer.table
            dense += [shape for name, shape in decoder.per_layer.tensors().items() if name != table]
        experts: Counter[tuple[int, int]] = Counter()
        activations = sum(sum(shape) for shape in dense if len(shape) == 2)
        for part in parts:
            if isinstance(part, MoE):
                shapes = part.lora_targets().values()
                experts[part.num_experts, part.top_k] += sum(prod(shape[1:]) for shape in shapes)
                activations += part.top_k * sum(sum(shape[1:]) for shape in shapes)
        lora, lora_experts = _lora(model, None if lora_modules is None else tuple(lora_modules))
        return cls(
            hidden_size=decoder.hidden_size,
            vocab_size=decoder.vocab_size,
            num_parts=len(parts),
            dense=sum(map(prod, dense)),
            activations=activations,
            head=decoder.vocab_size * decoder.hidden_size + sum(map(prod, decoder.norm.tensors().values())),
            experts=tuple(ExpertCosts(count, top_k, size) for (count, top_k), size in experts.items()),
            attention=_attention(model, spec),
            scan_operations=sum(_scan_operations(part) for part in parts),
            state_bytes=spec.state_bytes_per_slot,
            lora=lora,
            lora_experts=lora_experts,
            vision=None if model.vision is None else _vision(model.vision),
        )

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(seen.window for seen in self.attention)


def _norms(decoder: Decoder) -> Iterator[Norm]:
    """Those around parts; the last one is the head's."""
    for branch in (branch for layer in decoder.layers for branch in layer.branches):
        norms = [branch.pre_norm, branch.post_norm]
        norms += [norm for part in branch.parts if isinstance(part, Normed) for norm in (part.pre_norm, part.post_norm)]
        yield from (norm for norm in norms if norm is not None)


def _own_shapes(part: object) -> list[Shape]:
    """Shapes of what every token meets in this part; shared blocks are met in every layer that uses them."""
    assert hasattr(part, "tensors")
    shapes: dict[str, Shape] = part.tensors()
    if isinstance(part, MoE):
        routed = part.listed | set(part.stacked_names) | {f"{name}_bias" for name in part.stacked_names}
        shapes = {name: shape for name, shape in shapes.items() if name not in routed}
    return list(shapes.values())


def _attention(model: Model, spec: ModelSpec) -> tuple[AttentionCosts, ...]:
    found: dict[Window, list[int]] = {}
    kept = {True: spec.full_bytes_per_token, False: spec.window_bytes_per_token}
    elements = {True: 0, False: 0}  # full or not: elements of keys and values that layers of that kind keep
    layers: list[tuple[Window, int, int, bool]] = []
    for part in model.decoder.plain_parts():
        if isinstance(part, Attention):
            size = 2 * part.num_kv_heads * part.head_dim
            layers.append((part.sliding_window, part.num_heads * part.head_dim, size, part.kv_from is None))
        elif isinstance(part, SharedHybrid):
            block = part.block
            layers.append((None, block.num_heads * block.head_dim, 2 * block.num_kv_heads * block.head_dim, True))
    for window, _, size, keeps in layers:
        elements[window is None] += size if keeps else 0
    for window, queries, size, keeps in layers:
        full = window is None
        each = kept[full] // elements[full]  # bytes of an element: all layers of a kind have one dtype
        sums = found.setdefault(window, [0, 0, 0])
        for index, amount in enumerate((4 * queries, size * each, size * each if keeps else 0)):
            sums[index] += amount
    return tuple(AttentionCosts(window, *sums) for window, sums in found.items())


def _scan_operations(part: object) -> int:
    match part:
        case Mamba1():
            return SCAN_OPERATIONS[Mamba1] * part.inner_size * part.state_size
        case Mamba2():
            return SCAN_OPERATIONS[Mamba2] * part.inner_size * part.state_size
        case GatedDeltaNet():
            return SCAN_OPERATIONS[GatedDeltaNet] * part.num_v_heads * part.k_head_dim * part.v_head_dim
        case RGLRU():
            return SCAN_OPERATIONS[RGLRU] * part.width
        case SharedHybrid():
            return _scan_operations(part.mixer)
        case _:
            return 0


def _lora(model: Model, modules: tuple[str, ...] | None) -> tuple[int, tuple[ExpertCosts, ...]]:
    """Elements per rank unit: in what every token meets, and of one expert. What sees images is left out."""
    routed = {name: part for part in model.decoder.plain_parts() if isinstance(part, MoE) for name in part.lora_names}
    dense, experts = 0, Counter[tuple[int, int]]()
    for name, shape in replace(model, vision=None).lora_targets().items():
        if is_target(name, modules):
            size = LORA_RANK_UNIT * sum(shape[-2:])
            if name in routed:
                experts[routed[name].num_experts, routed[name].top_k] += size
            else:
                dense += size
    return dense, tuple(ExpertCosts(count, top_k, size) for (count, top_k), size in experts.items())


def _vision(vision: Vision) -> VisionCosts:
    """A table of positions tells the patches of a picture; where there is none, four patches become one embedding."""
    positions = [shape for name, shape in vision.tensors.items() if "pos" in name and "embed" in name]
    elements = sum(map(prod, vision.tensors.values())) - sum(map(prod, positions))
    patches = max((shape[-2] for shape in positions if len(shape) > 1), default=4 * vision.tokens.most)
    return VisionCosts(elements, 2 * elements * max(1.0, patches / vision.tokens.most))
