"""The scripts of tests/scripts, run by hand and measured by autotune: what both tests and benchmarks need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune import ds_config, scripts
from autotune.evaluators import op_cache, processes
from autotune.evaluators.protocol import ShouldPrune, never_prune
from autotune.evaluators.script import LOG, ScriptEvaluator
from autotune.evaluators.script_files import ENGINE_FILE, STEPS_FILE, EngineRecord, StepRecord, rank_folder
from autotune.launchers import recognise
from autotune.runners.rank_process import RankProcess
from autotune.trials import Budget, Failure, Measurement, Outcome, Stage, TrialRequest, Value

SCRIPTS = Path(__file__).parent / "scripts"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration measured, and what its ranks wrote down on the way."""

    outcome: Outcome
    sent: Mapping[str, Any]
    engines: list[EngineRecord]
    steps: list[list[StepRecord]] = field(repr=False)
    log: str = field(repr=False)

    @property
    def measurement(self) -> Measurement:
        assert self.outcome.measurement is not None, f"{self.outcome.failure}\n{self.log}"
        return self.outcome.measurement

    @property
    def failure(self) -> Failure:
        assert self.outcome.failure is not None, self.outcome.measurement
        return self.outcome.failure

    @property
    def losses(self) -> list[float]:
        """The loss of each optimizer step, mean over ranks."""
        return [sum(rank.loss for rank in step) / len(step) for step in zip(*self.steps, strict=False)]


def trial(
    folder: Path,
    words: Sequence[str],
    config: Mapping[str, Any] | str,
    settings: Mapping[str, Value] | None = None,
    *,
    searched: Sequence[str] = (),
    steps: int = 3,
    warmup_steps: int = 1,
    precision: float | None = None,
    convergence_at_s: float | None = None,
    should_prune: ShouldPrune = never_prune,
    environment: Mapping[str, str] | None = None,
    directory: Path = SCRIPTS,
    number: int = 0,
) -> Trial:
    """Measure one configuration of a script, as a campaign does.

    Args:
        folder: for the trial's files.
        words: the command as its user types it, or as a template.
        config: the user's DeepSpeed configuration, or the name of its file.
        settings: what the search lays over it; they are searched.
        searched: what is searched beside it.
        steps: timed ones.
        warmup_steps: before them.
        precision: at which it may end earlier.
        convergence_at_s: of training, which it does at least.
        should_prune: says whether it is to end before.
        environment: beside one thread a rank.
        directory: where the command runs.
        number: of the trial.
    """
    own = ds_config.read(directory / config) if isinstance(config, str) else config
    command = scripts.template_of(words, own, directory=str(directory))
    start = scripts.start_of(command, ds_config.without_auto(own)[0])
    ranks = recognise(command.words, directory=directory).ranks or 1
    settings = settings or {}
    request = TrialRequest(
        number=number,
        point=settings,
        ds_config=ds_config.build(ds_config.complete(start, world_size=ranks), settings, world_size=ranks),
        activation_checkpointing=bool(settings.get(ds_config.ACTIVATION_CHECKPOINTING, False)),
        budget=Budget(steps=steps, warmup_steps=warmup_steps, precision=precision),
        convergence_at_s=convergence_at_s,
    )
    evaluator = ScriptEvaluator(
        command=command,
        directory=str(directory),
        environment={**ONE_THREAD, **(environment or {})},
        world_size=ranks,
        own_config=own,
        searched=(*settings, *searched),
        run_directory=str(folder),
    )
    outcome = evaluator.evaluate(
        request, hosts=[RankProcess()], progress=_ignore, cancelled=lambda: False, should_prune=should_prune
    )
    folders = [folder / f"trial-{number:05}" / rank_folder(rank) for rank in range(ranks)]
    return Trial(
        outcome=outcome,
        sent=evaluator.sent(request),
        engines=[
            EngineRecord.from_text((each / ENGINE_FILE).read_text()) for each in folders if _has(each / ENGINE_FILE)
        ],
        steps=[
            [StepRecord.from_line(line) for line in (each / STEPS_FILE).read_text().splitlines()]
            for each in folders
            if _has(each / STEPS_FILE)
        ],
        log=Path(outcome.logs[LOG]).read_text(errors="replace"),
    )


def by_hand(words: Sequence[str], log: Path, *, losses: int = 4, directory: Path = SCRIPTS) -> list[float]:
    """Run a command without autotune until it has said so many losses; return them."""
    launcher = [sys.executable, "-m", *_MODULES[words[0]]]
    rest = words[2:] if words[0] == "accelerate" else words[1:]
    token, segments = uuid.uuid4().hex, processes.shared_memory()
    environment = {
        **os.environ,
        **ONE_THREAD,
        "TORCH_EXTENSIONS_DIR": str(op_cache.directory("cpu")),
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        processes.TOKEN_VARIABLE: token,
    }
    with log.open("w") as output:
        running = subprocess.Popen(
            [*launcher, *rest], cwd=directory, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    deadline_s = time.monotonic() + 300
    try:
        while len(losses_said(log.read_text())) < losses:
            assert time.monotonic() < deadline_s, log.read_text()
            assert running.poll() is None, log.read_text()
            time.sleep(0.2)
    finally:
        processes.end(token, there_before=segments)
        running.wait()
    return losses_said(log.read_text())


_MODULES = {
    "torchrun": ["torch.distributed.run"],
    "deepspeed": ["deepspeed.launcher.runner"],
    "accelerate": ["accelerate.commands.launch"],
}


def losses_said(log: str) -> list[float]:
    """Return the losses of a loop's own log lines (`step 3 loss 5.1234 ...`), or of the Trainer's, in order."""
    loops = re.findall(r"^step \d+ loss ([\d.]+)", log, re.MULTILINE)
    return [float(text) for text in loops or re.findall(r"\{'loss': '?([\d.]+)", log)]


def _has(path: Path) -> bool:
    return path.exists() and bool(path.read_text())


def _ignore(stage: Stage) -> None:
    """Hear of a stage."""
