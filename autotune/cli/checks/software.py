"""Checks of what is installed: Python, packages and how they go together, compiler, CUDA, Ray."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from autotune import __version__, hardware
from autotune.cli.checks.finding import Finding, Status
from autotune.errors import ResourceError
from autotune.report import units

_PACKAGES = ("torch", "deepspeed", "ray", "optuna", "stable-baselines3", "numpy", "typer")
_OF_SCRIPTS = ("transformers", "accelerate")
"""What users' scripts often need; nothing is wrong where they are missing."""
_BESIDE_SCRIPTS = ("accelerate", "deepspeed", "torch")
_LEAST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken:
    """Versions that are known not to go together."""

    first: tuple[str, str]
    """Package and versions."""
    second: tuple[str, str]
    reason: str
    advice: str


_KNOWN_BROKEN = (
    _Broken(
        first=("deepspeed", "<0.14.4"),
        second=("torch", ">=2.4"),
        reason="import deepspeed fails: cannot import name 'log' (DeepSpeed#5337, #5603)",
        advice="pip install 'deepspeed>=0.16'",
    ),
    _Broken(
        first=("deepspeed", "<0.14.5"),
        second=("numpy", ">=2"),
        reason="import deepspeed fails: cannot import name 'BUFSIZE' from numpy (DeepSpeed#5671)",
        advice="pip install 'deepspeed>=0.16'",
    ),
)
"""Each with the thread in which its users and maintainers say so."""


def python() -> Iterator[Finding]:
    """Say which Python and autotune run."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    good = sys.version_info[:2] >= _LEAST_PYTHON
    detail = f"autotune {__version__}, Python {version}, {sys.executable}"
    yield Finding(check="python", status=Status.OK if good else Status.FAIL, detail=detail)


def packages() -> Iterator[Finding]:
    """Say which versions are installed, and which packages are missing."""
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                check="packages", status=Status.FAIL, detail=f"{name} is missing", advice=f"pip install {name}"
            )
    yield Finding(check="packages", status=Status.OK, detail=", ".join(found))
    others = [f"{name} {version}" for name in _OF_SCRIPTS if (version := _version(name)) is not None]
    if others:
        yield Finding(check="packages", status=Status.OK, detail=f"for scripts: {', '.join(others)}")


def combinations() -> Iterator[Finding]:
    """Find versions that don't go together: those known to be broken, and what a package itself asks for."""
    for broken in _KNOWN_BROKEN:
        if _is_in(*broken.first) and _is_in(*broken.second):
            pair = " with ".join(f"{name} {_version(name)}" for name, _ in (broken.first, broken.second))
            yield Finding(check="versions", status=Status.FAIL, detail=f"{pair}: {broken.reason}", advice=broken.advice)
    for name in _OF_SCRIPTS:
        for requirement in _requirements(name):
            version = _version(requirement.name)
            if version is None or requirement.specifier.contains(version, prereleases=True):
                continue
            yield Finding(
                check="versions",
                status=Status.WARN,
                detail=f"{name} {_version(name)} asks for {requirement.name}{requirement.specifier}; here: {version}",
                advice=f"pip install '{requirement.name}{requirement.specifier}'",
            )


def torch_build() -> Iterator[Finding]:
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


def compiler() -> Iterator[Finding]:
    """Look for what DeepSpeed compiles its ops with."""
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


def ray(*, start: bool) -> Iterator[Finding]:
    """Import Ray, and start it where that is wanted."""
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


def cuda_toolkit() -> Iterator[Finding]:
    """DeepSpeed refuses to compile with an nvcc of another major version than torch's CUDA.

    After `assert_no_cuda_mismatch` in deepspeed/ops/op_builder/builder.py.
    """
    ours, theirs = _torch_cuda(), _nvcc()
    if hardware.detect().accelerator != "cuda" or ours is None or theirs is None:
        return
    if ours.split(".")[0] == theirs.split(".")[0]:
        yield Finding(check="CUDA toolkit", status=Status.OK, detail=f"nvcc {theirs}, torch's CUDA {ours}")
        return
    yield Finding(
        check="CUDA toolkit",
        status=Status.WARN,
        detail=f"nvcc is of CUDA {theirs}, torch of CUDA {ours}: DeepSpeed won't compile its ops",
        advice=f"install the toolkit of CUDA {ours} and set CUDA_HOME, or use torch_adam: true",
    )


def _torch_cuda() -> str | None:
    """Return the CUDA version that torch was built for, without loading torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda\b.*=\s*'([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else None


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    program = str(Path(home) / "bin" / "nvcc") if home else shutil.which("nvcc")
    if program is None:
        return None
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    match = re.search(r"release ([\d.]+)", answer.stdout)
    return match[1] if match else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_in(name: str, versions: str) -> bool:
    version = _version(name)
    return version is not None and SpecifierSet(versions).contains(version, prereleases=True)


def _requirements(name: str) -> Iterator[Requirement]:
    """Return what a package asks for of the libraries that its scripts use, its extras' wishes included."""
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    seen = set()
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        key = (requirement.name, str(requirement.specifier))
        if requirement.name in _BESIDE_SCRIPTS and requirement.specifier and key not in seen:
            seen.add(key)
            yield requirement
