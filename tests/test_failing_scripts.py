"""Scripts that go wrong, under real launchers: each ends as a typed trial with its reason and leaves nothing behind."""

import re

import pytest

from tests import failures

pytestmark = pytest.mark.real


@pytest.mark.parametrize("case", failures.CASES, ids=lambda case: case.name)
def test_it_ends_as_a_typed_trial_and_leaves_nothing(case, tmp_path):
    seen = failures.run(case, tmp_path)
    outcome = seen.outcome
    if case.kind is None:
        assert outcome.failure is None, outcome.failure
    else:
        assert outcome.failure is not None, outcome.measurement
        assert outcome.failure.kind is case.kind, outcome.failure
        assert re.search(case.words, outcome.failure.reason), outcome.failure.reason
        assert case.rank is None or outcome.failure.rank == case.rank, outcome.failure
        assert case.stage is None or outcome.failure.stage is case.stage, outcome.failure
        assert "Traceback" not in outcome.failure.reason
    assert seen.clean_s is not None, seen.left
    assert seen.clean_s < failures.CLEAN_WITHIN_S
    assert seen.log_bytes < failures.LOG_BYTES
    assert seen.grown_bytes < 40e6
