"""This process's connection to Ray: a cluster started here, one joined at an address, or one it already had."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayError

from autotune import sizes
from autotune.errors import ResourceError
from autotune.runners.cluster import Cluster, Node
from autotune.runners.process_state import own_signals, quiet, ray_variables, restore_ray_variables
from autotune.runners.reaper import Reaper

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Of a cluster started here: trials pass configurations and results, kilobytes. Ray's own default is 30 % of the
memory; it refuses less than 75 MiB (`OBJECT_STORE_MINIMUM_MEMORY_BYTES` in ray/_private/ray_constants.py)."""
CONNECT_TIMEOUT_S = 5.0
"""For the first sign of life of an address; Ray itself tries for more than a minute, then ends the process."""
_LARGEST_COUNT = 3


def describe_cluster(address: str | None = None) -> Cluster:
    """Look at what Ray has: at `address`, or on this machine, by starting Ray here and ending it again.

    Raises:
        ResourceError: when Ray can't be started or reached.
    """
    session = RaySession(address)
    try:
        session.open()
        return session.cluster()
    finally:
        session.close()


class RaySession:
    """This process's connection to Ray: a cluster started here, one joined at an address, or one it already had.

    Open and close it in one thread that lives as long as the session: a cluster started here is tied by the kernel to
    the life of that thread, so that it ends with this process however that dies.

    Args:
        address: 'host:port' of a running cluster, or 'auto' for the one that runs on this machine; None starts one
            here, whatever RAY_ADDRESS says.
        code: a folder that is sent to the nodes; the processes there start in a copy of it, with it on their path.
        excluded: what is not sent of it, in the notation of .gitignore.
        environment: environment variables of every process that is started on the nodes.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        code: str | None = None,
        excluded: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self._address = address
        self._runtime_env: dict[str, Any] = {}
        if code is not None:
            self._runtime_env |= {"working_dir": code, "excludes": list(excluded)}
        if environment:
            self._runtime_env["env_vars"] = dict(environment)
        self._connect_s = 0.0
        self._ours = False
        self._environment: dict[str, str] = {}
        self._reaper = Reaper()

    def open(self) -> None:
        """Connect.

        Raises:
            ResourceError: when that fails.
        """
        started = time.monotonic()
        if ray.is_initialized():
            self._share()
        else:
            self._environment = ray_variables()
            self._ours = True  # also when it fails or is interrupted half-way
            try:
                with own_signals(), quiet():
                    self._connect()
            except (RayError, OSError, RuntimeError, ValueError) as error:
                self.close()
                where = f"reached at {self._address}" if self._address else "started on this machine"
                advice = _token_advice(error) + _size_advice(error, self.code)
                raise ResourceError(f"ray: it can't be {where}: {cause(error)}{advice}") from error
        self._connect_s = time.monotonic() - started

    def cluster(self) -> Cluster:
        """Return the nodes that are alive now."""
        nodes = [
            Node(
                node_id=node["NodeID"],
                address=node["NodeManagerAddress"],
                cpu_count=node["Resources"].get("CPU", 0.0),
                gpu_count=node["Resources"].get("GPU", 0.0),
                memory_bytes=int(node["Resources"].get("memory", 0)),
                object_store_bytes=int(node["Resources"].get("object_store_memory", 0)),
                port=int(node["NodeManagerPort"]),
                labels=node.get("Labels", {}),
            )
            for node in ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"]
        ]
        return Cluster(
            nodes=tuple(sorted(nodes, key=lambda node: node.address)),
            ray_version=ray.__version__,
            address=ray.get_runtime_context().gcs_address,
            connect_s=self._connect_s,
        )

    def close(self) -> None:
        """Disconnect, and end the cluster if it was started here; idempotent."""
        if self._ours:
            ray.shutdown()
            self._reaper.close()
            restore_ray_variables(self._environment)
            self._ours = False

    def _share(self) -> None:
        address = ray.get_runtime_context().gcs_address
        if self._address not in (None, "auto", address):
            raise ResourceError(
                f"ray: asked for the cluster at {self._address}, but this process is connected to {address}; "
                "call ray.shutdown() first, or give that address"
            )
        if self._runtime_env:
            raise ResourceError(
                f"ray: this process is connected to {address} already, so code and environment can't be sent any more; "
                "call ray.shutdown() first, or leave out ship_code and environment"
            )
        logger.info("using the Ray cluster that this process is connected to, at %s", address)

    def _connect(self) -> None:
        if self._address is None:
            ray.init(
                address="local",
                num_cpus=_restricted_cpu_count(),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                configure_logging=False,
                log_to_driver=False,
                runtime_env=self._runtime_env or None,
            )
            self._reaper.start(psutil.Process().children(recursive=True))
        else:
            _check_reachable(self._address)
            ray.init(
                address=self._address,
                configure_logging=False,
                log_to_driver=False,
                runtime_env=self._runtime_env or None,
            )


def _token_advice(error: BaseException) -> str:
    """Return what to do where a cluster wants a token: Ray says so deep in a chain of errors, as text."""
    chain: BaseException | None = error
    while chain is not None:
        if "AuthenticationError" in f"{type(chain).__name__}: {chain}":
            return (
                ". The cluster wants a token: set RAY_AUTH_MODE=token in the environment, with the cluster's token in "
                "~/.ray/auth_token or RAY_AUTH_TOKEN"
            )
        chain = chain.__cause__
    return ""


def _size_advice(error: BaseException, code: str | None) -> str:
    """Return what to do where Ray finds the code too large to send (`_store_package_in_gcs` in its packaging.py)."""
    if code is None or "exceeds the maximum size" not in str(error):
        return ""
    largest = sorted(((_size_bytes(path), path.name) for path in Path(code).iterdir()), reverse=True)[:_LARGEST_COUNT]
    listed = ", ".join(f"{name} ({sizes.text(size)})" for size, name in largest)
    return (
        f". ship_code sends {code}; the largest in it: {listed}. Name what trials don't need in its .rayignore (as in "
        "a .gitignore), or put code and data where every node reads them, and leave ship_code out"
    )


def _size_bytes(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(_size_bytes(each) for each in path.iterdir())


def cause(error: BaseException) -> str:
    """Return an error's words on one line; Ray's are paragraphs."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def _restricted_cpu_count() -> int | None:
    """Return how many processors this process may use; None where that is all, and Ray's own count is as good."""
    usable = len(os.sched_getaffinity(0))
    return usable if usable < (os.cpu_count() or usable) else None


def _check_reachable(address: str) -> None:
    """Fail at once for an address where nothing listens.

    Raises:
        ResourceError: when that is so, or the address is of a kind that autotune does not use.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise ResourceError(
            f"ray address: got {address!r}; give 'host:port' as `ray start` prints it (6379 by default) on a machine "
            "of the cluster, or 'auto'"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ResourceError(
            f"ray address: nothing answers at {address} ({error}); `ray status` on the cluster shows whether it runs, "
            "`ray start --head` starts one, and no address at all uses this machine alone"
        ) from error
