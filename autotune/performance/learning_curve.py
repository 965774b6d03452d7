"""How far the held-out loss has fallen after so many optimizer steps: what a short training shows of convergence."""

from __future__ import annotations

import numpy as np

from autotune.performance.arrays import Array, Numbers
from autotune.performance.convergence import Convergence
from autotune.performance.shape import ModelShape


def useful_tokens(shape: ModelShape, convergence: Convergence, optimizer_steps: Numbers) -> Array:
    """Return the tokens that very small batches at the best learning rate would need for the same progress.

    Kaplan et al. 2020 (section 5.2) adjust a training's steps and batch to the critical batch so.
    """
    progress = convergence.statistical_efficiency * convergence.learning_rate_efficiency
    return np.asarray(np.asarray(optimizer_steps) * convergence.batch_samples * progress * shape.sequence)


def loss_drop(tokens: Numbers, *, reach: Numbers, scale: Numbers, power: Numbers) -> Array:
    """Return the share of the first held-out loss that training has taken away, between 0 and 1.

    A power law that begins at 0 and levels off: reach (1 - (1 + tokens/scale)^-power).

    Args:
        tokens: from `useful_tokens`.
        reach: the share it tends to.
        scale: tokens after which the curve bends.
        power: of the law; Hoffmann et al. 2022 (section 3.3) find .28 late in training, it is steeper at first.
    """
    left = (1.0 + np.asarray(tokens) / scale) ** -np.asarray(power)
    return np.asarray(np.minimum(reach, 0.999) * (1.0 - left))
