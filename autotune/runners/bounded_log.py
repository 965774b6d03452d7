"""A log that can't grow without end: the beginning of a process's output in a file, and its last lines in memory."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import IO

FILE_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 64 * 1024
TAIL_LINES = 40
LINE_CHARACTERS = 500
CLOSE_WAIT_S = 1.0


class BoundedLog:
    """Reads a pipe to its end in a thread of its own, so that the writer never blocks.

    The file holds the first 8 MiB. What comes later is counted, and its last 64 KiB are appended when the log closes.
    """

    def __init__(self, pipe: IO[bytes], path: Path) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._seen_bytes = 0
        self._file = path.open("wb")
        self._reader = threading.Thread(target=self._read, name=f"log of {path}", daemon=True)
        self._reader.start()

    def tail(self) -> tuple[str, ...]:
        """Return the last lines of what was read so far."""
        with self._lock:
            text = b"".join(self._tail).decode(errors="replace")
        return tuple(line[:LINE_CHARACTERS] for line in text.splitlines()[-TAIL_LINES:])

    def close(self) -> None:
        """Wait a moment for the end of the pipe, then finish the file; idempotent."""
        self._reader.join(timeout=CLOSE_WAIT_S)
        with self._lock:
            if self._file.closed:
                return
            left_out = self._seen_bytes - FILE_BYTES
            if left_out > 0:
                end = b"".join(self._tail)[-left_out:]
                gap = left_out - len(end)
                self._file.write((b"\n... %d bytes left out ...\n" % gap if gap else b"") + end)
            self._file.close()

    def _read(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), TAIL_BYTES):
                self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        with self._lock:
            room = FILE_BYTES - self._seen_bytes
            if room > 0 and not self._file.closed:
                self._file.write(chunk[:room])
                self._file.flush()
            self._seen_bytes += len(chunk)
            self._tail.append(chunk)
            self._tail_bytes += len(chunk)
            while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                self._tail_bytes -= len(self._tail.popleft())
