"""How much a step teaches: critical batch size, the best learning rate, divergence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.performance.arrays import Array, Numbers
from autotune.performance.coefficients import Coefficients
from autotune.performance.configurations import Configurations
from autotune.performance.placement import Placement
from autotune.performance.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """What a batch size and a learning rate do to progress; each field broadcasts to (..., configurations)."""

    batch_samples: Array
    """Samples per optimizer step, over all ranks."""
    critical_batch_samples: Array
    """The gradient's noise scale: from here on, twice the batch saves far less than half of the steps."""
    statistical_efficiency: Array
    """Progress per sample against that of very small batches, at the best learning rate: 1 / (1 + B/B_crit)."""
    best_learning_rate: Array
    learning_rate_efficiency: Array
    """Progress per step against that at the best learning rate, between 0 and 1."""
    divergence_probability: Array
    progress_per_sample: Array
    """Statistical x learning-rate efficiency x (1 - divergence probability): relative, between 0 and 1."""


def statistical_efficiency(batch: Numbers, critical_batch: Numbers) -> Array:
    """Return progress per sample: 1/(1 + B/B_crit).

    From (S/S_min - 1)(E/E_min - 1) = 1 with B_crit = E_min/S_min (McCandlish et al. 2018, section 2.3): examples
    needed grow as E/E_min = 1 + B/B_crit. Pollux's (phi + m0)/(phi + m) is the same against a batch m0 (Qiao et al.
    2021, section 3.1).
    """
    return np.asarray(1.0 / (1.0 + np.asarray(batch) / critical_batch))


def steps_to_target(batch: Numbers, critical_batch: Numbers, fewest_steps: Numbers) -> Array:
    """Return optimizer steps to a fixed loss: S_min (1 + B_crit/B) (McCandlish et al. 2018, equation 2.7)."""
    return np.asarray(fewest_steps * (1.0 + np.asarray(critical_batch) / batch))


def noise_scale(*, small_batch: float, big_batch: float, small_norm: float, big_norm: float) -> tuple[float, float]:
    """Return the simple noise scale tr(Sigma)/|G|^2 in samples, and |G|^2, from gradients at two batch sizes.

    Unbiased estimates (McCandlish et al. 2018, appendix A.1). Either may come out negative from noisy norms; average
    numerator and denominator over many steps before dividing.

    Args:
        small_batch: samples behind the first norm.
        big_batch: samples behind the second, more.
        small_norm: squared norm of the gradient of the small batch.
        big_norm: squared norm of the gradient of the big batch.
    """
    gradient = (big_batch * big_norm - small_batch * small_norm) / (big_batch - small_batch)
    trace = (small_norm - big_norm) / (1.0 / small_batch - 1.0 / big_batch)
    return trace / gradient, gradient


def kaplan_learning_rate(parameters: Numbers) -> Array:
    """Return Adam's learning rate at a batch of half a million tokens: 0.003239 - 0.0001395 ln N.

    Kaplan et al. 2020, appendix D.6 (good up to about 10^10 parameters); kept above 1e-5 beyond.
    """
    return np.asarray(np.maximum(0.003239 - 0.0001395 * np.log(np.asarray(parameters)), 1e-5))


def convergence(
    shape: ModelShape, configurations: Configurations, c: Coefficients, placement: Placement
) -> Convergence:
    """Return the convergence of each configuration.

    The best learning rate of Adam grows with the square root of the batch and levels off at the critical batch:
    (1 + B_crit/B)^(-1/2) of its greatest, McCandlish's 1/(1 + B_crit/B) for SGD under Adam's normalisation (Malladi
    et al. 2022, square-root rule). Off the best, progress falls as 2 x/(1 + x^2) with x = rate/best: to second order
    McCandlish's parabola 2 x - x^2 (equation 2.4), but symmetric in the logarithm. Divergence is logistic in the
    logarithm of x.
    """
    batch = np.asarray(configurations.micro_batch) * configurations.accumulation * placement.data
    critical = np.maximum(np.asarray(c.critical_batch_tokens) / shape.sequence, 1e-3)
    reference = 5e5 / np.asarray(shape.sequence)
    greatest = c.learning_rate * kaplan_learning_rate(shape.parameters) * np.sqrt(1.0 + critical / reference)
    best = greatest / np.sqrt(1.0 + critical / batch)
    ratio = np.asarray(configurations.learning_rate) / best
    statistical = statistical_efficiency(batch, critical)
    rate = 2.0 * ratio / (1.0 + ratio**2)
    odds = (ratio / c.divergence_ratio) ** 3.0
    divergence = odds / (1.0 + odds)
    return Convergence(
        batch_samples=batch + np.zeros_like(ratio),
        critical_batch_samples=critical + np.zeros_like(ratio),
        statistical_efficiency=statistical + np.zeros_like(ratio),
        best_learning_rate=best + np.zeros_like(ratio),
        learning_rate_efficiency=rate,
        divergence_probability=divergence,
        progress_per_sample=statistical * rate * (1.0 - divergence),
    )
