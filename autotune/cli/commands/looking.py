"""Commands that look at studies and change nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.options import Alpha, Beta, Format, Output, Storage, StudyName, TrialNumber


def studies(output: Output = Format.TABLE, storage: Storage = None) -> int:
    """List the studies in the storage."""
    from autotune.cli.listings import print_studies

    return print_studies(url=storage, form=output)


def status(
    study: StudyName,
    output: Output = Format.TABLE,
    alpha: Alpha = None,
    beta: Beta = None,
    storage: Storage = None,
) -> int:
    """Say how far a study is, and what is best so far."""
    from autotune.cli.listings import print_status

    return print_status(study, url=storage, form=output, alpha=alpha, beta=beta)


def trials(
    study: StudyName,
    output: Output = Format.TABLE,
    alpha: Alpha = None,
    beta: Beta = None,
    storage: Storage = None,
) -> int:
    """List a study's trials.

    --format json writes them whole: it is what the recorded evaluator replays.
    """
    from autotune.cli.listings import print_trials

    return print_trials(study, url=storage, form=output, alpha=alpha, beta=beta)


def show(
    study: StudyName,
    number: TrialNumber,
    output: Output = Format.TABLE,
    alpha: Alpha = None,
    beta: Beta = None,
    storage: Storage = None,
) -> int:
    """Show one trial: settings, figures, or why it failed."""
    from autotune.cli.showing import print_trial

    return print_trial(study, number, url=storage, form=output, alpha=alpha, beta=beta)


def logs(
    study: StudyName,
    number: TrialNumber,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Of this rank; by default the one that failed, or 0.", show_default=False)
    ] = None,
    storage: Storage = None,
) -> int:
    """Print a trial's log.

    The whole file where it is on this machine, else the last lines, which the storage keeps.
    """
    from autotune.cli.showing import print_log

    return print_log(study, number, rank=rank, url=storage)


COMMANDS = (studies, status, trials, show, logs)
