"""LoRARequest: which adapter a request uses, shaped like vLLM's, and how users of LLM give one or many."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter `lora_name`; loaded from `lora_path` if no adapter of that name is. Raises ValueError.

    lora_int_id: at least 1, as in vLLM, and nothing else: generations of an adapter are told apart by the engine.
    lora_path: a PEFT folder; may be empty for an adapter that is loaded already.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise ValueError(f"lora_name must be a name, got {self.lora_name!r}")
        if isinstance(self.lora_int_id, bool) or not isinstance(self.lora_int_id, int) or self.lora_int_id < 1:
            raise ValueError(f"lora_int_id must be an integer of at least 1, got {self.lora_int_id!r}")
        if not isinstance(self.lora_path, str):
            raise ValueError(f"lora_path must be a folder's path, got {self.lora_path!r}")


def one_each(given: LoRARequest | Sequence[LoRARequest | None] | None, number: int) -> list[LoRARequest | None]:
    """One for each prompt; None is the base model. Raises ValueError for more or fewer, or something else."""
    if given is None or isinstance(given, LoRARequest):
        return [given] * number
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"lora_request must be a LoRARequest or a list of them, got {given!r}")
    listed = list(given)
    if len(listed) != number:
        raise ValueError(f"there are {number} prompts and {len(listed)} lora_requests")
    for request in listed:
        if request is not None and not isinstance(request, LoRARequest):
            raise ValueError(f"lora_request must be a LoRARequest, got {type(request).__name__}")
    return listed
