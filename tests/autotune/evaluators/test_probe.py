"""The probe's claim on a rank: whole at once, given up by who doesn't live, taken over by who joins."""

import os

from autotune.evaluators.script_worker import probe


def test_a_free_place_is_taken_and_a_dead_ones_too(tmp_path):
    path = tmp_path / "pid"
    assert probe._claimed(path, joins=False)
    assert path.read_text() == str(os.getpid())
    path.write_text("4194305")  # above the highest process number of Linux
    assert probe._claimed(path, joins=False)
    assert os.listdir(tmp_path) == ["pid"]


def test_the_place_of_a_living_process_is_taken_only_by_who_joins(tmp_path):
    path = tmp_path / "pid"
    path.write_text("1")
    assert not probe._claimed(path, joins=False)
    assert path.read_text() == "1"
    assert probe._claimed(path, joins=True)
    assert path.read_text() == str(os.getpid())
