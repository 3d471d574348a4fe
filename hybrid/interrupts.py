"""Interrupts: Ctrl-C waits for the end of the step, so that no ledger is left half written."""

import signal
import threading
from types import FrameType, TracebackType

IMPATIENT = 3  # so many presses within one step end the program where it stands


class DeferredInterrupts:
    """A context at whose end SIGINT becomes KeyboardInterrupt, no sooner. Outside the main thread it does nothing."""

    def __init__(self) -> None:
        self._pressed = 0
        self._installed = False

    def __enter__(self) -> "DeferredInterrupts":
        # Only Python's own handler is replaced: a program that handles the signal itself goes on doing so.
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
        if kind is None:
            self.check()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pressed += 1
        if self._pressed >= IMPATIENT:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed since the last time."""
        if self._pressed:
            self._pressed = 0
            raise KeyboardInterrupt
