"""Convergence against McCandlish et al. 2018 and Kaplan et al. 2020, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.performance import (
    Coefficients,
    Configurations,
    ModelShape,
    cluster,
    estimate,
    noise_scale,
    statistical_efficiency,
    steps_to_target,
)
from autotune.performance.convergence import kaplan_learning_rate

SHAPE = ModelShape.from_numbers(parameters=1e9, sequence=1000, vocabulary=1)
MACHINES = cluster("A100-SXM-40GB", devices=8)
C = replace(Coefficients.prior(), critical_batch_tokens=1e6, learning_rate=1.0, divergence_ratio=5.0)


def test_at_the_critical_batch_twice_the_steps_and_half_the_efficiency():
    assert float(statistical_efficiency(1000, 1000)) == 0.5
    assert float(steps_to_target(1000, 1000, 10)) == 20


@given(batch=st.floats(1, 1e6), critical=st.floats(1, 1e6))
def test_steps_and_examples_lie_on_the_hyperbola(batch, critical):
    """(S/S_min - 1)(E/E_min - 1) = 1."""
    steps = float(steps_to_target(batch, critical, 1.0))
    examples = steps * batch / critical
    assert (steps - 1) * (examples - 1) == pytest.approx(1, rel=1e-6)


def test_noise_scale_from_two_batch_sizes():
    """|G|^2 = 4, tr = 100: squared norms 4 + 100/10 and 4 + 100/100."""
    scale, gradient = noise_scale(small_batch=10, big_batch=100, small_norm=14, big_norm=5)
    assert scale == pytest.approx(25)
    assert gradient == pytest.approx(4)


def test_kaplans_learning_rate():
    assert float(kaplan_learning_rate(1.0)) == pytest.approx(0.003239)
    assert float(kaplan_learning_rate(1.5e9)) == pytest.approx(0.003239 - 0.0001395 * np.log(1.5e9))


def test_the_best_rate_is_kaplans_at_half_a_million_tokens_and_grows_like_the_root_below():
    batch = np.array([500.0, 5.0, 20.0]) / 8  # samples of 1000 tokens, 8 ranks
    found = estimate(SHAPE, MACHINES, Configurations(micro_batch=batch), C).convergence
    assert found.best_learning_rate[0] == pytest.approx(float(kaplan_learning_rate(SHAPE.parameters)))
    assert found.best_learning_rate[2] / found.best_learning_rate[1] == pytest.approx(2.0, rel=0.01)
    assert found.batch_samples.tolist() == pytest.approx([500, 5, 20])


def test_progress_is_best_at_the_best_rate_and_divergence_even_at_its_ratio():
    best = float(estimate(SHAPE, MACHINES, Configurations(), C).convergence.best_learning_rate)
    rates = best * np.array([0.25, 1.0, 5.0, 50.0])
    found = estimate(SHAPE, MACHINES, Configurations(learning_rate=rates), C).convergence
    assert np.argmax(found.progress_per_sample) == 1
    assert found.learning_rate_efficiency[1] == pytest.approx(1.0)
    assert found.divergence_probability[2] == pytest.approx(0.5)
    assert found.divergence_probability[3] > 0.99


def test_larger_batches_are_faster_but_teach_less_per_sample():
    batches = 2.0 ** np.arange(8)
    found = estimate(SHAPE, MACHINES, Configurations(micro_batch=batches, precision=2), C)
    assert np.all(np.diff(found.samples_per_second) > 0)
    assert np.all(np.diff(found.convergence.statistical_efficiency) < 0)
