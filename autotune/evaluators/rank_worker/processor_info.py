"""What py-cpuinfo says of this processor, asked once and kept: the question costs 2 seconds in every process.

DeepSpeed asks it while it loads an op (`deepspeed/ops/op_builder/builder.py`) and in `deepspeed/ops/adam/cpu_adam.py`.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

FILE_NAME = "cpuinfo.json"


def install(folder: Path) -> None:
    """Put a `cpuinfo` module in place whose `get_cpu_info` answers from `folder`, asking py-cpuinfo the first time.

    The folder belongs to one kind of processor (`autotune.evaluators.op_cache.directory`), so the answer never ages.
    """
    information = _read(folder / FILE_NAME)
    if information is None:
        information = _ask()
        _write(folder / FILE_NAME, information)
    module = types.ModuleType("cpuinfo", "py-cpuinfo's answer, kept by autotune")
    module.get_cpu_info = lambda: dict(information)  # type: ignore[attr-defined]
    sys.modules["cpuinfo"] = module


def _read(path: Path) -> dict[str, Any] | None:
    try:
        information = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return information if isinstance(information, dict) and "arch" in information else None


def _ask() -> dict[str, Any]:
    from cpuinfo import get_cpu_info  # type: ignore[import-untyped]

    information: dict[str, Any] = get_cpu_info()
    return information


def _write(path: Path, information: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(information))
    partial.replace(path)
