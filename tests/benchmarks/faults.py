"""The fault matrix of warm trials: what each fault ends as, how soon, what is left, and how the next trial does.

Two ranks on the hosts of the local runner. Faults of nodes, of the head and of the storage take real Ray nodes and a
real server: docs/cluster.md and docs/storage.md tell of them.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune import ds_config
from autotune.evaluators import op_cache
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.deepspeed import DeepSpeedEvaluator
from autotune.runners.rank_process import RankProcess
from autotune.trials import Budget, Outcome, Stage, TrialRequest
from autotune.workload import WorkloadReference

FAULTY = Path(__file__).parents[1] / "autotune" / "evaluators"
"""Where the module of workloads that misbehave is."""
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}
DEADLINES = Deadlines(initialize_s=10.0, first_step_s=10.0, run_s=10.0)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row of the matrix."""

    words: str
    workload: str = "healthy"
    signal_in: Stage | None = None
    """The stage of the trial in which a process is signalled."""
    number: signal.Signals = signal.SIGKILL
    to_server: bool = False
    memory_limit_bytes: int | None = None


FAULTS = (
    Fault(words="rank 1 killed (-9) in rendezvous", workload="slow_in_rendezvous", signal_in=Stage.RENDEZVOUS),
    Fault(words="rank 1 killed (-9) in initialize", workload="slow_in_initialize", signal_in=Stage.INITIALIZE),
    Fault(words="rank 1 killed (-9) in first_step", workload="slow_in_first_step", signal_in=Stage.FIRST_STEP),
    Fault(words="rank 1 killed (-9) in run", workload="slow_in_run", signal_in=Stage.RUN),
    Fault(words="its fork server killed (-9) in run", workload="slow_in_run", signal_in=Stage.RUN, to_server=True),
    Fault(words="rank 1 stopped in run: it hangs", signal_in=Stage.RUN, number=signal.SIGSTOP, workload="slow_in_run"),
    Fault(words="rank 1 raises in a step", workload="crashing"),
    Fault(words="rank 1 never comes", workload="asleep"),
    Fault(words="an allocation fails", workload="asking_too_much"),
    Fault(words="a rank grows above its memory limit", workload="hoarding", memory_limit_bytes=1_500_000_000),
    Fault(words="the loss is not finite", workload="never_finite"),
)


def main() -> None:
    """Print one row a fault."""
    op_cache.prepare([CONFIG], device="cpu", progress=print)
    print(f"{'fault':36} {'ends as':14} {'stage':11} {'rank':4} {'s':>5} {'left':>4}  next trial")
    hosts = [RankProcess(), RankProcess()]
    with tempfile.TemporaryDirectory() as folder:
        try:
            _run(hosts, folder, Fault(words="none"))
            for fault in FAULTS:
                print(_row(hosts, folder, fault), flush=True)
        finally:
            for host in hosts:
                host.close()


def _row(hosts: list[RankProcess], folder: str, fault: Fault) -> str:
    outcome, since_s = _run(hosts, folder, fault)
    failure = outcome.failure
    left = len(_forks(hosts))
    again, again_s = _run(hosts, folder, Fault(words="none"))
    after = f"measured, {again_s:.1f} s" if again.measurement is not None else str(again.failure)
    if failure is None:
        return f"{fault.words:36} measured"
    stage, rank = failure.stage.value if failure.stage else "-", "-" if failure.rank is None else failure.rank
    return f"{fault.words:36} {failure.kind.value:14} {stage:11} {rank:4} {since_s:5.1f} {left:4}  {after}"


def _run(hosts: list[RankProcess], folder: str, fault: Fault) -> tuple[Outcome, float]:
    """Run a trial; return what came of it, and the seconds since the fault (since its start, without a signal)."""
    evaluator = DeepSpeedEvaluator(
        workload=WorkloadReference(function=f"faulty_workloads:{fault.workload}", python_path=(str(FAULTY),)),
        ranks=2,
        run_directory=folder,
        execution="warm",
        deadlines=DEADLINES,
        memory_limit_bytes=fault.memory_limit_bytes,
    )
    config = ds_config.build(CONFIG, {"zero_optimization.stage": 2}, world_size=2)
    budget = Budget(steps=5 if fault.words == "none" else 500)
    began = [time.monotonic()]
    outcome = evaluator.evaluate(
        TrialRequest(number=0, point={}, ds_config=config, budget=budget),
        hosts=hosts,
        progress=_hurting(hosts, fault, began),
        cancelled=lambda: False,
    )
    return outcome, time.monotonic() - began[0]


def _hurting(hosts: list[RankProcess], fault: Fault, began: list[float]) -> Callable[[Stage], None]:
    def entered(stage: Stage) -> None:
        if stage is not fault.signal_in:
            return
        server = hosts[1].server_pid
        ranks = [each.pid for each in _forks(hosts[1:])]
        target = server if fault.to_server else ranks[0] if ranks else None
        if target is not None:
            began[0] = time.monotonic()
            os.kill(target, fault.number)

    return entered


def _forks(hosts: list[RankProcess]) -> list[psutil.Process]:
    """Return the running processes below the hosts' fork servers."""
    found = []
    for host in hosts:
        if host.server_pid is not None and psutil.pid_exists(host.server_pid):
            found += psutil.Process(host.server_pid).children(recursive=True)
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


if __name__ == "__main__":
    main()
