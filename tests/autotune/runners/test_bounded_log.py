"""The bounded log: the last lines of a process, without what is said again and again."""

import os

import pytest

from autotune.runners.bounded_log import LINE_CHARACTERS, TAIL_LINES, BoundedLog

WARNING = "/lib/torch/distributed/c10d_logger.py:83: FutureWarning: `reduce_scatter_tensor` is deprecated."
OTHER = "/lib/torch/optim/lr_scheduler.py:62: UserWarning: `lr_scheduler.step()` before `optimizer.step()`."
SOURCE = "  return func(*args, **kwargs)"


@pytest.fixture
def tail(tmp_path):
    """Return a function that writes lines to a log and returns its tail."""

    def written(*lines):
        reading, writing = os.pipe()
        log = BoundedLog(os.fdopen(reading, "rb"), tmp_path / "log.txt")
        with os.fdopen(writing, "w") as pipe:
            pipe.writelines(f"{line}\n" for line in lines)
        log.close()
        assert (tmp_path / "log.txt").read_text().splitlines() == list(lines)
        return log.tail()

    return written


def test_a_repeated_warning_stands_once_so_that_the_error_is_seen(tail):
    error = ("Traceback (most recent call last):", "  File 'train.py', line 3", "KeyError: 'the end'")
    assert tail(*(WARNING, SOURCE) * 60, *error) == (f"{WARNING} (60 times)", SOURCE, *error)


def test_warnings_between_other_lines_do_not_push_them_out(tail):
    losses = [f"step {number}: loss {9 - number / 10:.1f}" for number in range(30)]
    said = [line for loss in losses for line in (WARNING, SOURCE, loss, OTHER, SOURCE)]
    first, *rest = losses
    assert tail(*said) == (f"{WARNING} (30 times)", SOURCE, first, f"{OTHER} (30 times)", SOURCE, *rest)


def test_warnings_of_two_ranks_in_one_log(tail):
    said = (WARNING, WARNING, SOURCE, SOURCE) * 3
    assert tail(*said, "end") == (f"{WARNING} (6 times)", f"{SOURCE} (2 times)", "end")


def test_equal_lines_in_a_row_stand_once_and_those_further_on_stay(tail):
    frames = ("  File a", SOURCE, "  File b", SOURCE)
    assert tail("waiting", "waiting", "waiting", "", "", *frames) == ("waiting (3 times)", "", *frames)


def test_long_lines_are_cut_and_keep_their_count(tail):
    assert tail(*["x" * 900] * 3) == ("x" * (LINE_CHARACTERS - len(" (3 times)")) + " (3 times)",)


def test_the_last_lines_are_kept(tail):
    assert tail(*map(str, range(100))) == tuple(map(str, range(100 - TAIL_LINES, 100)))
