"""The table of coefficients: every one with unit, source and spread; vectors and back."""

from dataclasses import fields
from pathlib import Path

import numpy as np

from autotune.performance import Coefficients, priors
from autotune.performance.coefficients import write_table


def test_every_coefficient_is_named_once_with_its_source():
    assert list(priors()) == [field.name for field in fields(Coefficients)]
    for prior in priors().values():
        assert prior.mean > 0 < prior.spread
        assert len(prior.source) > 20
        assert prior.unit
        assert prior.part in ("time", "memory", "convergence")


def test_vectors_and_back():
    names = ["matmul_efficiency", "host_layer_s"]
    c = Coefficients.from_logarithms(np.log([0.5, 1e-3]), names=names)
    assert np.isclose(c.matmul_efficiency, 0.5)
    assert c.overlap_power == priors()["overlap_power"].mean
    assert np.allclose(c.logarithms(names), np.log([0.5, 1e-3]))


def test_an_ensemble_has_a_leading_axis():
    members = Coefficients.sample(np.random.default_rng(0), 400)
    assert np.shape(members.matmul_efficiency) == (400, 1)
    logarithms = members.logarithms(["host_step_s"])[:, 0]
    prior = priors()["host_step_s"]
    assert abs(logarithms.mean() - np.log(prior.mean)) < 4 * prior.spread / 20
    assert abs(logarithms.std() / prior.spread - 1) < 0.2
    again = Coefficients.from_logarithms(members.logarithms(list(priors())), names=list(priors()))
    assert np.allclose(again.context_bytes, members.context_bytes)


def test_the_table_is_written_as_it_is_read(tmp_path):
    write_table(tmp_path / "table.yaml", Coefficients.prior())
    shipped = (Path(__file__).parents[3] / "autotune" / "performance" / "coefficients.yaml").read_text()
    assert (tmp_path / "table.yaml").read_text() == shipped
