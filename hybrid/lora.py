"""LoRA in an engine: the store of a model's adapters, as the arguments say, and the gate that a request waits at."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from hybrid.models.blueprint.model import is_target
from hybrid.models.blueprint.parts import Shape
from hybrid.scheduler.request import Gate, GateStatus

if TYPE_CHECKING:  # brings torch
    from hybrid.adapters.adapter import Adapter
    from hybrid.adapters.store import AdapterStore

    from .engine_args import EngineArgs

GATE = "adapter"


def adapter_gate(store: "AdapterStore", adapter: "Adapter") -> Gate:
    """Ready when the adapter's weights are on the host. Somebody must hold the adapter meanwhile."""
    return Gate(
        GATE,
        poll=lambda: GateStatus(store.status(adapter.lora_id).state.value),
        error=lambda: f"{adapter.name!r} cannot be used: {store.status(adapter.lora_id).error}",
    )


def lora_targets(targets: Mapping[str, Shape], modules: Sequence[str] | None) -> dict[str, Shape]:
    """The targets that the arguments leave; modules: ends of their names. Raises ValueError for one that ends none."""
    for module in modules or ():
        if not any(is_target(name, (module,)) for name in targets):
            ends = sorted({name.rpartition(".")[2] for name in targets})
            raise ValueError(f"lora_target_modules: the model has no {module!r}; it has {', '.join(ends)}")
    return {name: shape for name, shape in targets.items() if is_target(name, modules)}


def build_store(
    args: "EngineArgs", targets: Mapping[str, Shape], image_targets: Collection[str] = ()
) -> "AdapterStore":
    """A store of these targets, `lora_modules` loaded and read. image_targets: see AdapterStore. Raises ValueError for
    an adapter that is not right."""
    from hybrid.adapters.store import AdapterStore

    store = AdapterStore(
        targets,
        max_lora_rank=args.max_lora_rank,
        max_cpu_loras=args.max_cpu_loras,
        image_targets=image_targets,
    )
    for name, path in args.lora_modules.items():
        store.load_and_wait(name, path)
    return store
