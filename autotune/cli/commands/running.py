"""Commands that run trials, and the one that ends them."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.options import CampaignFile, Overrides, Quiet, RayAddress, Storage, StudyName, Trials


def launch(
    campaign: CampaignFile,
    training: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]",
            help="Your training command, instead of the campaign's workload: "
            "torchrun train.py --deepspeed {config} --lr {optimizer.params.lr=1e-4}.",
            show_default=False,
        ),
    ] = None,
    searcher: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What proposes configurations: random, tpe, gp, cmaes, ppo, ppo-scratch, calibrated, "
            "deepspeed-autotuner, or module:attribute; "
            "the campaign's by default.",
            show_default=False,
        ),
    ] = None,
    trials: Trials = None,
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the study; the campaign's by default.")
    ] = None,
    calibrate_from: Annotated[
        str | None,
        typer.Option(
            metavar="STUDY",
            help="An earlier study of this storage on the same hardware: the performance model starts from its "
            "calibration; the campaign's by default.",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    ray_address: RayAddress = None,
    storage: Storage = None,
    quiet: Quiet = False,
) -> int:
    """Start a study from a campaign file.

    Your own configuration is measured first, then what the searcher proposes; at the end the leaders run again in
    turns with yours, before a winner is named.
    """
    from autotune.cli.launching import launch as start

    return start(
        campaign,
        training=training or (),
        searcher=searcher,
        trials=trials,
        name=study,
        calibrate_from=calibrate_from,
        overrides=overrides or (),
        ray_address=ray_address,
        url=storage,
        quiet=quiet,
    )


def resume(
    study: StudyName,
    trials: Trials = None,
    ray_address: RayAddress = None,
    storage: Storage = None,
    quiet: Quiet = False,
) -> int:
    """Run the trials that a study lacks.

    --trials N raises the budget; nothing that has run runs again.
    """
    from autotune.cli.launching import resume as go_on

    return go_on(study, trials=trials, ray_address=ray_address, url=storage, quiet=quiet)


def stop(
    study: StudyName,
    now: Annotated[bool, typer.Option("--now", help="Cancel the running trial instead of letting it end.")] = False,
    storage: Storage = None,
) -> int:
    """Stop a study from elsewhere; it can be resumed."""
    from autotune.cli.halting import stop as ask

    return ask(study, now=now, url=storage)


COMMANDS = (launch, resume, stop)
