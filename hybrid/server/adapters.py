"""Adapters: which are loaded and which requests use them, as the event loop sees it. Knows no bodies.

Unloading takes a name away at once, so that no new request finds it, and is done when the last one that uses it has
ended. Loading under a name that is in use needs no waiting: running requests keep the generation they began with.
"""

import asyncio
from contextlib import suppress

from hybrid.adapters.registry import Adapter
from hybrid.adapters.store import AdapterStore
from hybrid.async_engine import RequestStream


class Adapters:
    """The store of a server that was started with adapters."""

    def __init__(self, store: AdapterStore) -> None:
        self.store = store
        self._users: dict[RequestStream, int] = {}  # -> the generation
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

    def begin(self, stream: RequestStream, adapter: Adapter) -> None:
        """Mutates: the request uses it until `end`."""
        self._users[stream] = adapter.lora_id

    def end(self, stream: RequestStream) -> None:
        """Mutates. Also for a request that uses none."""
        if self._users.pop(stream, None) is not None:
            self._left.set()

    async def load(self, name: str, path: str) -> Adapter:
        """Mutates: `name` stands for the adapter in this folder, which has been read. Raises ValueError."""
        return await asyncio.to_thread(self._load, name, path)

    async def unload(self, name: str) -> None:
        """Mutates: nobody finds it from now on; returns when nobody uses it. Raises ValueError: it is not loaded."""
        adapter = self.store.unload(name)
        while adapter.lora_id in self._users.values():
            self._left.clear()
            await self._left.wait()

    def _load(self, name: str, path: str) -> Adapter:
        adapter = self.store.load(name, path)
        self.store.hold(adapter.lora_id)  # else it could go before it is seen
        try:
            self.store.wait(adapter.lora_id)
        except ValueError:
            self.store.unload(name)
            raise
        finally:
            self.store.release(adapter.lora_id)
        return adapter
