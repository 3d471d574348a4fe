"""GrammarCompiler: compiles in worker threads, each text once at a time, and keeps what compiled most recently.

Failures are not kept: who asks again compiles again. Knows no requests.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

from hybrid.scheduler.request import GateStatus
from hybrid.structured_outputs import StructuredOutputsParams

from .backend import Grammar, GrammarBackend

NUM_WORKERS = 2
MAX_KEPT = 256
TIMEOUT_SECONDS = 30.0
# Compilers recurse along chains of rules, and a thread that overflows its stack takes the process with it. Virtual
# memory: a page counts once it is used. Twice what the longest chain in a text of the greatest length needs.
STACK_BYTES = 128 * 1024 * 1024


class Compilation:
    """One request's wait for its grammar."""

    def __init__(self, compiler: "GrammarCompiler", params: StructuredOutputsParams, future: "Future[Grammar]") -> None:
        self._compiler = compiler
        self._params = params
        self._future = future
        self._deadline = compiler.clock() + compiler.timeout
        self._error: str | None = None

    def status(self) -> GateStatus:
        """Mutates: FAILED for an error and for a time-out; `error` then says which, and it stays so."""
        if self._error is None and self._future.done():
            failure = self._future.exception()
            if failure is None:
                return GateStatus.READY
            self._error = str(failure)
        elif self._error is None and self._compiler.clock() > self._deadline:
            self._compiler.give_up(self._params, self._future)
            self._error = f"not compiled within {self._compiler.timeout:g} seconds"
        return GateStatus.PENDING if self._error is None else GateStatus.FAILED

    def error(self) -> str:
        """Of a failed one."""
        return self._error or ""

    def grammar(self) -> Grammar:
        """Of a ready one."""
        return self._future.result(timeout=0)


class GrammarCompiler:
    """Thread-safe. `clock` gives seconds; only time-outs depend on it."""

    def __init__(
        self,
        backend: GrammarBackend,
        *,
        num_workers: int = NUM_WORKERS,
        max_kept: int = MAX_KEPT,
        timeout: float = TIMEOUT_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.timeout = timeout
        self.clock = clock
        self._backend = backend
        self._num_workers = num_workers
        self._max_kept = max_kept
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[StructuredOutputsParams, Future[Grammar]] = {}
        self._kept: OrderedDict[StructuredOutputsParams, Future[Grammar]] = OrderedDict()  # latest used last

    def submit(self, params: StructuredOutputsParams) -> Compilation:
        """Mutates: the grammar is compiled, unless it is there. Raises ValueError for what is quickly found wrong."""
        with self._lock:
            future = self._known(params)
        if future is None:
            self._backend.check(params)  # which takes a while for a long text: once for all n sequences of a request
            with self._lock:
                future = self._known(params)
                if future is None:
                    future = Future()
                    self._start(params, future)
                    self._pending[params] = future
        return Compilation(self, params, future)

    def _known(self, params: StructuredOutputsParams) -> "Future[Grammar] | None":
        """Mutates: what is kept was used last."""
        if params in self._kept:
            self._kept.move_to_end(params)
            return self._kept[params]
        return self._pending.get(params)

    def give_up(self, params: StructuredOutputsParams, future: "Future[Grammar]") -> None:
        """Mutates: nobody else will wait for this compilation, and not for the workers that are busy now."""
        with self._lock:
            if self._pending.get(params) is not future:
                return
            del self._pending[params]
            if future.running() and self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
                for queued, other in self._pending.items():
                    if not other.running():
                        self._start(queued, other)

    def _start(self, params: StructuredOutputsParams, future: "Future[Grammar]") -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_workers, thread_name_prefix="grammar")
        before = threading.stack_size(STACK_BYTES)  # of threads started from now on: here, in `submit`
        try:
            self._pool.submit(self._compile, params, future)
        finally:
            threading.stack_size(before)

    def _compile(self, params: StructuredOutputsParams, future: "Future[Grammar]") -> None:
        """Mutates, in a worker: nobody sees the end of a compilation before it is known whether it is kept."""
        with self._lock:
            if future.running() or future.done():  # another worker took it up when the pool was replaced
                return
            future.set_running_or_notify_cancel()
        try:
            grammar = self._backend.compile(params)
        except BaseException as error:  # also a panic, which is no Exception
            self._settle(params, future, keep=False)
            future.set_exception(error)
        else:
            self._settle(params, future, keep=True)
            future.set_result(grammar)

    def _settle(self, params: StructuredOutputsParams, future: "Future[Grammar]", keep: bool) -> None:
        with self._lock:
            if self._pending.get(params) is future:
                del self._pending[params]
            if keep:
                self._kept[params] = future
                self._kept.move_to_end(params)
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
