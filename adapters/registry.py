"""AdapterRegistry: names of loaded adapters and the generation behind each. Knows no weights and no pool.

It is bookkeeping without a lock; `AdapterStore` is what several threads share.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter as memory sees it. `lora_id` is new at every load: a reloaded name never meets the old one's
    cache."""

    name: str
    lora_id: int  # >= 1; 0 is the base model
    rank: int

    def __post_init__(self) -> None:
        if self.lora_id < 1:
            raise ValueError(f"adapter {self.name!r}: lora_id {self.lora_id} is less than 1")
        if self.rank < 1:
            raise ValueError(f"adapter {self.name!r}: rank {self.rank} is less than 1")


class AdapterRegistry:
    """name -> the adapter loaded under it now. Generations count up and are never given twice."""

    def __init__(self) -> None:
        self._loaded: dict[str, Adapter] = {}
        self._next_id = 1

    def create(self, name: str, rank: int) -> Adapter:
        """Mutates: a fresh generation, for which `name` does not stand yet."""
        adapter = Adapter(name, self._next_id, rank)
        self._next_id += 1
        return adapter

    def put(self, adapter: Adapter) -> None:
        """Mutates: its name stands for it from now on; requests of an older generation keep theirs."""
        self._loaded[adapter.name] = adapter

    def unload(self, name: str) -> Adapter:
        """Mutates. Raises ValueError if no adapter of this name is loaded."""
        if name not in self._loaded:
            raise ValueError(f"adapter {name!r} is not loaded; loaded are {sorted(self._loaded)}")
        return self._loaded.pop(name)

    def get(self, name: str) -> Adapter:
        """The generation that `name` stands for. Raises ValueError if it is not loaded."""
        if name not in self._loaded:
            raise ValueError(f"adapter {name!r} is not loaded; loaded are {sorted(self._loaded)}")
        return self._loaded[name]

    def names(self) -> tuple[str, ...]:
        """In the order in which they were loaded."""
        return tuple(self._loaded)
