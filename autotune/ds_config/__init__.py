"""DeepSpeed configuration files: read one, say what it sets, lay a trial's settings over it, write it.

Keys that are not searched come out exactly as they went in; only dotted keys in `settings` are touched.
"""

from autotune.dotted import get, leaves
from autotune.ds_config.building import as_sent, build, complete, overlay
from autotune.ds_config.files import as_base64, as_text, parse, read, write
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
    "LEARNING_RATE",
    "OFFLOAD",
    "PRECISION",
    "SHARED_BY_TRAINER",
    "STAGE",
    "as_base64",
    "as_sent",
    "as_text",
    "build",
    "check_stage",
    "complete",
    "get",
    "keys_of",
    "leaves",
    "overlay",
    "parse",
    "precision_of",
    "read",
    "settings_of",
    "without_auto",
    "write",
]
