"""AsyncEngine: an engine in a thread of its own, for callers in an asyncio event loop.

Requests go in, streams of updates come out. Knows no HTTP. The thread alone touches engine and driver: everything else
reaches it as a command between two steps. Without requests it sleeps.
"""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from queue import Empty, SimpleQueue
from typing import ParamSpec, Protocol, TypeVar

from hybrid.adapters.adapter import Adapter
from hybrid.frontend.collector import Collector
from hybrid.frontend.generation import Update
from hybrid.frontend.processor import Processor
from hybrid.frontend.prompt import Prompt

from .driver import Driver
from .engine import Engine
from .outputs import RequestOutput
from .sampling_params import SamplingParams

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

PROMPT_THREADS = 2  # tokenising and reading pictures, beside the event loop and the engine


class EngineObserver(Protocol):
    """Told by the engine's thread what happens."""

    def arrived(self, request_id: str) -> None:
        """The engine has taken this sequence."""

    def stepped(self, updates: Iterable[Update], idle: bool = False) -> None:
        """These came of a step. idle: nothing is left to do."""


class EngineDeadError(RuntimeError):
    """The engine's thread has ended, and nothing will run any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One prompt to answer. `request_id` is the engine's name for it; of n sequences each gets a number behind it."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    priority: int = 0
    adapter: Adapter | None = None


class RequestStream:
    """What comes of submissions made together. One task reads it, either update by update or as a whole.

    Sequence i * n + k is the k-th of submission i; `sequences` maps the updates' request ids to these numbers.
    """

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self.collectors = tuple(collectors)
        names = (name for collector in collectors for name in collector.sequence_ids)
        self.sequences = {name: number for number, name in enumerate(names)}
        self._num_running = len(self.sequences)
        self._updates: list[Update] = []
        self._error: EngineDeadError | None = None
        self._news = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether the last update of every sequence is here."""
        return self._num_running == 0

    async def updates(self) -> AsyncIterator[list[Update]]:
        """What came since the last time, until all sequences are finished. Raises EngineDeadError."""
        while self._updates or not self.finished:
            await self._news.wait()
            self._news.clear()
            if self._error is not None:
                raise self._error
            news, self._updates = self._updates, []
            if news:
                yield news

    async def outputs(self) -> list[RequestOutput]:
        """One for each submission, complete. Raises EngineDeadError."""
        async for _ in self.updates():
            pass
        return [collector.output() for collector in self.collectors]

    def put(self, updates: Sequence[Update]) -> None:
        """Mutates, in the event loop: these came."""
        self._updates += updates
        self._num_running -= sum(update.finish_reason is not None for update in updates)
        self._news.set()

    def fail(self, error: EngineDeadError) -> None:
        """Mutates, in the event loop: nothing more will come."""
        self._error = error
        self._news.set()


