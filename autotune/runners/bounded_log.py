"""A log that can't grow without end: the beginning of a process's output in a file, and its last lines in memory."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

FILE_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 64 * 1024
TAIL_LINES = 40
LINE_CHARACTERS = 500
CLOSE_WAIT_S = 1.0
_PYTHON_WARNING = re.compile(r"\S.*:\d+: \w*Warning: ")
"""The first line that `warnings.formatwarning` gives; the source line follows, indented."""

logger = logging.getLogger(__name__)


class BoundedLog:
    """Reads a pipe to its end in a thread of its own, so that the writer never blocks.

    The file holds the first 8 MiB. What comes later is counted, and its last 64 KiB are appended when the log closes.
    Where the file can't be written (a full disk), the pipe is read on, and the last lines are there all the same.
    """

    def __init__(self, pipe: IO[bytes], path: Path) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._seen_bytes = 0
        self._path = path
        self._file: io.FileIO | None = self._opened()
        self._reader = threading.Thread(target=self._read, name=f"log of {path}", daemon=True)
        self._reader.start()

    def tail(self) -> tuple[str, ...]:
        """Return the last lines of what was read so far; what is repeated among them stands once, with a count."""
        with self._lock:
            text = b"".join(self._tail).decode(errors="replace")
        return tuple(_without_repetitions(text.splitlines())[-TAIL_LINES:])

    def close(self) -> None:
        """Wait a moment for the end of the pipe, then finish the file; idempotent."""
        self._reader.join(timeout=CLOSE_WAIT_S)
        with self._lock:
            left_out = self._seen_bytes - FILE_BYTES
            if left_out > 0:
                end = b"".join(self._tail)[-left_out:]
                gap = left_out - len(end)
                self._write((b"\n... %d bytes left out ...\n" % gap if gap else b"") + end)
            if self._file is not None:
                self._file.close()
                self._file = None

    def _read(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), TAIL_BYTES):
                self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        with self._lock:
            room = FILE_BYTES - self._seen_bytes
            if room > 0:
                self._write(chunk[:room])
            self._seen_bytes += len(chunk)
            self._tail.append(chunk)
            self._tail_bytes += len(chunk)
            while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                self._tail_bytes -= len(self._tail.popleft())

    def _opened(self) -> io.FileIO | None:
        try:
            return io.FileIO(self._path, "wb")
        except OSError as error:
            self._warn(error)
            return None

    def _write(self, text: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._warn(error)
            self._file.close()
            self._file = None

    def _warn(self, error: OSError) -> None:
        logger.warning("the log %s can't be written: %s; only its last lines are kept", self._path, error.strerror)


def _without_repetitions(lines: Sequence[str]) -> list[str]:
    """Return lines, cut to their length, each Python warning once and equal lines in a row once, with their counts.

    Other lines that occur again further on stay: in a traceback each has its place.
    """
    kept: list[str] = []
    counts: list[int] = []
    warnings: dict[str, int] = {}
    repeated: int | None = None
    for line in lines:
        if repeated is not None and kept[repeated + 1 : repeated + 2] == [line]:  # the source line of that warning
            continue
        repeated = warnings.get(line)
        place = len(kept) - 1 if repeated is None else repeated
        if kept and kept[place] == line:
            counts[place] += 1
            continue
        if _PYTHON_WARNING.match(line):
            warnings[line] = len(kept)
        kept.append(line)
        counts.append(1)
    return [_counted(*each) for each in zip(kept, counts, strict=True)]


def _counted(line: str, count: int) -> str:
    told = f" ({count} times)" if count > 1 and line.strip() else ""
    return line[: LINE_CHARACTERS - len(told)] + told
