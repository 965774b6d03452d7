"""The storage: Optuna studies by URL, the only durable state. What autotune adds are user attributes.

Any Optuna tool reads it (`optuna-dashboard sqlite:///autotune.db`). Of a study: `autotune:...` attributes hold what
is needed to go on with it. Of a trial: parameters by DeepSpeed's dotted keys, the value R, `throughput_ratio`,
`convergence_ratio`, `failure`, and under `autotune:...` the whole configuration and outcome.

Optuna makes the tables and keeps their version; autotune reads and writes them by transactions of its own
(`autotune.storage.tables` says why).
"""

from autotune.storage.opening import connect
from autotune.storage.patience import PATIENCE_S
from autotune.storage.studies import Storage, StoredStudy
from autotune.storage.urls import DEFAULT_URL, NETWORK_VARIABLE, check_place, command, file_of, shown

__all__ = [
    "DEFAULT_URL",
    "NETWORK_VARIABLE",
    "PATIENCE_S",
    "Storage",
    "StoredStudy",
    "check_place",
    "command",
    "connect",
    "file_of",
    "shown",
]
