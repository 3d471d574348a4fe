"""Adapters: which are loaded, as the event loop sees it. Knows no bodies and no requests.

Unloading takes a name away at once, so that no new request finds it, and is done when the last one that uses it has
ended. Loading under a name that is in use needs no waiting: running requests keep the generation they began with.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hybrid.adapters.adapter import Adapter
from hybrid.adapters.store import AdapterStore

LOADERS = 2  # threads of their own: who loads slowly must not hold up who reads a picture


class Adapters:
    """The store of a server that was started with adapters."""

    def __init__(self, store: AdapterStore) -> None:
        self._store = store
        self._loaders = ThreadPoolExecutor(LOADERS, "load-adapter")

    def find(self, name: str) -> Adapter | None:
        """The adapter of this name, None where none is loaded."""
        return self._store.get(name) if name in self._store.names() else None

    def folders(self) -> list[tuple[str, str]]:
        """(name, folder) of each that is loaded."""
        found = []
        for name in self._store.names():
            with suppress(ValueError):  # unloaded a moment ago
                found.append((name, str(self._store.path(name))))
        return found

    async def load(self, name: str, path: str, replace: bool) -> Adapter:
        """Mutates: `name` stands for the adapter in this folder, which has been read. replace: an older one of this
        name may go; it stays where this one is refused. Raises ValueError."""
        loading = self._loaders.submit(self._store.load_and_wait, name, path, replace=replace)
        return await asyncio.wrap_future(loading)

    async def unload(self, name: str) -> None:
        """Mutates: nobody finds it from now on; returns when nobody uses it. Raises ValueError: it is not loaded."""
        await asyncio.wrap_future(self._store.unload(name))
