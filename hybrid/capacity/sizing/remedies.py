"""Remedies: the smallest single changes of a question after which at least one request fits. Asks the planner."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hybrid.engine_memory import gpu_memory_for_pools

from ..hardware import CPU, HARDWARE
from ..question import Question
from .planning import plan
from .split import Split

MIB = 2**20
MAX_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Remedy:
    """`option`: what to say instead. `factor`: by how much that differs from what was said; the least comes first."""

    option: str
    factor: float


def fits(question: Question) -> bool:
    """Whether at least one request fits."""
    try:
        plan(question)
    except ValueError:
        return False
    return True


def remedies(question: Question) -> tuple[Remedy, ...]:
    """For a question to which `plan` raised NothingFitsError; () where no single change helps."""
    found = [each(question) for each in (_memory, _share, _context, _adapters, _devices)]
    return tuple(sorted((r for r in found if r is not None), key=lambda remedy: remedy.factor))


def nothing_fits(question: Question, error: ValueError) -> str:
    """One sentence: what does not fit (`error`), and the smallest change that would."""
    options = [remedy.option for remedy in remedies(question)]
    if not options:
        return f"{error}; no single change would help"
    others = f" (or {', or '.join(options[1:])})" if len(options) > 1 else ""
    return f"{error}; the smallest change that fits: {options[0]}{others}"


def _memory(question: Question) -> Remedy | None:
    there = question.hardware
    if question.memory_bytes is not None or there is None or there.name == CPU:
        size = -(-Split(question).bytes(1).total // MIB)
        return Remedy(f"--memory {size}MiB", size * MIB / question.budget())
    if there.memory_bytes != HARDWARE[there.name].memory_bytes:
        pools, working = Split(question).bytes(1).total, question.working(1)
        assert working is not None
        least = question.weights_bytes() + gpu_memory_for_pools(pools, working.total)
        size = -(-int(least / (question.gpu_memory_utilization or 1)) // MIB) + 1
        return Remedy(f"--gpu-memory {size}MiB", size * MIB / there.memory_bytes)
    for hardware in sorted(HARDWARE.values(), key=lambda hardware: hardware.memory_bytes):
        if fits(replace(question, hardware=hardware)):
            return Remedy(f"--gpu {hardware.name}", hardware.memory_bytes / there.memory_bytes)
    return None


def _share(question: Question) -> Remedy | None:
    """More of the device's memory, in hundredths."""
    share = question.gpu_memory_utilization
    if share is None:
        return None
    left = _largest(lambda left: fits(replace(question, gpu_memory_utilization=1 - left / 100)), 0, 100)
    return None if left is None else Remedy(f"--gpu-memory-utilization {1 - left / 100:.2f}", (1 - left / 100) / share)


def _context(question: Question) -> Remedy | None:
    least = question.shared_prefix + 1
    tokens = _largest(lambda context: fits(replace(question, context=context)), least, question.context)
    return None if tokens is None else Remedy(f"--context {tokens}", question.context / tokens)


def _adapters(question: Question) -> Remedy | None:
    count = _largest(lambda adapters: fits(replace(question, adapters=adapters)), 0, question.adapters)
    return None if count is None else Remedy(f"--adapters {count}", (question.adapters + 1) / (count + 1))


def _devices(question: Question) -> Remedy | None:
    """More devices; nothing but another machine, so only where the memory is a device's."""
    devices = 2 * question.tp
    while question.memory_bytes is None and devices <= MAX_DEVICES:
        if fits(replace(question, tp=devices)):
            return Remedy(f"--tp {devices}", devices / question.tp)
        devices *= 2
    return None


def _largest(fitting: Callable[[int], bool], least: int, limit: int) -> int | None:
    """The largest value of least .. limit - 1 that is fitting, where all smaller ones are too; None: none is."""
    if least >= limit or not fitting(least):
        return None
    low, high = least, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle)
    return low
