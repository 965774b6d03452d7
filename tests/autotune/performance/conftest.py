from pathlib import Path

import pytest

from autotune.performance import Coefficients
from autotune.performance.validation import report


@pytest.fixture(scope="session")
def published():
    return report.load(Path(__file__).parents[3] / "experiments" / "published")


@pytest.fixture(scope="session")
def findings(published):
    """Some 20 seconds: for slow tests."""
    return report.findings(published, Coefficients.prior())
