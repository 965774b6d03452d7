"""DeepSpeed configuration files: read one, check it, say what it sets, lay a trial's settings over it, write it.

Keys that are not searched come out exactly as they went in; only dotted keys in `settings` are touched.
"""

from autotune.dotted import get, leaves
from autotune.ds_config.building import AUTOTUNING, as_sent, build, complete, overlay, without_autotuning
from autotune.ds_config.files import as_base64, parse, read, write
from autotune.ds_config.findings import Finding, Severity, Target
from autotune.ds_config.linting import Report, Verdict, lint
from autotune.ds_config.notation import notation_of, notation_of_yaml, render
from autotune.ds_config.settings import (
    ACTIVATION_CHECKPOINTING,
    AUTO,
    LEARNING_RATE,
    OFFLOAD,
    PRECISION,
    SHARED_BY_TRAINER,
    STAGE,
    check_stage,
    keys_of,
    precision_of,
    settings_of,
    without_auto,
)

__all__ = [
    "ACTIVATION_CHECKPOINTING",
    "AUTO",
    "AUTOTUNING",
    "LEARNING_RATE",
    "OFFLOAD",
    "PRECISION",
    "SHARED_BY_TRAINER",
    "STAGE",
    "Finding",
    "Report",
    "Severity",
    "Target",
    "Verdict",
    "as_base64",
    "as_sent",
    "build",
    "check_stage",
    "complete",
    "get",
    "keys_of",
    "leaves",
    "lint",
    "notation_of",
    "notation_of_yaml",
    "overlay",
    "parse",
    "precision_of",
    "read",
    "render",
    "settings_of",
    "without_auto",
    "without_autotuning",
    "write",
]
