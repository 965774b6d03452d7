"""Commands about what a study found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Alpha, Beta, Format, Output, Quiet, Storage, StudyName
from autotune.consumer import Consumer

_VALIDATION_REPEATS = 5


def export(
    study: StudyName,
    path: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File or folder; ds_config.json by default (ds_config_zero3.json for ZeRO stage 3). A file that no "
            "export wrote is not overwritten.",
            show_default=False,
        ),
    ] = None,
    consumer: Annotated[
        Consumer,
        typer.Option(
            "--for",
            help="What reads it. deepspeed: every number in the file. hf: what Hugging Face's Trainer shares with "
            'TrainingArguments stays "auto", and their flags are printed. accelerate: a YAML file beside it, for '
            "accelerate launch --config_file.",
        ),
    ] = Consumer.DEEPSPEED,
    trial: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Of this trial; by default the best.", show_default=False)
    ] = None,
    alpha: Alpha = None,
    beta: Beta = None,
    storage: Storage = None,
) -> int:
    """Write the best DeepSpeed configuration to a file.

    It is written as it was measured, and what was not searched exactly as it is in your file; where its figures come
    from goes into a file beside it.
    """
    from autotune.cli.results import write_export

    return write_export(study, path, consumer=consumer, number=trial, url=storage, alpha=alpha, beta=beta)


def report(
    study: StudyName,
    path: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write; STUDY.html by default, standard output for --markdown.",
            show_default=False,
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Write Markdown instead of HTML.")] = False,
    alpha: Alpha = None,
    beta: Beta = None,
    storage: Storage = None,
) -> int:
    """Write a study's report: HTML with charts, or Markdown."""
    from autotune.cli.results import write_report

    return write_report(study, path, markdown=markdown, url=storage, alpha=alpha, beta=beta)


def validate(
    study: StudyName,
    repeats: Annotated[
        int, typer.Option(min=3, metavar="K", help="How often each of the two is measured again.")
    ] = _VALIDATION_REPEATS,
    storage: Storage = None,
    quiet: Quiet = False,
) -> int:
    """Measure the best again and say whether the gain holds.

    Your own configuration and the best run in turns, so that a drift of the machine is shared.
    """
    from autotune.cli.validating import run_validation

    return run_validation(study, repeats=repeats, url=storage, quiet=quiet)


def calibrate(study: StudyName, output: Output = Format.TABLE, storage: Storage = None) -> int:
    """Fit the performance model to a study's trials, and say how well it foretells them.

    The calibration is kept with the study, for others on the same hardware (autotune launch --calibrate-from). --format
    csv has one row for each trial, json all coefficients too.
    """
    from autotune.cli.calibrating import print_calibration

    return print_calibration(study, url=storage, form=output)


COMMANDS = (export, validate, report, calibrate)