class AsyncEngine:
    """Runs from `start` to `stop`. An error of a step ends the requests it concerns; an error that the engine itself
    does not handle ends its thread: `error` says so, and all requests then fail with EngineDeadError."""

    def __init__(
        self, engine: Engine, processor: Processor, seed: int = 0, observer: EngineObserver | None = None
    ) -> None:
        """From `start` on the engine belongs to its thread; the processor may be used by all. seed: as in Driver."""
        self.processor = processor
        self.error: EngineDeadError | None = None
        self._engine = engine
        self._driver = Driver(engine, processor, seed)
        self._observer = observer
        self._streams: dict[Collector, RequestStream] = {}  # those not finished; the thread's
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open = threading.Lock()  # held to add a command, and to declare that there will be no more
        self._stopping = False
        self._pool = ThreadPoolExecutor(PROMPT_THREADS, thread_name_prefix="prompts")
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop

    # --- in the event loop ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Mutates: the thread runs, and reports to the event loop that runs now. Once only. Until `stop`, Python's
        garbage collector passes over what is there now: going through all modules and the engine takes 90 ms."""
        gc.collect()
        gc.freeze()
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Mutates: after the running step the thread ends, and with it what is unfinished."""
        self._command(self._stop)
        await asyncio.to_thread(self._thread.join)
        self._pool.shutdown(wait=False, cancel_futures=True)
        gc.unfreeze()

    async def prepare(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises, called in a thread in which it may take long."""
        return await asyncio.wrap_future(self._pool.submit(work, *args, **kwargs))

    async def submit(self, submissions: Sequence[Submission]) -> RequestStream:
        """Mutates: all of them wait, or none. Raises ValueError for what can never run, and EngineDeadError.

        Whoever got the stream ends it with `abort` when nobody reads it to its end.
        """
        future = self._call(lambda: self._submit(submissions))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._abort_result)
            raise

    async def inspect(self, question: Callable[[Engine], T]) -> T:
        """What `question`, which changes nothing, says of the engine between two steps. Raises EngineDeadError."""
        return await asyncio.wrap_future(self._call(lambda: question(self._engine)))

    def abort(self, stream: RequestStream) -> None:
        """Mutates: what of it is not finished will end. Also for a stream that is finished, and in any thread."""
        if not stream.finished:
            self._command(lambda: self._driver.abort(stream.collectors))

    def abort_all(self) -> None:
        """Mutates: every request that is under way now will end."""
        self._command(lambda: self._driver.abort(list(self._streams)))

    def _abort_result(self, future: "Future[RequestStream]") -> None:
        if not future.cancelled() and future.exception() is None:
            self.abort(future.result())

    def _call(self, work: Callable[[], T]) -> "Future[T]":
        """What `work`, run by the thread, returns or raises."""
        future: Future[T] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if self.error is not None:
                future.set_exception(self.error)
                return
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        if not self._command(command):
            command()
        return future

    def _command(self, command: Callable[[], None]) -> bool:
        """Mutates: the thread will run it. False: there is no thread any more."""
        with self._open:
            if self.error is not None:
                return False
            self._commands.put(command)
            return True

    # --- in the engine's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        """Commands, then a step, until told to stop."""
        reason = "the engine was stopped"
        try:
            while True:
                self._obey()
                if self._stopping:
                    break
                if self._driver.is_busy:
                    self._report(self._driver.step())
        except BaseException as error:
            reason = f"the engine has failed: {type(error).__name__}: {error}"
            logger.critical("the engine's thread ends", exc_info=error)
        finally:
            self._close(EngineDeadError(reason))

    def _obey(self) -> None:
        """Mutates: every command that is there; without requests the first one is waited for."""
        if not self._driver.is_busy:
            self._commands.get()()
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def _submit(self, submissions: Sequence[Submission]) -> RequestStream:
        collectors = self._driver.submit(
            [one.prompt for one in submissions],
            [one.params for one in submissions],
            [one.priority for one in submissions],
            [one.adapter for one in submissions],
            [one.request_id for one in submissions],
        )
        stream = RequestStream(collectors)
        self._streams.update(dict.fromkeys(collectors, stream))
        if self._observer is not None:
            for name in stream.sequences:
                self._observer.arrived(name)
        return stream

    def _report(self, news: dict[Collector, list[Update]]) -> None:
        """Mutates the streams, in the event loop, which is woken once."""
        if self._observer is not None:
            self._observer.stepped(chain.from_iterable(news.values()), idle=not self._driver.is_busy)
        if not news:
            return
        delivery = [(self._streams[collector], updates) for collector, updates in news.items()]
        for collector in news:
            if collector.finished:
                del self._streams[collector]

        def deliver() -> None:
            for stream, updates in delivery:
                stream.put(updates)

        self._loop.call_soon_threadsafe(deliver)

    def _stop(self) -> None:
        self._stopping = True

    def _close(self, error: EngineDeadError) -> None:
        """Mutates: whoever waits learns that nothing will come."""
        with self._open:
            self.error = error
        streams = set(self._streams.values())

        def fail() -> None:
            for stream in streams:
                stream.fail(error)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(fail)
        while not self._commands.empty():
            with suppress(Exception):  # what still aborts meets an engine that may be in any state
                self._commands.get()()
