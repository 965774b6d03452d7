"""Listings: the studies of a storage, one study's state, its trials."""

from __future__ import annotations

from rich.text import Text

from autotune import campaign as campaigns
from autotune.cli.border import complain
from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import Column, print_csv, print_json, print_pairs, print_table
from autotune.cli.launching import print_outcome
from autotune.cli.options import Format
from autotune.cli.rows import (
    INTERRUPTED,
    outcome_seconds,
    peak_memory_bytes,
    state_of,
    study_record,
    trial_figures,
    trial_record,
)
from autotune.cli.settings import what_happened
from autotune.cli.studies import opened, summary_of
from autotune.errors import CampaignError, StudyError, UnreadableStudyError
from autotune.report import units
from autotune.report.findings import length, r_of, tally
from autotune.report.summary import StudySummary
from autotune.storage import DEFAULT_URL, Storage, command, shown
from autotune.trials import Trial, TrialState

_WIDE, _VERY_WIDE, _WIDEST = 100, 120, 160
_LAST_TRIALS = 200
"""Rows of a table of trials: nobody reads more, and a program takes CSV or JSON."""
_STATE_STYLES = {
    TrialState.COMPLETE: "",
    TrialState.FAIL: "bad",
    TrialState.RUNNING: "good",
    TrialState.PRUNED: "muted",
}


def print_studies(*, url: str | None, form: Format) -> int:
    """List the studies; return the exit code."""
    with opened(url) as storage:
        summaries = _summaries(storage)
        if form is not Format.TABLE:
            records = [study_record(summary) for summary in summaries]
            print_json(records) if form is Format.JSON else print_csv(records)
            return ExitCode.OK
        console = make_console()
        if not summaries:
            start = command("launch", "CAMPAIGN.yaml", url=url)
            write(console, f"no studies in {shown(url or DEFAULT_URL)}; start one: {start}")
            return ExitCode.OK
        columns: list[Column[StudySummary]] = [
            Column(title="Study", cell=lambda summary: Text(summary.name, style="name"), wraps=True),
            Column(title="State", cell=_study_state),
            Column(title="Trials", cell=lambda summary: f"{summary.executed_count}/{summary.trial_budget}", right=True),
            Column(title="Failed", cell=lambda summary: str(len(summary.failed)), right=True),
            Column(title="Best R", cell=lambda summary: units.score(_best(summary, "score")), right=True),
            Column(title="Throughput", cell=lambda s: units.times(_best(s, "throughput_ratio")), right=True),
            Column(
                title="Convergence",
                cell=lambda s: units.times(_best(s, "convergence_ratio")),
                right=True,
                from_width=_WIDE,
            ),
            Column(title="Searcher", cell=lambda summary: summary.searcher, from_width=_WIDE),
            Column(title="Workload", cell=_workload, from_width=_VERY_WIDE),
        ]
        print_table(console, columns, summaries)
        return ExitCode.OK


def print_status(name: str, *, url: str | None, form: Format, alpha: float | None, beta: float | None) -> int:
    """Say how far a study is; return the exit code."""
    with opened(url) as storage:
        summary = summary_of(storage, name, alpha=alpha, beta=beta)
        controller = storage.open(name).attribute("controller") if summary.is_running else None
    if form is not Format.TABLE:
        record = study_record(summary)
        print_json(record) if form is Format.JSON else print_csv([record])
        return ExitCode.OK
    console = make_console()
    pairs: list[tuple[str, str | Text]] = [
        ("study", Text(summary.name, style="name")),
        ("state", _study_state(summary)),
        ("trials", tally(summary)),
        ("searcher", summary.searcher),
        ("workload", _workload(summary)),
        ("objective", f"R = {summary.objective.alpha:g} throughput + {summary.objective.beta:g} convergence"),
    ]
    if controller is not None:
        pairs.insert(2, ("run by", f"process {controller['pid']} on {controller['host']}"))
    pairs += [
        ("interrupted" if summary.is_interrupted(trial) else "running", f"trial {trial.number}")
        for trial in summary.trials
        if trial.state is TrialState.RUNNING
    ]
    if state_of(summary) == "unfinished":
        pairs.append(("go on", command("resume", name, url=url)))
    print_pairs(console, pairs)
    write(console, "")
    print_outcome(console, summary)
    return ExitCode.OK


