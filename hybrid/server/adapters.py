"""Adapters: which are loaded and which requests use them, as the event loop sees it. Knows no bodies.

Unloading takes a name away at once, so that no new request finds it, and is done when the last one that uses it has
ended. Loading under a name that is in use needs no waiting: running requests keep the generation they began with.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hybrid.adapters.registry import Adapter
from hybrid.adapters.store import AdapterStore

LOADERS = 2  # threads of their own: who loads slowly must not hold up who reads a picture


class Adapters:
    """The store of a server that was started with adapters."""

    def __init__(self, store: AdapterStore) -> None:
        self.store = store
        self._users: dict[object, int] = {}  # -> the generation
        self._loaders = ThreadPoolExecutor(LOADERS, "load-adapter")
        self._left = asyncio.Event()  # set when some request ended

    def find(self, name: str) -> Adapter | None:
        """The adapter of this name, None where none is loaded."""
        return self.store.get(name) if name in self.store.names() else None

    def folders(self) -> list[tuple[str, str]]:
        """(name, folder) of each that is loaded."""
        found = []
        for name in self.store.names():
            with suppress(ValueError):  # unloaded a moment ago
                found.append((name, str(self.store.path(name))))
        return found

    def begin(self, user: object, adapter: Adapter) -> None:
        """Mutates: `user` uses it until `end`."""
        self._users[user] = adapter.lora_id

    def end(self, user: object) -> None:
        """Mutates. Also for one that uses none."""
        if self._users.pop(user, None) is not None:
            self._left.set()

    async def load(self, name: str, path: str, replace: bool) -> Adapter:
        """Mutates: `name` stands for the adapter in this folder, which has been read. replace: an older one of this
        name may go; it stays where this one is refused. Raises ValueError."""
        loading = self._loaders.submit(self.store.load_and_wait, name, path, replace=replace)
        return await asyncio.wrap_future(loading)

    async def unload(self, name: str) -> None:
        """Mutates: nobody finds it from now on; returns when nobody uses it. Raises ValueError: it is not loaded."""
        adapter = self.store.unload(name)
        while adapter.lora_id in self._users.values():
            self._left.clear()
            await self._left.wait()
