"""The state of this process that Ray changes when it starts (signals, log levels, environment), kept as it was."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep this process's SIGTERM handler: Ray sets one that ends the process by its own rules."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None:  # None: set by something that is not Python
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back Ray's messages below errors while it starts; later ones go where the application sends them."""
    ray_logger = logging.getLogger("ray")
    level = ray_logger.level
    ray_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray_logger.setLevel(level)


def ray_variables() -> dict[str, str]:
    """Return the environment variables that Ray reads and sets."""
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_") or name == "PYTHONBREAKPOINT"}


def restore_ray_variables(before: Mapping[str, str]) -> None:
    """Undo what Ray set in this process's environment: it would decide how the next session starts."""
    for name in ray_variables():
        if name not in before:
            del os.environ[name]
    os.environ.update(before)