def print_trials(name: str, *, url: str | None, form: Format, alpha: float | None, beta: float | None) -> int:
    """List a study's trials; return the exit code."""
    with opened(url) as storage:
        summary = summary_of(storage, name, alpha=alpha, beta=beta)
    if form is Format.JSON:
        print_json([trial_record(trial) for trial in summary.trials])
    elif form is Format.CSV:
        print_csv([trial_figures(trial, summary.space.names) for trial in summary.trials])
    elif not summary.trials:
        write(make_console(), f"{name} has no trials yet")
    else:
        weights = {"--alpha": alpha, "--beta": beta}
        words = [word for name, weight in weights.items() if weight is not None for word in (name, str(weight))]
        _print_trial_table(summary, all_of_them=command("trials", summary.name, *words, "--format", "csv", url=url))
    return ExitCode.OK


def _summaries(storage: Storage) -> list[StudySummary]:
    """Return the summaries of all studies that autotune can go on with, oldest first; say which it can't read."""
    summaries = []
    for name in storage.names():
        try:
            summaries.append(campaigns.summary(storage.open(name)))
        except (UnreadableStudyError, CampaignError) as error:
            complain(f"{error}", kind="left out")
        except StudyError:
            continue  # being made at this moment, or left half-made by a kill
    return summaries


def _print_trial_table(summary: StudySummary, *, all_of_them: str) -> None:
    best = summary.best

    def marked(trial: Trial) -> Text:
        return Text(r_of(trial), style="good" if best and trial.number == best.number else "")

    columns: list[Column[Trial]] = [
        Column(title="#", cell=lambda trial: str(trial.number), right=True),
        Column(title="State", cell=lambda trial: _trial_state(trial, summary)),
        Column(title="R", cell=marked, right=True),
        Column(title="Throughput", cell=lambda trial: units.times(trial.throughput_ratio), right=True),
        Column(title="Convergence", cell=lambda trial: units.times(trial.convergence_ratio), right=True),
        Column(title="Samples/s", cell=_samples_per_second, right=True, from_width=_WIDE),
        Column(title="Memory", cell=lambda t: units.memory(peak_memory_bytes(t)), right=True, from_width=_VERY_WIDE),
        Column(title="Measured", cell=_length, from_width=_WIDEST),
        Column(title="Took", cell=lambda t: units.seconds(outcome_seconds(t)), right=True, from_width=_VERY_WIDE),
        Column(title="Changed settings, or failure", cell=lambda t: what_happened(t, summary), wraps=True),
    ]
    print_table(make_console(), columns, summary.trials[-_LAST_TRIALS:])
    left_out = len(summary.trials) - _LAST_TRIALS
    if left_out > 0:
        write(make_console(), f"{units.count(left_out, 'earlier trial')} left out; all of them: {all_of_them}")


def _trial_state(trial: Trial, summary: StudySummary) -> Text:
    if summary.is_interrupted(trial):
        return Text(INTERRUPTED, style="yellow")
    return Text(trial.state.value, style=_STATE_STYLES.get(trial.state, ""))


def _samples_per_second(trial: Trial) -> str:
    return units.number(trial.measurement.samples_per_second if trial.measurement else None)


def _length(trial: Trial) -> str:
    return length(trial.measurement) if trial.measurement else ""


def _study_state(summary: StudySummary) -> Text:
    state = state_of(summary)
    return Text(state, style={"running": "good", "unfinished": "yellow"}.get(state, ""))


def _best(summary: StudySummary, name: str) -> float | None:
    return getattr(summary.best, name) if summary.best else None


def _workload(summary: StudySummary) -> str:
    return summary.workload if summary.evaluator == "deepspeed" else f"{summary.evaluator} (no real trials)"
