"""`autotune init`: write a campaign file from what is found, and say what was found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from autotune import campaign as campaigns
from autotune import hardware as hardware_detection
from autotune import launchers, whole_file
from autotune.cli import campaign_text
from autotune.cli.campaign_text import QUESTION
from autotune.cli.console import make_console, write
from autotune.cli.drafting import Draft, about, draft, study_name
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import print_pairs
from autotune.command import as_argument
from autotune.errors import CampaignError
from autotune.report import units
from autotune.storage import command


def initialize(words: Sequence[str], *, given: Path | None, output: Path, force: bool) -> int:
    """Write a campaign file; return the exit code."""
    if output.exists() and not force:
        raise CampaignError(f"{output} exists already; write another one (-o FILE), or replace it (--force)")
    here = Path.cwd()
    found = draft(words, given=given, directory=here)
    ranks = hardware_detection.detect().ranks
    script = found.template.words if found.template is not None else ()
    launch = launchers.recognise(script, directory=here) if script else None
    content = campaign_text.text(
        found,
        name=study_name(here, launch, script),
        directory=_from(output, here),
        ds_config=None if found.config_path is None else _from(output, here / found.config_path),
        ranks=ranks,
    )
    try:
        whole_file.write(content, output)
    except OSError as error:
        raise CampaignError(f"can't write {output}: {error}") from error
    campaigns.load(output)
    _tell(found, output, ranks=ranks)
    return ExitCode.OK


def _from(output: Path, path: Path) -> str:
    """Return a path as the campaign file says it: from its own folder, or whole where that is elsewhere."""
    relative = os.path.relpath(path, output.absolute().parent)
    return str(path.absolute()) if relative.startswith(os.path.join(os.pardir, os.pardir)) else relative


def _tell(found: Draft, output: Path, *, ranks: int) -> None:
    console = make_console()
    pairs: list[tuple[str, str | Text]] = [("campaign", Text(str(output), style="name"))]
    path = "none found" if found.config_path is None else f"{found.config_path} ({found.config_source})"
    pairs.append(("ds_config", path))
    if found.launch is None or found.template is None:
        pairs.append(("workload", "byte-gpt, to be replaced: there is no command"))
    else:
        known = found.launch.ranks
        size = units.count(known or ranks, "rank") + ("" if known else " (of this machine; the command doesn't say)")
        style = ", with Hugging Face's TrainingArguments" if found.launch.is_hugging_face else ""
        pairs.append(("launcher", f"{found.launch.kind}, {size}{style}"))
        starts = [f"{key}={as_argument(value)}" for key, value in found.template.starts.items()]
        pairs.append(("passed", ", ".join(starts) or "no settings"))
        if found.added:
            pairs.append(("added", ", ".join(word.partition("=")[0] for word in found.added)))
        if found.environment:
            pairs.append(("environment", ", ".join(found.environment)))
    pairs += [(QUESTION.lower(), Text(about(key, text), style="yellow")) for key, text in found.questions.items()]
    print_pairs(console, pairs)
    write(console, "")
    write(console, Text("Next", style="muted"))
    asked = f"look at the lines marked {QUESTION} first" if found.questions else "check it by one short trial"
    print_pairs(
        console,
        [
            (f"  {command('doctor', str(output), url=None)}", asked),
            (f"  {command('launch', str(output), url=None)}", "start tuning"),
        ],
    )
