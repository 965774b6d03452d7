"""Settings that hold for every test."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.postgres import Server

# Small models and two cores: more threads than one only get in each other's way (before numpy and torch load).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where the tests run in the background of a shell, Ctrl-C is ignored, and the processes that they start inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for the whole session; whoever stops it starts it again."""
    server = Server()
    yield server
    server.close()
