"""Roofline: the time of a step from operations and bytes of every kind of layer, and the rates of a device.

Knows a model's costs and a device's datasheet; has measured nothing (see `calibrated`). Each kind of work takes the
longer of its operations at the device's rate and its bytes at the device's bandwidth; kinds follow one another.
"""

from dataclasses import dataclass, field

from hybrid.pools.specs import ModelSpec, dtype_bytes

from ..hardware import CPU
from ..question import Question
from .layer_costs import ExpertCosts, LayerCosts
from .step_time import EXACT
from .step_work import StepWork
from .tally import Tally

LOGIT_BYTES = 8  # per logit: written and read in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What no datasheet says.

    compute_share, bandwidth_share: of the stated rates that kernels reach. step_seconds: of planning, sampling and
    handing out. part_seconds: launching the kernels of one attention, MLP or mixer; a captured graph needs less.
    host_bandwidth: bytes per second from the host, for adapters that are loaded. link_bandwidth, link_seconds: between
    devices that share a model, and what one exchange takes at least; the default is PCI Express 5.0 with 16 lanes.
    """

    compute_share: float = 0.7
    bandwidth_share: float = 0.8
    step_seconds: float = 1e-3
    part_seconds: float = 2e-5
    host_bandwidth: float = 2.5e10
    link_bandwidth: float = 6.4e10
    link_seconds: float = 2e-5

    def __post_init__(self) -> None:
        for name in ("compute_share", "bandwidth_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")
        for name in ("host_bandwidth", "link_bandwidth"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a positive number per second, got {getattr(self, name)}")
        for name in ("step_seconds", "part_seconds", "link_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number of seconds, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Load:
    """Operations and bytes of one kind of work."""

    kind: str
    operations: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """A StepTime. costs and spec: of what each of `tp` devices holds."""

    costs: LayerCosts
    spec: ModelSpec
    weight_bytes: int  # per element of a weight
    computed_bytes: int  # per element of an activation, and of an adapter
    operations_per_second: float
    bytes_per_second: float
    block_size: int = 16
    tp: int = 1
    assumptions: Assumptions = field(default_factory=Assumptions)
    variation = EXACT

    @classmethod
    def of(cls, question: Question, assumptions: Assumptions | None = None) -> "Roofline":
        """For the model, the device and the dtypes that a question names. Raises ValueError for a rate that nobody
        stated."""
        if question.hardware is None:
            raise ValueError("step times need a gpu whose rates count: give --gpu, beside --memory if you like")
        hardware, weights_dtype, computed_dtype = question.hardware, question.dtype, question.computed_dtype
        spec = question.spec()
        assumed = Assumptions() if assumptions is None else assumptions
        rate = hardware.flops.get(weights_dtype, hardware.flops.get(computed_dtype))
        advice = "give --flops and --bandwidth" + (", or calibrate" if hardware.name == CPU else "")
        if rate is None:
            raise ValueError(f"no rate of {hardware.name} in {computed_dtype} is known; {advice}")
        if hardware.bandwidth is None:
            raise ValueError(f"the bandwidth of {hardware.name} is not known; {advice}")
        return cls(
            costs=LayerCosts.of(question.share(), spec, question.lora_target_modules),
            spec=spec,
            weight_bytes=dtype_bytes(weights_dtype),
            computed_bytes=dtype_bytes(computed_dtype),
            operations_per_second=rate * assumed.compute_share,
            bytes_per_second=hardware.bandwidth * assumed.bandwidth_share,
            block_size=question.block_size,
            tp=question.tp,
            assumptions=assumed,
        )

    def seconds(self, work: StepWork) -> float:
        """See StepTime."""
        assumed = self.assumptions
        tally = Tally.of(work, self.costs.windows)
        rate, bandwidth = self.operations_per_second, self.bytes_per_second
        total = assumed.step_seconds + self.costs.num_parts * assumed.part_seconds
        for load in self.loads(work, tally):
            total += max(load.operations / rate, load.bytes / bandwidth)
        if work.loaded_units:
            total += work.loaded_units * self._unit_bytes() / assumed.host_bandwidth
        if self.tp > 1:
            exchanged = 2 * (self.tp - 1) / self.tp * tally.num_tokens * self.costs.hidden_size * self.computed_bytes
            total += self.costs.num_parts * (assumed.link_seconds + exchanged / assumed.link_bandwidth)
        return total

    def loads(self, work: StepWork, tally: Tally | None = None) -> list[Load]:
        """What the step is made of, on each device."""
        costs = self.costs
        tally = Tally.of(work, costs.windows) if tally is None else tally
        tokens, weight, computed = tally.num_tokens, self.weight_bytes, self.computed_bytes
        loads = []
        if tokens:
            loads.append(
                Load("dense", 2 * costs.dense * tokens, costs.dense * weight + costs.activations * tokens * computed)
            )
        for experts in costs.experts:
            touched = experts.touched(tokens) * experts.elements * weight
            loads.append(Load("experts", 2 * experts.top_k * experts.elements * tokens, touched))
        for index, seen in enumerate(costs.attention):
            keys, pairs = tally.decode_keys[index], tally.chunk_pairs[index]
            if keys:
                written = tally.num_decodes * seen.written_bytes
                loads.append(Load("decodes", seen.operations * keys, seen.read_bytes * keys + written))
            if pairs:
                read = tally.chunk_keys[index] * seen.read_bytes + tally.chunk_tokens * seen.written_bytes
                loads.append(Load("chunks", seen.operations * pairs, read))
        if costs.state_bytes:
            moved = (2 * (tally.num_decodes + tally.num_chunks) + work.snapshots) * costs.state_bytes
            loads.append(Load("scans", costs.scan_operations * tokens, moved))
        if work.num_sampled:
            logits = costs.vocab_size * LOGIT_BYTES * work.num_sampled
            loads.append(Load("logits", 2 * costs.head * work.num_sampled, costs.head * weight + logits))
        if work.image_tokens and costs.vision is not None:
            embeddings = sum(work.image_tokens)
            loads.append(Load("images", costs.vision.operations * embeddings, costs.vision.elements * weight))
        loads += [self._adapted(adapted.num_tokens, adapted.units) for adapted in work.adapted]
        copied = self._copied(work)
        if copied:
            loads.append(Load("copies", 0, copied))
        return loads

    def _adapted(self, num_tokens: int, units: int) -> Load:
        """Low-rank products of one adapter: of experts, those that its tokens meet."""
        operations, elements = 2 * self.costs.lora * num_tokens, float(self.costs.lora)
        for experts in self.costs.lora_experts:
            operations += 2 * experts.top_k * experts.elements * num_tokens
            elements += experts.touched(num_tokens) * experts.elements
        return Load("adapters", operations * units, elements * units * self.computed_bytes)

    def _unit_bytes(self) -> int:
        def held(experts: ExpertCosts) -> int:
            return experts.num_experts * experts.elements

        return (self.costs.lora + sum(map(held, self.costs.lora_experts))) * self.computed_bytes

    def _copied(self, work: StepWork) -> int:
        """Bytes read and written."""
        if not (work.full_copies or work.window_copies or work.state_copies):
            return 0
        blocks = (
            work.full_copies * self.spec.full_bytes_per_token + work.window_copies * self.spec.window_bytes_per_token
        )
        return 2 * (blocks * self.block_size + work.state_copies * self.costs.state_bytes)
