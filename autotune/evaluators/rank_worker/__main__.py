"""The life of one rank: read the assignment, run the trial, leave a result, end fast."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from autotune.evaluators import op_cache, sent_code
from autotune.evaluators.rank_files import REQUEST_FILE, RankAssignment, RankResult
from autotune.evaluators.rank_worker import failures, lifeline, processor_info
from autotune.evaluators.rank_worker.reporter import Reporter


def main() -> int:
    """Run one rank of one trial in the current folder; return its exit code."""
    lifeline.hold_on()
    directory = Path.cwd()
    reporter = Reporter(directory)
    try:
        result = _run(RankAssignment.from_text((directory / REQUEST_FILE).read_text()), reporter)
    except BaseException as error:  # noqa: BLE001 - the border of the process: every end is reported, even sys.exit
        traceback.print_exc()
        reporter.deliver(failures.result_of(error, stage=reporter.stage, initializing=reporter.initializing))
        return 1
    reporter.deliver(result)
    return 0


def _run(assignment: RankAssignment, reporter: Reporter) -> RankResult:
    sys.path[:0] = sent_code.all_here(assignment.workload.python_path)
    cache = op_cache.directory(assignment.device)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(cache)
    processor_info.install(cache)
    from autotune.evaluators.rank_worker import fast_start  # torch loads here

    fast_start.defer_dynamo()
    from autotune.evaluators.rank_worker import compiled_ops  # DeepSpeed loads here
    from autotune.evaluators.rank_worker.trial import run_trial

    compiled_ops.load_from(cache)
    compiled_ops.without_inference_collectives()
    fast_start.defer_muon_kernels()

    return RankResult(outcome=run_trial(assignment, reporter))


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: while the interpreter shuts down, gloo's threads abort it now and then, and it takes 2 seconds.
    os._exit(exit_code)
