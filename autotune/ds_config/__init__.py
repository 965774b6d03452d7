"""DeepSpeed configuration files: read one, say what it sets, lay a trial's settings over it, write it.

Keys that are not searched come out exactly as they went in; only dotted keys in `settings` are touched.
"""

from autotune.ds_config.building import build, complete
from autotune.ds_config.files import parse, read, write
from autotune.ds_config.notation import notation_of, notation_of_yaml, render
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
    "build",
    "check_stage",
    "complete",
    "get",
    "notation_of",
    "notation_of_yaml",
    "parse",
    "precision_of",
    "read",
    "render",
    "settings_of",
    "without_auto",
    "write",
]
