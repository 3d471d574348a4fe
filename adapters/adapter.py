"""Adapter: one loaded LoRA adapter as requests and memory see it. Knows no weights and no pool."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter as memory sees it. `lora_id` is new at every load: a reloaded name never meets the old one's
    cache."""

    name: str
    lora_id: int  # >= 1; 0 is the base model
    rank: int
    changes_images: bool = False  # how they are seen: no other generation shares its embeddings

    def __post_init__(self) -> None:
        if self.lora_id < 1:
            raise ValueError(f"adapter {self.name!r}: lora_id {self.lora_id} is less than 1")
        if self.rank < 1:
            raise ValueError(f"adapter {self.name!r}: rank {self.rank} is less than 1")
