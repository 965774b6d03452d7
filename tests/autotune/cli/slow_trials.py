"""The `autotune` command with simulated trials that pass every stage and take a while; they heed a cancellation."""

import os
import time
from pathlib import Path

from autotune.cli import main
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.trials import Failure, FailureKind, Outcome, Stage

STAGE_S = float(os.environ.get("SLOW_STAGE_S", "0.04"))
POLL_S = 0.02
PREPARE_S = float(os.environ.get("SLOW_PREPARE_S", "0"))
evaluate = SimulatedEvaluator.evaluate


def slow(self, request, *, hosts, progress, cancelled, should_prune):
    Path("running.txt").write_text(str(request.number))
    for stage in Stage:
        progress(stage)
        until_s = time.monotonic() + STAGE_S
        while time.monotonic() < until_s:
            time.sleep(POLL_S)
            if cancelled():
                return Outcome(failure=Failure(kind=FailureKind.CANCELLED, reason="cancelled by the user"))
    return evaluate(self, request, hosts=hosts, progress=progress, cancelled=cancelled, should_prune=should_prune)


def prepare(self, ds_configs, progress):
    progress("getting ready")
    time.sleep(PREPARE_S)


if __name__ == "__main__":
    SimulatedEvaluator.evaluate = slow
    SimulatedEvaluator.prepare = prepare
    main()
