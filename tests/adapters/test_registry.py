import pytest

from hybrid.adapters.registry import Adapter, AdapterRegistry


def test_a_reloaded_name_is_a_new_generation() -> None:
    registry = AdapterRegistry()
    first = registry.load("poet", rank=8)
    second = registry.load("poet", rank=16)
    assert first.lora_id != second.lora_id
    assert registry.get("poet") is second
    registry.unload("poet")
    assert registry.load("poet", rank=8).lora_id > second.lora_id


def test_unknown_names_and_impossible_ranks_are_refused() -> None:
    registry = AdapterRegistry()
    registry.load("poet", rank=8)
    with pytest.raises(ValueError, match="adapter 'cook' is not loaded; loaded are \\['poet'\\]"):
        registry.get("cook")
    with pytest.raises(ValueError, match="adapter 'cook' is not loaded"):
        registry.unload("cook")
    with pytest.raises(ValueError, match="rank 0"):
        registry.load("cook", rank=0)
    with pytest.raises(ValueError, match="lora_id 0"):
        Adapter("cook", 0, 8)
