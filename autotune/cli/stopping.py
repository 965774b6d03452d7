"""Ctrl-C and SIGTERM as wishes to stop a study cleanly."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

from autotune.study import StopRequest

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 2
"""Signals that ask; the next one interrupts."""


class StopSignals:
    """While entered, SIGINT and SIGTERM count as wishes to stop; afterwards they do what they did before.

    The first SIGINT lets the running trial end, the second cancels it, a third interrupts. SIGTERM cancels it: who
    sends it (a service manager, a batch system) sends it to Ray's processes too, and SIGKILL soon after. Before
    `trials_run` nothing is lost by an interruption, so the first one interrupts.
    """

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._trials_run = False

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def trials_run(self) -> None:
        """Say that preparation is over."""
        self._trials_run = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if not self._trials_run or self._stop.count >= _PATIENCE:
            raise KeyboardInterrupt
        self._stop()
        while number == signal.SIGTERM and not self._stop.at_once:
            self._stop()
