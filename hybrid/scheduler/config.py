"""SchedulerConfig: the choices of a user about what runs together. Sizes of memory are not here (see pools.sizing)."""

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

SchedulingPolicy = Literal["fcfs", "priority", "lpm", "dfs-weight", "lof", "routing-key"]
Composition = Literal["decode-first", "prefill-first"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Budgets in tokens per step. Names follow vLLM where it has the notion.

    long_prefill_token_threshold: the most one prefill may take of a step; 0: no limit.
    max_num_encoder_tokens: image embeddings computed per step; None: as many as max_num_batched_tokens, or as the
        largest image has.
    max_image_tokens, min_image_tokens: of the largest and the smallest image; None: all are of one size.
    disable_chunked_mm_input: an image's placeholders are never split over two chunks.
    num_draft_tokens: the most drafts one request may carry.
    max_skips: how many requests may pass a waiting one that lacks only an adapter or an encoder place.
    max_step_failures: a request that was to blame for so many failed steps ends with the error.
    ageing_seconds: a request that waited longer goes before every policy's order, oldest first.
    long_queue: with more requests waiting, orders that look at the cache or the running set fall back to fcfs.
    prefill_delay_steps, prefill_delay_tokens: prefill-first gathers waiting prompts until either is reached.
    max_decode_pause_steps: prefill-first lets decodes go without a token at most so many steps in a row.
    min_shared_tokens: an uncached common prefix at least so long makes siblings wait for the first of them.
    force_retraction_every: testing aid; retract a victim every so many steps. 0: never.
    """

    max_num_batched_tokens: int = 2048
    scheduling_policy: SchedulingPolicy = "fcfs"
    composition: Composition = "decode-first"
    max_plans_in_flight: int = 1
    long_prefill_token_threshold: int = 0
    max_num_encoder_tokens: int | None = None
    disable_chunked_mm_input: bool = False
    max_image_tokens: int = 0
    min_image_tokens: int | None = None
    num_draft_tokens: int = 0
    max_skips: int = 64
    max_scan: int = 256
    max_snapshots_per_prompt: int = 8
    max_step_failures: int = 3
    ageing_seconds: float = 60.0
    long_queue: int = 128
    prefill_delay_steps: int = 4
    prefill_delay_tokens: int = 512
    max_decode_pause_steps: int = 8
    min_shared_tokens: int = 16
    initial_output_ratio: float = 0.5
    force_retraction_every: int = 0

    def __post_init__(self) -> None:
        for entry in fields(self):
            _check_type(entry.name, getattr(self, entry.name), entry.type)
        for name in (
            "max_num_batched_tokens",
            "max_plans_in_flight",
            "max_scan",
            "max_step_failures",
            "min_shared_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")
        for name in (
            "long_prefill_token_threshold", "max_image_tokens", "num_draft_tokens", "max_skips", "long_queue",
            "prefill_delay_steps", "prefill_delay_tokens", "max_decode_pause_steps", "max_snapshots_per_prompt",
            "force_retraction_every", "ageing_seconds",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative")
        if self.scheduling_policy not in get_args(SchedulingPolicy):
            raise ValueError(f"scheduling_policy {self.scheduling_policy!r} is not one of {get_args(SchedulingPolicy)}")
        if self.composition not in get_args(Composition):
            raise ValueError(f"composition {self.composition!r} is not one of {get_args(Composition)}")
        if not 0.0 <= self.initial_output_ratio <= 1.0:
            raise ValueError(f"initial_output_ratio {self.initial_output_ratio} is not between 0 and 1")
        smallest = self.smallest_image
        if smallest > self.encoder_budget:
            raise ValueError(f"max_num_encoder_tokens {self.encoder_budget} is less than the {smallest} of one image")
        if self.disable_chunked_mm_input and smallest > self.chunk_limit:
            raise ValueError(
                f"with disable_chunked_mm_input a step of {self.chunk_limit} tokens cannot hold an image of "
                f"{smallest} tokens"
            )

    @property
    def smallest_image(self) -> int:
        """Tokens; what cannot even hold this is refused at once, larger images when their request is added."""
        return self.max_image_tokens if self.min_image_tokens is None else self.min_image_tokens

    @property
    def encoder_budget(self) -> int:
        """Image tokens encoded per step; at least one whole image."""
        if self.max_num_encoder_tokens is not None:
            return self.max_num_encoder_tokens
        return max(self.max_num_batched_tokens, self.max_image_tokens)

    @property
    def chunk_limit(self) -> int:
        """The most tokens one prefill may take of a step."""
        threshold = self.long_prefill_token_threshold
        return min(self.max_num_batched_tokens, threshold) if threshold else self.max_num_batched_tokens


def _check_type(name: str, value: object, kind: object) -> None:
    """Raises ValueError for a value that is not of its field's type. A bool is no number."""
    if kind is bool:
        right, wanted = isinstance(value, bool), "true or false"
    elif kind is float:
        right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        wanted = "a finite number"
    elif kind in (int, int | None):
        right = isinstance(value, int) and not isinstance(value, bool)
        right, wanted = right or (value is None and kind is not int), "an integer"
    else:  # one of several words
        return
    if not right:
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
