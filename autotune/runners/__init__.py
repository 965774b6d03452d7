"""Where trials run, and how many at once.

The runner for Ray is `autotune.runners.ray_runner.RayRunner`; it is not imported here, because that loads Ray.
"""

from autotune.runners.bundles import PlacementStrategy
from autotune.runners.cluster import Cluster, Node
from autotune.runners.inline import InlineRunner
from autotune.runners.local import LocalRunner
from autotune.runners.protocol import Finished, StageListener, TrialRunner

__all__ = [
    "Cluster",
    "Finished",
    "InlineRunner",
    "LocalRunner",
    "Node",
    "PlacementStrategy",
    "StageListener",
    "TrialRunner",
]
