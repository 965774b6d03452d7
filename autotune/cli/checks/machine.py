"""Checks of the machine: processors, GPUs and who uses them, disk, shared memory, open files, ports."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from autotune import hardware
from autotune.cli.checks.finding import Finding, Status
from autotune.hardware import Gpu
from autotune.report import units

_DISK_WARN_BYTES, _DISK_FAIL_BYTES = 5e9, 5e8
"""A rank's log is bounded to about 8 MB, compiled ops take about 50 MB each; datasets and caches are the user's."""
_SHARED_MEMORY_WARN_BYTES = 2.5e8
"""Ray's object store for trials (80 MiB) and gloo's buffers live there."""
_OPEN_FILES_WARN_COUNT = 1024
"""The usual soft limit of a login; Ray, data loaders and sockets of a trial take some hundreds."""
_GPU_FREE_WARN = 0.9
"""A trial that finds less than this free measures another's memory too."""
_DEFAULT_MASTER_PORT = 29500
"""Of torch's and DeepSpeed's launchers; autotune takes free ports instead."""


def processors() -> Iterator[Finding]:
    """Say what trials run on."""
    here = hardware.detect()
    devices = f"{here.device_count} x " if here.accelerator == "cuda" else ""
    usable = len(os.sched_getaffinity(0))
    free = units.memory(psutil.virtual_memory().available)
    detail = (
        f"{devices}{here.device_name}, {usable} of {units.count(here.cpu_count, 'processor')} usable, "
        f"{free} of {units.memory(here.host_memory_bytes)} memory free"
    )
    yield Finding(check="hardware", status=Status.OK, detail=detail)


def gpus(found: Sequence[Gpu] | None = None) -> Iterator[Finding]:
    """Say which GPUs have their memory free, and who uses the others."""
    for gpu in hardware.gpus() if found is None else found:
        users = ", ".join(f"process {pid}" for pid in gpu.pids)
        is_free = gpu.free_bytes >= _GPU_FREE_WARN * gpu.memory_bytes and not gpu.pids
        yield Finding(
            check=f"GPU {gpu.index}",
            status=Status.OK if is_free else Status.WARN,
            detail=f"{gpu.name}, {units.memory(gpu.free_bytes)} of {units.memory(gpu.memory_bytes)} free"
            + (f"; used by {users}" if users else ""),
            advice="" if is_free else "wait, end what uses it, or leave it out: CUDA_VISIBLE_DEVICES",
        )


def disk() -> Iterator[Finding]:
    """Say how much room there is here and for temporary files."""
    for what, folder in (("here", Path.cwd()), ("temporary", Path(os.environ.get("TMPDIR", "/tmp")))):  # noqa: S108
        free_bytes = shutil.disk_usage(folder).free
        status = Status.OK
        if free_bytes < _DISK_WARN_BYTES:
            status = Status.FAIL if free_bytes < _DISK_FAIL_BYTES else Status.WARN
        yield Finding(
            check=f"disk {what}",
            status=status,
            detail=f"{units.memory(free_bytes)} free at {folder}",
            advice="" if status is Status.OK else "make room: logs, compiled ops and Ray's session files go there",
        )


def shared_memory() -> Iterator[Finding]:
    """Say how large /dev/shm is; containers often get 64 MB."""
    folder = Path("/dev/shm")  # noqa: S108 - a mount, nothing is written
    if not folder.exists():
        return
    free_bytes = shutil.disk_usage(folder).free
    good = free_bytes >= _SHARED_MEMORY_WARN_BYTES
    yield Finding(
        check="shared memory",
        status=Status.OK if good else Status.WARN,
        detail=f"{units.memory(free_bytes)} free at {folder}",
        advice="" if good else "in a container: --shm-size=1g or more",
    )


def open_files() -> Iterator[Finding]:
    """Say how many files a process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = soft == resource.RLIM_INFINITY or soft >= _OPEN_FILES_WARN_COUNT
    most = "any number" if hard == resource.RLIM_INFINITY else str(hard)
    yield Finding(
        check="open files",
        status=Status.OK if is_enough else Status.WARN,
        detail="no limit" if soft == resource.RLIM_INFINITY else f"{soft} at a time",
        advice="" if is_enough else f"ulimit -n {8 * _OPEN_FILES_WARN_COUNT} (allowed: {most})",
    )


def network() -> Iterator[Finding]:
    """Look for ports on the loopback interface, and whether this host's name has an address."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        yield Finding(check="ports", status=Status.OK, detail=f"127.0.0.1 gives free ports, such as {port}")
    except OSError as error:
        advice = "ranks meet on 127.0.0.1; check the loopback interface and firewall"
        yield Finding(check="ports", status=Status.FAIL, detail=f"no port on 127.0.0.1: {error}", advice=advice)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(("127.0.0.1", _DEFAULT_MASTER_PORT)) == 0:
            yield Finding(
                check="ports",
                status=Status.OK,
                detail=f"{_DEFAULT_MASTER_PORT} (the default of torch's launchers) is in use; trials don't need it",
            )
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        yield Finding(
            check="host name",
            status=Status.WARN,
            detail=f"{name} has no address ({error}); Ray and gloo look it up",
            advice=f"add a line '127.0.1.1 {name}' to /etc/hosts",
        )
