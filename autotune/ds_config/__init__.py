"""DeepSpeed configuration files: read one, check it, say what it sets, lay a trial's settings over it, write it.

Keys that are not searched come out exactly as they went in; only dotted keys in `settings` are touched.
"""

from autotune.ds_config.building import build, complete
from autotune.ds_config.files import parse, read, write
from autotune.ds_config.findings import Finding, Severity, Target
from autotune.ds_config.linting import Report, Verdict, lint
from autotune.ds_config.settings import (
    ACTIVATION_CHECKPOINTING,
    LEARNING_RATE,
    OFFLOAD,
    PRECISION,
    STAGE,
    check_stage,
    get,
    precision_of,
    settings_of,
    without_auto,
)

__all__ = [
    "ACTIVATION_CHECKPOINTING",
    "LEARNING_RATE",
    "OFFLOAD",
    "PRECISION",
    "STAGE",
    "Finding",
    "Report",
    "Severity",
    "Target",
    "Verdict",
    "build",
    "check_stage",
    "complete",
    "get",
    "lint",
    "parse",
    "precision_of",
    "read",
    "settings_of",
    "without_auto",
    "write",
]
