"""The life of one rank: make ready, read the assignment, run the trial, leave a result. Importing it is cheap."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.evaluators import op_cache, sent_code
from autotune.evaluators.rank_files import REQUEST_FILE, RankAssignment, RankResult
from autotune.evaluators.rank_worker import failures, lifeline, processor_info
from autotune.evaluators.rank_worker.reporter import Reporter

if TYPE_CHECKING:
    from autotune.workload import TrainingWorkload


def live(directory: Path, workload: TrainingWorkload | None = None) -> int:
    """Run one rank of one trial.

    Args:
        directory: this rank's in this trial; the process runs in it.
        workload: built already, the random generators as building it left them; None: it is built here.

    Returns:
        The exit code.
    """
    lifeline.hold_on()
    reporter = Reporter(directory)
    try:
        result = _run(assignment_in(directory), reporter, workload)
    except BaseException as error:  # noqa: BLE001 - the border of the process: every end is reported, even sys.exit
        traceback.print_exc()
        reporter.deliver(failures.result_of(error, stage=reporter.stage, initializing=reporter.initializing))
        return 1
    reporter.deliver(result)
    return 0


def end(exit_code: int) -> None:
    """End this process at once.

    Not by sys.exit: while the interpreter shuts down, gloo's threads abort it now and then, and it takes 2 seconds.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def assignment_in(directory: Path) -> RankAssignment:
    """Read what a rank is to do."""
    return RankAssignment.from_text((directory / REQUEST_FILE).read_text())


@functools.cache
def make_ready(device: str) -> None:
    """Load torch and DeepSpeed, made to start fast; once in a process."""
    cache = op_cache.directory(device)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(cache)
    processor_info.install(cache)
    from autotune.evaluators.rank_worker import fast_start  # torch loads here

    fast_start.defer_dynamo()
    from autotune.evaluators.rank_worker import compiled_ops  # DeepSpeed loads here

    compiled_ops.load_from(cache)
    compiled_ops.without_inference_collectives()
    fast_start.defer_muon_kernels()


def _run(assignment: RankAssignment, reporter: Reporter, workload: TrainingWorkload | None) -> RankResult:
    if workload is None:
        sys.path[:0] = sent_code.all_here(assignment.workload.python_path)
    make_ready(assignment.device)
    from autotune.evaluators.rank_worker.trial import run_trial

    return RankResult(outcome=run_trial(assignment, reporter, workload))
