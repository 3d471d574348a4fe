"""AdapterStore: the adapters of one model on the host: names, generations, and weights that threads read from disk.

Knows neither requests nor device memory: who needs a generation holds it, and releases it. Safe for several threads.
"""

import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path
from threading import Condition

from .adapter import Adapter
from .checkpoint import AdapterCheckpoint, open_adapter
from .naming import ModuleNames, Shape
from .weights import AdapterWeights

logger = logging.getLogger(__name__)

READERS = 2  # threads that read files
MAX_NAME = 256  # characters


class AdapterState(Enum):
    """Of a generation's weights on the host."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """`error`: one sentence for FAILED."""

    state: AdapterState
    error: str = ""


@dataclass(slots=True)
class _Generation:
    """Mutable, under the store's lock. `holds`: how many need it; without any, and without its name, it goes."""

    adapter: Adapter
    checkpoint: AdapterCheckpoint
    holds: int = 0
    reading: bool = False
    weights: AdapterWeights | None = None
    error: str = ""
    gone: Future[None] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.gone.set_running_or_notify_cancel()  # who waits for it may stop waiting, and not cancel it


class AdapterStore:
    """Loaded adapters by name. A generation (`lora_id`) stands for the same values for ever and is never given twice.

    Weights stay while somebody holds their generation. Of those that nobody holds, the `max_cpu_loras` used last stay
    too (None: all of them); others are read again, in the background, when they are held next.
    """

    def __init__(
        self,
        targets: Mapping[str, Shape],
        *,
        max_lora_rank: int = 64,
        max_cpu_loras: int | None = None,
        image_targets: Collection[str] = (),
    ) -> None:
        """targets: what adapters may change, name -> shape, as `Model.lora_targets` has it. image_targets: those that
        change how pictures are seen."""
        self.max_lora_rank = max_lora_rank
        self._names = ModuleNames(targets)
        self._max_idle = max_cpu_loras
        self._image_targets = frozenset(image_targets)
        self._lora_ids = count(1)
        self._named: dict[str, _Generation] = {}  # in the order in which they got their names
        self._generations: OrderedDict[int, _Generation] = OrderedDict()  # least recently used first
        self._changed = Condition()
        self._readers = ThreadPoolExecutor(READERS, "adapter")

    # --- names ---------------------------------------------------------------------------------------------------

    def load(self, name: str, path: str | Path) -> Adapter:
        """Mutates: `name` stands for a new generation, whose weights are being read from now on.

        The folder's configuration and its tensors' names and shapes are checked at once: ValueError, and nothing
        changes. Requests of an older generation keep theirs.
        """
        checkpoint = self._open(name, path)
        with self._changed:
            generation = self._add(name, checkpoint)
            self._give_name(generation)
        return generation.adapter

    def load_and_wait(self, name: str, path: str | Path, *, replace: bool = True) -> Adapter:
        """Mutates: as `load`, but blocks, and `name` stands for the new generation only once that was read.

        Raises ValueError, and nothing changes: also for weights that cannot be read and, without `replace`, for a name
        that is taken.
        """
        checkpoint = self._open(name, path)
        with self._changed:
            generation = self._add(name, checkpoint)
            generation.holds += 1  # without a name it would go
        lora_id = generation.adapter.lora_id
        try:
            self.wait(lora_id)
            with self._changed:
                if not replace and name in self._named:
                    raise ValueError(f"adapter {name!r} is loaded already")
                self._give_name(generation)
        finally:
            self.release(lora_id)
        return generation.adapter

    def unload(self, name: str) -> Future[None]:
        """Mutates: `name` stands for nothing. Whoever holds the generation keeps it; done when nobody does any more.
        Raises ValueError if it is not loaded."""
        with self._changed:
            gone = self._find_named(name).gone
            del self._named[name]
            self._tidy()
        return gone

    def get(self, name: str) -> Adapter:
        """The generation that `name` stands for. Raises ValueError if it is not loaded."""
        with self._changed:
            return self._find_named(name).adapter

    def names(self) -> tuple[str, ...]:
        """Of loaded adapters, in the order in which they were loaded."""
        with self._changed:
            return tuple(self._named)

    def path(self, name: str) -> Path:
        """The folder of the adapter that `name` stands for. Raises ValueError if it is not loaded."""
        with self._changed:
            return self._find_named(name).checkpoint.folder

    # --- weights -------------------------------------------------------------------------------------------------

    def hold(self, lora_id: int) -> None:
        """Mutates: the generation is needed until `release`; weights that are not there are read, also after a failure.

        Raises ValueError for a generation that no name stands for any more: nobody new may use it.
        """
        with self._changed:
            generation = self._find(lora_id)
            if not self._is_named(generation):
                raise ValueError(f"adapter {generation.adapter.name!r} was unloaded")
            generation.holds += 1
            if generation.weights is None:
                self._read(generation)

    def release(self, lora_id: int) -> None:
        """Mutates: once for every `hold`."""
        with self._changed:
            generation = self._find(lora_id)
            assert generation.holds > 0, f"adapter {lora_id} is released more often than held"
            generation.holds -= 1
            self._generations.move_to_end(lora_id)
            self._tidy()

    def status(self, lora_id: int) -> AdapterStatus:
        """Cheap, and does not block. Raises ValueError for a generation that is gone."""
        with self._changed:
            return self._status(self._find(lora_id))

    def wait(self, lora_id: int) -> None:
        """Blocks until the weights are there: of a held generation, as others may leave before that shows. Raises
        ValueError when they cannot be read, or the generation is gone."""
        with self._changed:
            while (status := self._status(generation := self._find(lora_id))).state is AdapterState.PENDING:
                self._changed.wait()
        if status.state is AdapterState.FAILED:
            raise ValueError(f"adapter {generation.adapter.name!r}: {status.error}")

    def weights(self, lora_id: int) -> AdapterWeights:
        """Of a generation that is ready; others are a ValueError."""
        with self._changed:
            weights = self._find(lora_id).weights
        if weights is None:
            raise ValueError(f"the weights of adapter {lora_id} are not there")
        return weights

    def _open(self, name: str, path: str | Path) -> AdapterCheckpoint:
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > MAX_NAME:
            raise ValueError(f"an adapter's name has 1 to {MAX_NAME} characters that can be printed, got {name!r}")
        try:
            return open_adapter(path, self._names, self.max_lora_rank)
        except ValueError as error:
            raise ValueError(f"adapter {name!r}: {error}") from None

    # --- under the lock ------------------------------------------------------------------------------------------

    def _find(self, lora_id: int) -> _Generation:
        if lora_id not in self._generations:
            raise ValueError(f"adapter {lora_id} is not loaded")
        return self._generations[lora_id]

    def _find_named(self, name: str) -> _Generation:
        if name not in self._named:
            raise ValueError(f"adapter {name!r} is not loaded; loaded are {sorted(self._named)}")
        return self._named[name]

    def _is_named(self, generation: _Generation) -> bool:
        return self._named.get(generation.adapter.name) is generation

    def _is_needed(self, generation: _Generation) -> bool:
        return generation.holds > 0 or self._is_named(generation)

    def _add(self, name: str, checkpoint: AdapterCheckpoint) -> _Generation:
        """Mutates: a new generation, for which no name stands, is being read."""
        changes_images = not self._image_targets.isdisjoint(checkpoint.pieces)
        adapter = Adapter(name, next(self._lora_ids), checkpoint.rank, changes_images)
        generation = self._generations[adapter.lora_id] = _Generation(adapter, checkpoint)
        self._read(generation)
        return generation

    def _give_name(self, generation: _Generation) -> None:
        """Mutates: its name stands for it, and no longer for an older one."""
        self._named.pop(generation.adapter.name, None)
        self._named[generation.adapter.name] = generation
        self._tidy()

    def _status(self, generation: _Generation) -> AdapterStatus:
        if generation.weights is not None:
            return AdapterStatus(AdapterState.READY)
        if generation.error:
            return AdapterStatus(AdapterState.FAILED, generation.error)
        return AdapterStatus(AdapterState.PENDING)

    def _read(self, generation: _Generation) -> None:
        """Mutates: a reader takes it up, if none has."""
        generation.error = ""
        if not generation.reading:
            generation.reading = True
            self._readers.submit(self._fill, generation)

    def _tidy(self) -> None:
        """Mutates: what nobody needs goes."""
        for lora_id, generation in list(self._generations.items()):
            if not self._is_needed(generation):
                del self._generations[lora_id]
                generation.gone.set_result(None)
        idle = [entry for entry in self._generations.values() if entry.weights is not None and not entry.holds]
        if self._max_idle is not None:
            for generation in idle[: max(0, len(idle) - self._max_idle)]:
                generation.weights = None
        self._changed.notify_all()

    # --- in a reader's thread ------------------------------------------------------------------------------------

    def _fill(self, generation: _Generation) -> None:
        """Mutates: its weights, or why there are none. Whatever goes wrong is this generation's alone."""
        weights, error = None, ""
        with self._changed:
            needed = self._is_needed(generation)
        try:
            weights = generation.checkpoint.read() if needed else None
        except Exception as problem:
            error = str(problem) or type(problem).__name__
            name = generation.adapter.name
            logger.warning("adapter %r: %s", name, error, exc_info=not isinstance(problem, ValueError))
        with self._changed:
            generation.reading = False
            generation.weights, generation.error = weights, error
            if generation.adapter.lora_id in self._generations:
                self._generations.move_to_end(generation.adapter.lora_id)
            self._tidy()
