"""Types of numbers that are single or many: every formula of this package broadcasts."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Numbers: TypeAlias = float | Array
"""One value for all configurations, or an array that broadcasts to (..., configurations)."""


def smooth_maximum(first: Numbers, second: Numbers, power: Numbers) -> Array:
    """Combine two durations that overlap: (x^g + y^g)^(1/g); g = 1 adds them, g -> infinity takes the longer.

    Pollux (Qiao et al., OSDI 2021, section 3.2) joins computing and communication so. Scaled by the longer of the
    two, so that no power over- or underflows.
    """
    longer = np.maximum(first, second)
    ratio = np.minimum(first, second) / np.maximum(longer, 1e-300)
    return np.asarray(longer * (1.0 + ratio**power) ** (1.0 / power))
