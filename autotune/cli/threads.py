"""The controller's own threads: one, so that searchers don't take the processors that trials are measured on."""

from __future__ import annotations

import os

_VARIABLE = "OMP_NUM_THREADS"


def use_one_thread() -> None:
    """Tell the numeric libraries of this process, before they load, to use one thread, unless the user has a wish.

    Only the C environment is changed, which OpenMP, MKL and OpenBLAS read: `os.environ`, from which the processes of
    ranks get theirs, stays as it was.
    """
    if _VARIABLE not in os.environ:
        os.putenv(_VARIABLE, "1")
