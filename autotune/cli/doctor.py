"""Checks of this machine: can trials run here, and if not, what to do."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import psutil
from rich.text import Text

from autotune import __version__, hardware
from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import Column, print_csv, print_json, print_table
from autotune.cli.options import Format
from autotune.cli.studies import opened
from autotune.errors import ResourceError, StorageError
from autotune.evaluators import op_cache
from autotune.report import units
from autotune.storage import DEFAULT_URL, shown

_PACKAGES = ("torch", "deepspeed", "ray", "optuna", "stable-baselines3", "numpy", "typer")
_LEAST_PYTHON = (3, 11)
_DISK_WARN_BYTES, _DISK_FAIL_BYTES = 5e9, 5e8
"""A rank's log is bounded to about 8 MB, compiled ops take about 50 MB each; datasets and caches are the user's."""
_SHARED_MEMORY_WARN_BYTES = 2.5e8
"""Ray's object store for trials (80 MiB) and gloo's buffers live there."""
_DEFAULT_MASTER_PORT = 29500
"""Of torch's and DeepSpeed's launchers; autotune takes free ports instead."""


class Status(StrEnum):
    """What came of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_STYLES = {Status.OK: "good", Status.WARN: "yellow", Status.FAIL: "bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's."""

    check: str
    status: Status
    detail: str
    advice: str = ""


def examine(*, url: str | None, start_ray: bool, form: Format) -> int:
    """Print every check; return the exit code."""
    findings = [finding for check in _checks(url, start_ray=start_ray) for finding in check()]
    failures = sum(finding.status is Status.FAIL for finding in findings)
    if form is Format.TABLE:
        _print(findings, failures)
    else:
        rows = [asdict(finding) for finding in findings]
        print_json(rows) if form is Format.JSON else print_csv(rows)
    return ExitCode.NO_RESULT if failures else ExitCode.OK


def _checks(url: str | None, *, start_ray: bool) -> list[Callable[[], Iterator[Finding]]]:
    return [
        _python,
        _packages,
        _hardware,
        _torch_build,
        _compiler,
        _op_cache,
        lambda: _storage(url),
        _disk,
        _shared_memory,
        _network,
        lambda: _ray(start=start_ray),
    ]


def _print(findings: list[Finding], failures: int) -> None:
    console = make_console()
    columns: list[Column[Finding]] = [
        Column(title="", cell=lambda finding: Text(finding.status, style=_STYLES[finding.status])),
        Column(title="Check", cell=lambda finding: finding.check),
        Column(title="Found", cell=lambda finding: finding.detail, wraps=True),
        Column(title="What to do", cell=lambda finding: finding.advice, wraps=True),
    ]
    print_table(console, columns, findings)
    write(console, "")
    warnings = sum(finding.status is Status.WARN for finding in findings)
    if failures:
        write(console, Text(f"{units.count(failures, 'failure')}, {units.count(warnings, 'warning')}", style="bad"))
    else:
        write(console, f"no failure, {units.count(warnings, 'warning')}")


def _python() -> Iterator[Finding]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    good = sys.version_info[:2] >= _LEAST_PYTHON
    detail = f"autotune {__version__}, Python {version}, {sys.executable}"
    yield Finding(check="python", status=Status.OK if good else Status.FAIL, detail=detail)


def _packages() -> Iterator[Finding]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                check="packages", status=Status.FAIL, detail=f"{name} is missing", advice=f"pip install {name}"
            )
    yield Finding(check="packages", status=Status.OK, detail=", ".join(found))


def _hardware() -> Iterator[Finding]:
    here = hardware.detect()
    devices = f"{here.device_count} x " if here.accelerator == "cuda" else ""
    usable = len(os.sched_getaffinity(0))
    free = units.memory(psutil.virtual_memory().available)
    detail = (
        f"{devices}{here.device_name}, {usable} of {units.count(here.cpu_count, 'processor')} usable, "
        f"{free} of {units.memory(here.host_memory_bytes)} memory free"
    )
    yield Finding(check="hardware", status=Status.OK, detail=detail)


