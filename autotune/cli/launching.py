"""Launching and resuming one study: what is about to happen, the session, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from autotune import campaign as campaigns
from autotune.campaign import BudgetSection, Campaign
from autotune.cli import searchers
from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import print_pairs
from autotune.cli.session import Ended, run
from autotune.cli.spaces import left_out
from autotune.cli.studies import opened
from autotune.cli.tables import print_against_baseline, print_finals
from autotune.errors import StudyError
from autotune.finals import Rules
from autotune.report import finalists, units
from autotune.report.findings import cautions, headline, tally
from autotune.report.summary import StudySummary
from autotune.storage import Storage, StoredStudy, command, shown
from autotune.study import refuse_if_controlled


def launch(
    path: Path,
    *,
    training: Sequence[str] = (),
    searcher: str | None,
    trials: int | None,
    name: str | None,
    calibrate_from: str | None = None,
    overrides: Sequence[str],
    ray_address: str | None,
    url: str | None,
    quiet: bool,
) -> int:
    """Make a study from a campaign file and run it; return the exit code."""
    loaded = campaigns.load(path, overrides, command=training)
    campaign = configured(loaded, searcher=searcher, trials=trials, url=url, ray_address=ray_address)
    if calibrate_from is not None:
        campaign = campaign.model_copy(update={"calibrate_from": calibrate_from})
    with opened(campaign.storage, must_exist=False) as storage:
        stored = create(campaign, storage, name=name or campaign.name)
        console = make_console()
        if not quiet:
            print_plan(console, campaigns.summary(stored), campaign)
        go_on = command("resume", stored.name, url=campaign.storage)
        return conclude(console, _run(stored, console=console, quiet=quiet, go_on=go_on), url=campaign.storage)


def resume(name: str, *, trials: int | None, ray_address: str | None, url: str | None, quiet: bool) -> int:
    """Run what a study lacks; return the exit code."""
    with opened(url) as storage:
        stored = storage.open(name)
        refuse_if_controlled(stored)
        if trials is not None:
            raise_budget(stored, trials)
        if ray_address is not None:
            campaigns.move_to(stored, ray_address)
        summary = campaigns.summary(stored)
        console = make_console()
        missing = summary.trial_budget - summary.executed_count
        if missing <= 0 and not summary.finals_are_due:
            write(console, f"{name} is finished: {tally(summary)}")
            write(console, f"To go on: {command('resume', name, '--trials', str(2 * summary.trial_budget), url=url)}")
            return exit_code(summary)
        if not quiet and missing <= 0:
            write(console, f"{name}: {units.count(summary.executed_count, 'trial')} done, finals to go on with")
        elif not quiet:
            done = f"{summary.executed_count} of {units.count(summary.trial_budget, 'trial')} done"
            write(console, f"{name}: {done}, {missing} to run, searcher {summary.searcher}")
        go_on = command("resume", name, url=url)
        return conclude(console, _run(stored, console=console, quiet=quiet, go_on=go_on), url=url)


def _run(stored: StoredStudy, *, console: Console, quiet: bool, go_on: str) -> Ended:
    """Run a study; where it came to its end, keep what the performance model learns of it."""
    from autotune.campaign.calibrating import why_not_kept

    ended = run(stored, console=console, quiet=quiet, go_on=go_on)
    why = None if ended.was_stopped else why_not_kept(stored)
    if why is not None and not quiet:
        write(console, Text(f"The performance model learns nothing of this study: {why}", style="muted"))
    return ended


def configured(
    campaign: Campaign, *, searcher: str | None, trials: int | None, url: str | None, ray_address: str | None = None
) -> Campaign:
    """Return the campaign with what the command line says instead.

    Raises:
        CampaignError: when there is no such searcher.
    """
    said = {"searcher": searcher, "trials": trials, "storage": url, "ray_address": ray_address}
    changed = campaign.model_copy(update={key: value for key, value in said.items() if value is not None})
    searchers.check(changed.searcher)
    return changed


def create(campaign: Campaign, storage: Storage, *, name: str) -> StoredStudy:
    """Make the study, and let it remember its searcher and budget.

    Raises:
        AutotuneError: when the campaign can't be used, by its searcher or at all; nothing is made then.
    """
    searchers.check_hardware(campaign)
    stored = campaigns.create(campaign, storage, name=name)
    stored.set_attribute("searcher", campaign.searcher)
    stored.set_attribute("trial_budget", campaign.trials)
    return stored


def raise_budget(stored: StoredStudy, trials: int) -> None:
    """Set another budget, and let the study remember it.

    Raises:
        StudyError: when more trials than that were executed.
    """
    executed = campaigns.summary(stored).executed_count
    if trials < executed:
        raise StudyError(
            f"--trials: got {trials}, and study {stored.name!r} has {executed} executed trials already; "
            f"the number counts them too, so give {executed + 1} or more"
        )
    stored.set_attribute("trial_budget", trials)


def exit_code(summary: StudySummary) -> ExitCode:
    """Return OK when there is a trial with a score."""
    return ExitCode.OK if summary.best is not None else ExitCode.NO_RESULT


def print_plan(console: Console, summary: StudySummary, campaign: Campaign, *, title: str | None = None) -> None:
    """Say what is about to happen.

    Args:
        console: where to.
        summary: of the study, or of the first of several.
        campaign: that it was made from.
        title: says which studies, where there are several; each has a searcher and seed of its own.
    """
    from autotune.campaign.filtering import why_without_filter  # it loads scipy

    hardware, space = summary.hardware, summary.space
    ranks = units.count(hardware.ranks, "rank")
    memory = units.memory(hardware.device_memory_bytes)
    count = units.count(summary.trial_budget, "trial")
    weights = f"R = {summary.objective.alpha:g} throughput + {summary.objective.beta:g} convergence"
    pairs: list[tuple[str, str | Text]] = [
        ("studies" if title else "study", Text(title or summary.name, style="name")),
        ("hardware", f"{hardware.device_name}, {memory}, {ranks} per trial"),
        ("workload", summary.workload if summary.evaluator == "deepspeed" else f"{summary.evaluator} (no real trials)"),
        ("space", f"{units.count(len(space.dimensions), 'dimension')}, {units.count(space.count, 'configuration')}"),
        *(("  left out", f"{what}: {reason}") for what, reason in left_out(space)),
        ("budget", f"{count}, your configuration first; {_length(campaign.budget)}"),
        *((("finals", _finals(summary.rules)),) if title is None and summary.rules.candidates else ()),
        ("at once", campaigns.at_once(campaign, hardware)),
        ("objective", f"{weights}, relative to your configuration"),
        ("storage", shown(campaign.storage)),
    ]
    if title is None:
        pairs.insert(1, ("searcher", f"{summary.searcher}, seed {campaign.seed}"))
    remark = campaigns.start_of(campaign, hardware, space).remark
    if remark is not None:
        pairs.append(("your start", remark))
    without = why_without_filter(campaign, hardware) if campaign.memory_filter else None
    if without is not None and summary.evaluator != "recorded":
        pairs.append(("memory filter", f"off: {without}"))
    if summary.evaluator == "deepspeed":
        pairs.append(("logs", str(campaigns.run_directory(campaign, summary.name))))
    print_pairs(console, pairs)
    write(console, "")


def _length(budget: BudgetSection) -> str:
    given = {"s": budget.seconds, "steps": budget.steps, "samples": budget.samples}
    (length,) = (f"{value:,g} {unit}" for unit, value in given.items() if value is not None)
    precisely = f", or until the step time is known within {100 * budget.precision:g} %" if budget.precision else ""
    return f"each trains for {length}{precisely}"


def _finals(rules: Rules) -> str:
    leaders = "the best" if rules.candidates == 1 else f"the {rules.candidates} best"
    return (
        f"{leaders} and your configuration run again in turns, {rules.rounds} times or more, {rules.runs} runs at most"
    )


def conclude(console: Console, ended: Ended, *, url: str | None) -> int:
    """Say how a session ended and what to type next; return the exit code."""
    summary = ended.summary
    name = summary.name
    write(console, f"{name}: {ended.reason}. {tally(summary)}")
    unfinished = ended.was_stopped and (summary.executed_count < summary.trial_budget or summary.finals_are_due)
    if unfinished:
        write(console, f"Go on with it: {command('resume', name, url=url)}")
    write(console, "")
    print_outcome(console, summary)
    write(console, "")
    print_next(console, summary, url=url)
    return ExitCode.STOPPED if unfinished else exit_code(summary)


def print_outcome(console: Console, summary: StudySummary) -> None:
    """Print baseline against best, and what a reader must know before believing it."""
    good = summary.best is not None and not summary.best.is_baseline
    write(console, Text(headline(summary), style="good" if good else ""))
    for caution in cautions(summary):
        write(console, Text(caution, style="muted"))
    for note in finalists.notes(summary):
        write(console, Text(note, style="muted"))
    print_finals(console, summary)
    if summary.best is not None:
        write(console, "")
        if summary.finals is not None:
            write(console, Text("As the search measured them, by one run each:", style="muted"))
        print_against_baseline(console, summary)


def print_next(console: Console, summary: StudySummary, *, url: str | None) -> None:
    """Print the commands that suit what came out."""
    commands = _next_commands(summary, url)
    write(console, Text("Next", style="muted"))
    longest = max(len(text) for text, _ in commands) + 4 + max(len(why) for _, why in commands)
    if longest <= console.width:
        print_pairs(console, [(f"  {text}", why) for text, why in commands])
        return
    for text, _ in commands:
        write(console, Text(f"  {text}", style="muted"), wraps=False)


def _next_commands(summary: StudySummary, url: str | None) -> list[tuple[str, str]]:
    """Return commands to type, and what each is good for."""
    name = summary.name
    if summary.best is None:
        commands = [(command("trials", name, url=url), "why each trial failed")]
        last = [command("logs", name, str(trial.number), url=url) for trial in summary.trials[-1:]]
        return [*commands, *((text, "the last one's log") for text in last)]
    report = (command("report", name, "-o", "report.html", url=url), "the whole story, with charts")
    if summary.best.is_baseline:
        more = command("resume", name, "--trials", str(2 * summary.trial_budget), url=url)
        failed = any(trial.failure for trial in summary.trials)
        why = [(command("trials", name, url=url), "why trials failed")] if failed else []
        further = [(more, "look further")] if summary.executed_count >= summary.trial_budget else []
        return [*why, report, *further]
    if summary.finals_are_due:
        return [(command("resume", name, url=url), "run the leaders again, to name a winner"), report]
    has_winner = summary.finals is not None and summary.finals.winner is not None
    validate = (command("validate", name, url=url), "measure the best again beside your configuration")
    return [
        report,
        *(() if has_winner else (validate,)),
        (command("export", name, "-o", "best.json", url=url), "write the best DeepSpeed configuration"),
    ]
