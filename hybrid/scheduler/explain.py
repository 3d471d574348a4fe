"""Why a request is where it is, in one sentence with numbers. Pure; reads the same shortages that admission returns."""

from dataclasses import dataclass

from hybrid.pools.ledger import Shortage
from hybrid.pools.memory import Memory

from .tracked import Tracked


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a request is and why. `holds`: units by pool, those it shares with others included."""

    request_id: str
    running: bool
    reason: str
    holds: dict[str, int]


def held_units(request: Tracked, memory: Memory) -> dict[str, int]:
    """Units of each pool that a request holds; none while it waits. Pure."""
    row, table, kinds = request.row, memory.table, memory.kinds
    runs = row is not None
    return {
        memory.rows.name: int(runs),
        memory.full.name: len(table.full_blocks(row)) if row is not None and kinds.full else 0,
        memory.window.name: len(table.window_blocks(row)) if row is not None and kinds.window else 0,
        memory.state.name: int(runs and kinds.state),
        memory.encoder.name: sum(len(slots) for slots in request.images.values()),
        memory.lora.name: len(request.adapter_units) if request.adapter_units is not None else 0,
    }


def waits_for(request: Tracked) -> str:
    """What holds a waiting request, as last tried: a pool's name, "gate", or "order". Pure."""
    if request.gates:
        return "gate"
    return request.shortages[0].pool if request.shortages else "order"


def explain_running(request: Tracked, memory: Memory) -> str:
    table, row = memory.table, request.row
    assert row is not None
    text = (
        f"request {request.request_id!r} runs in row {row}: {int(table.num_processed[row])} of "
        f"{int(table.num_tokens[row])} known tokens computed"
    )
    if request.shortages and table.num_computed[row] < table.num_tokens[row]:
        text += f", held back because {_because(request.shortages)}"
    return text


def explain_waiting(request: Tracked, shortages: tuple[Shortage, ...], ahead: int, memory: Memory) -> str:
    """ahead: ready requests that arrived before it."""
    name = f"request {request.request_id!r} waits"
    if request.gates:
        return f"{name} for {', '.join(gate.name for gate in request.gates)} to become ready and holds no memory"
    if shortages:
        return f"{name} because {_because(shortages)}"
    if request.waits_for:
        return f"{name} for {request.waits_for}"
    if ahead:
        return f"{name} behind {ahead} earlier requests; every pool could hold it now"
    return f"{name} for the next step; every pool can hold it ({memory.rows.available()} request rows available)"


def _because(shortages: tuple[Shortage, ...]) -> str:
    return " and ".join(str(shortage) for shortage in shortages)