def _torch_build() -> Iterator[Finding]:
    """A torch without CUDA on a machine with a GPU fails late, in the first trial."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    if hardware.detect().accelerator == "cuda" and version.endswith("+cpu"):
        yield Finding(
            check="torch",
            status=Status.FAIL,
            detail=f"there is a GPU, but torch {version} is built for CPUs",
            advice="install torch for CUDA, or set hardware: {accelerator: cpu} in the campaign",
        )


def _compiler() -> Iterator[Finding]:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    ninja = shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))
    for name, where, package in (("C++ compiler", compiler, "g++"), ("ninja", ninja, "ninja")):
        if where:
            yield Finding(check=name, status=Status.OK, detail=where)
        else:
            yield Finding(
                check=name,
                status=Status.WARN,
                detail="not found; DeepSpeed compiles its optimizers and collectives with it",
                advice=f"install {package}, or use torch's optimizer (torch_adam: true)",
            )
    if hardware.detect().accelerator == "cuda" and not (os.environ.get("CUDA_HOME") or shutil.which("nvcc")):
        yield Finding(
            check="CUDA toolkit",
            status=Status.WARN,
            detail="no nvcc and no CUDA_HOME; DeepSpeed's fused optimizers can't be compiled",
            advice="install the CUDA toolkit of torch's version, or use torch_adam: true",
        )


def _op_cache() -> Iterator[Finding]:
    device = hardware.detect().accelerator
    try:
        folder = op_cache.directory(device)
    except importlib.metadata.PackageNotFoundError:
        return  # told by the check of packages
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        advice = f"make it writable, or set {op_cache.ROOT_VARIABLE} to a folder that is"
        yield Finding(check="op cache", status=Status.FAIL, detail=f"{existing} can't be written to", advice=advice)
        return
    built = sorted(path.parent.name for path in folder.glob("*/*.so"))
    yield Finding(check="op cache", status=Status.OK, detail=f"{folder}: {', '.join(built) or 'nothing compiled yet'}")
    for lock in folder.glob("*/lock"):
        yield Finding(
            check="op cache",
            status=Status.WARN,
            detail=f"{lock}: a build is under way, or was killed",
            advice="nothing: the next launch removes it if its builder is gone",
        )


def _storage(url: str | None) -> Iterator[Finding]:
    try:
        with opened(url) as storage:
            detail = f"{shown(storage.url)}: {len(storage.names())} in it"
        yield Finding(check="storage", status=Status.OK, detail=detail)
    except StorageError as error:
        if url is None and os.access(Path.cwd(), os.W_OK):
            detail = f"{DEFAULT_URL}: none here yet; the first launch makes it"
            yield Finding(check="storage", status=Status.OK, detail=detail)
        else:
            advice = "correct --storage, or make the folder or server reachable"
            yield Finding(check="storage", status=Status.FAIL, detail=str(error), advice=advice)


def _disk() -> Iterator[Finding]:
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


def _shared_memory() -> Iterator[Finding]:
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


def _network() -> Iterator[Finding]:
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


def _ray(*, start: bool) -> Iterator[Finding]:
    try:
        from autotune.runners import ray_runner
    except Exception as error:  # noqa: BLE001 - an installation can break in any way, and that is what is looked for
        yield Finding(
            check="ray",
            status=Status.FAIL,
            detail=f"can't be imported: {type(error).__name__}: {error}",
            advice="pip install --force-reinstall 'ray[default]', or set runner: local in the campaign",
        )
        return
    if not start:
        yield Finding(check="ray", status=Status.OK, detail="can be imported; --start-ray starts it for a moment")
        return
    try:
        cluster = ray_runner.describe_cluster()
    except ResourceError as error:
        yield Finding(check="ray", status=Status.FAIL, detail=str(error), advice="or set runner: local in the campaign")
        return
    yield Finding(check="ray", status=Status.OK, detail=f"started in {units.seconds(cluster.connect_s)}: {cluster}")
