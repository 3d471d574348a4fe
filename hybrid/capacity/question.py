"""Question: what a user asks the planner: a model, memory, the shape of the requests. Checked, and resolved to specs.

Knows sizes of weights and of one device's share; not how pools are split.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hybrid.engine_args import DTYPES, EngineArgs
from hybrid.engine_memory import gpu_pool_memory, usable_gpu_memory
from hybrid.lora import lora_targets
from hybrid.models.blueprint.model import Model
from hybrid.models.blueprint.vision import ImageCost
from hybrid.pools.specs import FullAttentionSpec, LayerSpec, ModelSpec, SlidingWindowSpec, dtype_bytes
from hybrid.scheduler.config import SchedulerConfig

from .hardware import CPU, Hardware
from .model_file import weight_bytes
from .sizing.working_memory import WorkingMemory, working_memory
from .tensor_parallel import share_of
from .traffic import Traffic


class NothingFitsError(ValueError):
    """Not even one request fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Raises ValueError for what can never be right.

    quant_method: of the checkpoint's weights, see `model_file`.
    memory_bytes: of all pools together, on each device; None: what `hardware` leaves beside weights and steps.
    gpu_memory_utilization: see EngineArgs.
    context, output, shared_prefix: tokens of a prompt's text, of an answer, and of the beginning that all prompts
    share. images: of a prompt; their tokens and marks come on top of `context`. traffic: requests of many lengths;
    context and output are then those of the longest prompt and answer. image_size: pixels, width and height; None: of
    an image that takes most.
    adapters, rank: LoRA adapters on the device at once. tp: devices that share one model.
    weights_dtype "auto": the configuration's. kv_dtype None: what the engine computes in.
    scheduler: further fields of SchedulerConfig, by name, as in EngineArgs.
    """

    name: str
    model: Model
    quant_method: str | None = None
    context: int
    output: int
    traffic: Traffic | None = None
    memory_bytes: int | None = None
    hardware: Hardware | None = None
    gpu_memory_utilization: float | None = None
    images: int = 0
    image_size: tuple[int, int] | None = None
    shared_prefix: int = 0
    adapters: int = 0
    rank: int = 16
    lora_target_modules: tuple[str, ...] | None = None
    tp: int = 1
    weights_dtype: str = "auto"
    kv_dtype: str | None = None
    state_dtype: str = "float32"
    max_num_batched_tokens: int = 2048
    max_num_seqs: int | None = None
    block_size: int = 16
    scheduler: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.memory_bytes is None and self.hardware is None:
            raise ValueError("give memory, or a gpu whose memory counts")
        lowest = {"context": 1, "output": 1, "images": 0, "shared_prefix": 0, "adapters": 0, "rank": 1, "tp": 1}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.max_num_seqs is not None and self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, got {self.max_num_seqs}")
        if self.shared_prefix >= self.context:
            raise ValueError(f"shared_prefix {self.shared_prefix} leaves nothing of a context of {self.context} tokens")
        if self.images and self.model.vision is None:
            raise ValueError(f"images {self.images}: {self.name} is served without images")
        if self.image_size is not None and self.model.vision is None:
            raise ValueError(f"image_size {self.image_size}: {self.name} is served without images")
        for dtype in (self.dtype, self.kept_dtype, self.state_dtype):
            dtype_bytes(dtype)
        lora_targets(self.model.lora_targets(), self.lora_target_modules)

    @property
    def dtype(self) -> str:
        """Of the weights."""
        return self.model.dtype if self.weights_dtype == "auto" else self.weights_dtype

    @property
    def computed_dtype(self) -> str:
        """Of convolution tails, image embeddings and adapters."""
        return self.dtype if self.dtype in DTYPES else self.model.dtype

    @property
    def kept_dtype(self) -> str:
        """Of keys and values."""
        return self.computed_dtype if self.kv_dtype is None else self.kv_dtype

    @property
    def image_cost(self) -> ImageCost:
        """Of one image; nothing for a model without images."""
        return image_cost(self.model, self.image_size)

    @property
    def image_tokens(self) -> int:
        """By which one image makes a prompt longer; 0 for a model without images."""
        return self.image_cost.prompt_tokens

    @property
    def max_image_tokens(self) -> int:
        """Of the largest entry that an image has in the encoder pool; 0 for a model without images."""
        return 0 if self.model.vision is None else self.model.vision.tokens.most

    @property
    def unsplit_images(self) -> bool:
        """Whether each image is computed as one chunk."""
        return self.model.vision is not None and self.model.vision.bidirectional

    @property
    def total_tokens(self) -> int:
        """Of a request, the longest one, at its full length."""
        if self.traffic is not None:
            return self.traffic.longest
        return self.context + self.images * self.image_tokens + self.output

    @property
    def what_if(self) -> tuple[str, ...]:
        """What of the question the engine cannot be told."""
        notes = []
        if self.quant_method is not None and self.weights_dtype == "auto":
            notes.append(f"the engine loads no weights quantised by {self.quant_method}; they count as {self.dtype}")
        if self.tp > 1:
            notes.append(f"the engine runs a model on one device, not on {self.tp}")
        if self.dtype not in DTYPES:
            notes.append(f"the engine computes in {', '.join(DTYPES[1:])}, not in {self.dtype}")
        if self.kept_dtype != self.computed_dtype:
            notes.append(f"the engine keeps keys and values as it computes, in {self.computed_dtype}")
        if self.state_dtype != "float32":
            notes.append("the engine keeps recurrent states in float32")
        return tuple(notes)

    def share(self) -> Model:
        """What one of `tp` devices holds of the model. Raises ValueError for what does not divide."""
        return share_of(self.model, self.tp)

    def spec(self) -> ModelSpec:
        """What one device keeps per request."""
        spec = self.share().spec(self.computed_dtype, self.state_dtype)
        if self.kept_dtype == self.computed_dtype:
            return spec
        kept = partial(_with_dtype, dtype=self.kept_dtype)
        return replace(spec, layers=tuple(tuple(map(kept, layer)) for layer in spec.layers))

    def weights_bytes(self) -> int:
        """On one device."""
        return weight_bytes(self.share(), self.dtype)

    def lora_bytes_per_unit(self) -> int:
        """Of one device's share of 8 ranks over all targets; 0 without adapters."""
        if not self.adapters:
            return 0
        return self.share().lora_bytes_per_unit(self.computed_dtype, self.lora_target_modules)

    def working(self, num_seqs: int) -> WorkingMemory | None:
        """What steps of so many requests hold on one device; None where the memory of a GPU is not what counts."""
        if self.memory_bytes is not None or self.hardware is None or self.hardware.name == CPU:
            return None
        return working_memory(
            self.share(),
            self.computed_dtype,
            self.scheduler_config(self.engine_args()),
            max_num_seqs=num_seqs,
            max_model_len=self.total_tokens,
            block_size=self.block_size,
            max_lora_rank=self.rank if self.adapters else 0,
        )

    def usable(self) -> int:
        """Bytes beside the weights, for pools and steps of one device. Raises NothingFitsError where there are none."""
        assert self.hardware is not None
        total, weights = self.hardware.memory_bytes, self.weights_bytes()
        if total <= weights:
            raise NothingFitsError(
                f"the weights of {self.name} need {weights - total:,} bytes more than {self.hardware.name} has"
            )
        try:
            return usable_gpu_memory(total - weights, total, self.gpu_memory_utilization)
        except ValueError as error:
            raise NothingFitsError(str(error)) from None

    def budget(self, num_seqs: int = 1) -> int:
        """Bytes for the pools of one device beside steps of so many requests. Raises NothingFitsError where the weights
        leave nothing."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        assert self.hardware is not None
        working = self.working(num_seqs)
        return self.hardware.memory_bytes if working is None else gpu_pool_memory(self.usable(), working.total)

    def scheduler_config(self, args: EngineArgs) -> SchedulerConfig:
        """As the engine derives it from these arguments and the model's images. Raises ValueError."""
        encoder = self.spec().encoder
        least = None if encoder is None else encoder.min_tokens_per_image
        on_gpu = self.hardware is not None and self.hardware.name != CPU
        return args.scheduler_config(self.max_image_tokens, self.unsplit_images, least, on_gpu)

    def engine_args(self) -> EngineArgs:
        """For one request, with pools of no size and no memory yet. Raises ValueError."""
        return EngineArgs(
            model=self.name,
            dtype=self.dtype if self.dtype in DTYPES else "auto",
            gpu_memory_utilization=self.gpu_memory_utilization,
            max_model_len=self.total_tokens,
            max_num_seqs=1,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            num_full_blocks=0,
            num_window_blocks=0,
            num_state_slots=0,
            enable_lora=self.adapters > 0,
            max_loras=max(1, self.adapters),
            max_lora_rank=self.rank,
            lora_target_modules=self.lora_target_modules,
            scheduler=self.scheduler,
        )


def image_cost(model: Model, size: tuple[int, int] | None) -> ImageCost:
    """Of an image of so many pixels, width and height; None: of one that takes most. Nothing for a model without
    images."""
    if model.vision is None:
        return ImageCost(())
    return model.vision.tokens.costliest if size is None else model.vision.tokens(*size)


def _with_dtype(spec: LayerSpec, dtype: str) -> LayerSpec:
    """Keys and values in another dtype; a state stays as it is."""
    return replace(spec, dtype=dtype) if isinstance(spec, FullAttentionSpec | SlidingWindowSpec) else spec
