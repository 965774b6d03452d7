"""The command that trains the policy of the searcher `ppo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_STEPS = 1_500_000


def pretrain(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where policy, card, checkpoint and learning curve go."),
    ] = Path("pretrained"),
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the training.")] = 0,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Simulated trials to learn from by PPO, rounded up to whole legs.")
    ] = _STEPS,
    workloads: Annotated[int, typer.Option(min=1, metavar="K", help="Simulated workloads to learn on.")] = 2000,
) -> int:
    """Pre-train the policy of the searcher ppo on simulated workloads.

    It uses one core, and writes a checkpoint after each leg: the same command goes on where it was ended. The policy
    that comes with autotune was made by it.
    """
    from autotune.cli.pretraining import pretrain as run

    return run(output, seed=seed, steps=steps, workloads=workloads)


COMMANDS = (pretrain,)
