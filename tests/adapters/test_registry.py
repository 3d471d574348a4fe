import pytest

from hybrid.adapters.registry import Adapter, AdapterRegistry


def load(registry: AdapterRegistry, name: str, rank: int) -> Adapter:
    adapter = registry.create(name, rank)
    registry.put(adapter)
    return adapter


def test_a_reloaded_name_is_a_new_generation() -> None:
    registry = AdapterRegistry()
    first = load(registry, "poet", rank=8)
    second = registry.create("poet", rank=16)
    assert first.lora_id != second.lora_id
    assert registry.get("poet") is first
    registry.put(second)
    assert registry.get("poet") is second
    registry.unload("poet")
    assert registry.create("poet", rank=8).lora_id > second.lora_id


def test_unknown_names_and_impossible_ranks_are_refused() -> None:
    registry = AdapterRegistry()
    load(registry, "poet", rank=8)
    with pytest.raises(ValueError, match="adapter 'cook' is not loaded; loaded are \\['poet'\\]"):
        registry.get("cook")
    with pytest.raises(ValueError, match="adapter 'cook' is not loaded"):
        registry.unload("cook")
    with pytest.raises(ValueError, match="rank 0"):
        registry.create("cook", rank=0)
    with pytest.raises(ValueError, match="lora_id 0"):
        Adapter("cook", 0, 8)
