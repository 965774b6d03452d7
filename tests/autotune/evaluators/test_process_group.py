"""Ranks wait for rank 0's store by looking often, and leave the complaint to torch where it never comes."""

import socket
import threading
import time

import pytest

from autotune.evaluators.rank_worker.process_group import wait_for_store


@pytest.fixture
def store(monkeypatch) -> socket.socket:
    """Return a socket on the port of MASTER_PORT, on which nobody listens yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(bound.getsockname()[1]))
        yield bound


def test_it_waits_until_the_store_listens(store):
    listening = []

    def listen():
        time.sleep(0.1)
        listening.append(True)
        store.listen()

    thread = threading.Thread(target=listen)
    thread.start()
    wait_for_store(timeout_s=60)
    assert listening
    thread.join()


def test_it_gives_up_without_a_word(store):
    begun_s = time.monotonic()
    wait_for_store(timeout_s=0.05)
    assert time.monotonic() - begun_s >= 0.05
