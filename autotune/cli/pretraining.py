"""Pre-training on the command line: a line for each leg, and where the policy is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.border import Interrupted
from autotune.cli.console import make_console, write

if TYPE_CHECKING:
    from autotune_envs.training.learning_curve import Row


def pretrain(folder: Path, *, seed: int, steps: int, workloads: int) -> int:
    """Train, or go on; return the exit code.

    Raises:
        SearcherError: when the folder holds a training of other settings.
        Interrupted: at Ctrl-C.
    """
    from autotune_envs.training import Pretraining, PretrainingSettings
    from autotune_envs.training.learning_curve import FIGURES

    console = make_console()
    settings = PretrainingSettings(seed=seed, steps=steps, workloads=workloads)
    training = Pretraining(folder, settings, told=lambda row: write(console, _line(row, settings.legs)))
    write(console, f"drawing {workloads:,} workloads; shares of the best known R after {FIGURES} trials follow")
    try:
        rows = training.run()
    except KeyboardInterrupt:
        command = f"autotune pretrain --output {folder} --seed {seed} --steps {steps} --workloads {workloads}"
        raise Interrupted(f"interrupted; to go on: {command}") from None
    best = max(rows, key=lambda row: row.mean_share)
    write(console, f"the policy of leg {best.leg} is in {folder} ({rows[-1].cpu_s / 60:.0f} minutes of processor time)")
    return 0


def _line(row: Row, legs: int) -> str:
    shares = " ".join(f"{share:.3f}" for share in row.shares)
    failed = f"{row.failed_after_fourth:.1%} failed after the 4th"
    return f"leg {row.leg}/{legs}  {row.steps:>10,} steps  {row.cpu_s:6.0f} CPU s  {shares}  {failed}"
