import numpy as np
import pytest

from autotune.evaluators.surrogate import Kernel, Surrogate, _fitted, squared_differences


def figure(point) -> float:
    """A smooth figure of three parameters, one of which does not matter."""
    return np.log10(point["batch"]) ** 2 + (0.7 if point["precision"] == "bf16" else 0.0)


def drawn(count: int, seed: int) -> list[dict]:
    generator = np.random.default_rng(seed)
    return [
        {
            "batch": int(generator.choice([1, 2, 4, 8, 16, 32, 64])),
            "precision": str(generator.choice(["fp32", "bf16"])),
            "idle": int(generator.choice([0, 100, 10_000])),
        }
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def surrogate() -> Surrogate:
    points = drawn(80, seed=0)
    noise = 0.02 * np.random.default_rng(1).standard_normal(80)
    return Surrogate(points, np.array([figure(point) for point in points]) + noise)


def test_differences_by_hand():
    ones = [{"a": 1, "b": "x", "c": 0}]
    others = [{"a": 100, "b": "y", "c": 10}, {"a": 1, "b": "x", "c": 0}]
    # two decades; another word; 0 lies a decade below 10
    np.testing.assert_allclose(
        squared_differences(ones, others, ["a", "b", "c"])[:, 0], [[4.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    )


def test_it_foretells_what_was_not_recorded(surrogate):
    for point in drawn(30, seed=2):
        assert surrogate.value(point) == pytest.approx(figure(point), abs=0.1)
    assert 0.005 < surrogate.noise < 0.06


def test_what_does_not_matter_weighs_least(surrogate):
    weights = surrogate.kernel.weights
    assert weights["idle"] < min(weights["batch"], weights["precision"]) / 5


def test_left_out_is_what_the_others_foretell():
    points, kernel = drawn(12, seed=3), Kernel(weights={"batch": 1.0, "precision": 0.5, "idle": 0.01}, noise=0.1)
    values = np.array([figure(point) for point in points])
    values -= values.mean()  # so that leaving one out moves mean and scale alone
    whole = Surrogate(points, values, kernel)
    apart = squared_differences(points, points, sorted(points[0]))
    squares = np.tensordot(
        [0.5 if n == "precision" else 1.0 if n == "batch" else 0.01 for n in sorted(points[0])], apart, 1
    )
    root = np.sqrt(5 * squares)
    covariance = (1 + root + root**2 / 3) * np.exp(-root)
    others = [place for place in range(12) if place != 5]
    expected = covariance[5, others] @ np.linalg.solve(
        covariance[np.ix_(others, others)] + 0.1**2 * np.eye(11), values[others]
    )
    assert whole.left_out()[5] == pytest.approx(expected, abs=1e-6)


def test_a_kept_kernel_gives_the_same_surrogate(surrogate):
    points = drawn(80, seed=0)
    noise = 0.02 * np.random.default_rng(1).standard_normal(80)
    values = np.array([figure(point) for point in points]) + noise
    again = Surrogate(points, values, Kernel.from_json(surrogate.kernel.to_json()))
    point = drawn(1, seed=9)[0]
    assert again.value(point) == pytest.approx(surrogate.value(point))


def test_the_fit_descends_its_own_gradient():
    points = drawn(20, seed=4)
    apart = squared_differences(points, points, sorted(points[0]))
    values = np.array([figure(point) for point in points])
    kernel = _fitted(apart, (values - values.mean()) / values.std(), sorted(points[0]))
    assert kernel.noise < 0.05  # exact values leave no noise to explain
