"""Parameters and operations of a transformer, against formulas of the literature worked out by hand."""

import numpy as np
import pytest

from autotune.errors import WorkloadError
from autotune.performance import ModelShape


def test_gpt3_by_layers_and_hidden_size():
    shape = ModelShape.from_numbers(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    assert float(shape.parameters) == 12 * 96 * 12288**2 + 51200 * 12288  # 174.6e9, as Narayanan et al. 2021 print it
    assert float(shape.layer_parameters) == pytest.approx(12 * 12288**2)


def test_operations_are_those_of_narayanan_2021():
    s, layers, h, vocabulary = 2048, 96, 12288, 51200
    shape = ModelShape.from_numbers(layers=layers, hidden=h, heads=96, sequence=s, vocabulary=vocabulary)
    expected = 72 * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert float(shape.model_flops) == pytest.approx(expected)
    with_recomputation = 96 * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    assert float(shape.model_flops + shape.recomputed_flops(1)) == pytest.approx(with_recomputation)


def test_a_frozen_weight_needs_no_gradient_of_its_own():
    sizes = {"layers": 12, "hidden": 768, "heads": 12, "sequence": 1, "vocabulary": 50257}
    adapter = ModelShape.from_numbers(**sizes, trainable=1e-6)
    whole = ModelShape.from_numbers(**sizes)
    weights = float(whole.layers * whole.layer_matrix_flops + whole.logit_flops)
    assert float(whole.model_flops - adapter.model_flops) == pytest.approx(weights, rel=1e-6)


def test_llama_3_8b_with_grouped_keys_and_a_gate():
    shape = ModelShape.from_numbers(
        parameters=8.03e9,
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        ffn_hidden=14336,
        gated=1,
        tied=0,
        sequence=8192,
        vocabulary=128256,
    )
    # q and output 2 h^2, k and v 2 h^2 / 4, three matrices h x 14336: 218.1e6
    assert float(shape.matrix_parameters) == 4096**2 * 2.5 + 3 * 4096 * 14336
    assert float(shape.layer_parameters) == pytest.approx(218.1e6, rel=2e-3)


def test_layers_follow_from_parameters_and_hidden_size():
    shape = ModelShape.from_numbers(parameters=181e9, hidden=14336, sequence=2048, vocabulary=250000)
    assert float(shape.layers) == 72  # BLOOM tuning: 12 x 72 x 14336^2 + 250000 x 14336 = 181.2e9


def test_from_parameters_alone_the_proportions_are_gpt3s():
    shape = ModelShape.from_numbers(parameters=175e9, sequence=2048, vocabulary=50257)
    assert float(shape.hidden) == pytest.approx(12288, rel=0.02)
    assert float(shape.layers) == pytest.approx(96, rel=0.05)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({}, "neither parameters nor both layers and hidden"),
        ({"layers": 12}, "neither parameters nor both layers and hidden"),
        ({"layers": 12, "hidden": -1}, "hidden"),
        ({"layers": 0, "hidden": 768}, "layers"),
    ],
)
def test_a_shape_that_is_none_is_refused_by_name(numbers, said):
    with np.errstate(all="ignore"), pytest.raises(WorkloadError, match=said):
        ModelShape.from_numbers(sequence=128, vocabulary=100, heads=1, **numbers)
