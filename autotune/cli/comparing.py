"""Comparing searchers: a grid of studies run from one campaign, or studies that have run already."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from autotune import campaign as campaigns
from autotune import comparison as comparisons
from autotune.campaign import Campaign, FinalsSection
from autotune.cli import searchers as searcher_table
from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import print_csv, print_json
from autotune.cli.launching import configured, create, print_plan, raise_budget
from autotune.cli.options import Format
from autotune.cli.session import run
from autotune.cli.studies import opened, weights
from autotune.cli.tables import fits, print_report_table, print_standings
from autotune.comparison import Comparison, Contender, Run, raw, tables
from autotune.errors import CampaignError, StudyError
from autotune.report import units
from autotune.storage import Storage, StoredStudy

_MAY_DIFFER = {"name", "storage", "trials", "folder", "run_directory", "finals", "noise_floor", "baseline_every"}
"""Keys of a campaign that do not change what a trial measures."""
_MEASURED = {"workload", "ds_config", "hardware", "budget", "evaluator", "simulated", "recorded"}
"""Keys that say which workload a study is of, and from where it starts."""
_SEARCH_ALONE = {"finals": FinalsSection(candidates=0), "baseline_every": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One study of the grid."""

    name: str
    campaign: Campaign
    """With the cell's own searcher and seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """How a comparison is shown."""

    path: Path | None
    """Where the report goes; None writes none."""
    raw: Path | None
    """Where a row for each trial goes; None writes none."""
    form: Format
    alpha: float | None
    beta: float | None


def are_campaigns(targets: Sequence[str]) -> bool:
    """Whether what was given are campaign files rather than names of studies.

    Raises:
        CampaignError: when it is some of each.
    """
    files = [target for target in targets if Path(target).suffix in (".yaml", ".yml")]
    if files and len(files) < len(targets):
        raise CampaignError(f"compare: got {', '.join(targets)}; give campaign files, or names of studies")
    return bool(files)


def compare_campaigns(
    paths: Sequence[Path],
    *,
    searchers: Sequence[str],
    trials: int | None,
    seeds: int,
    workloads: int,
    overrides: Sequence[str],
    url: str | None,
    presentation: Presentation,
    quiet: bool,
) -> int:
    """Run what the grid lacks, then compare; return the exit code."""
    if presentation.raw is not None:
        raw.check(presentation.raw)
    loaded = [configured(campaigns.load(path, overrides), searcher=None, trials=trials, url=url) for path in paths]
    _refuse_unlike(loaded)
    entered = [each for campaign in loaded for each in on_workloads(campaign, workloads)]
    cells = grid(entered, searchers, seeds)
    campaign = loaded[0]
    of = f" on {units.count(len(entered), 'workload')}" if len(entered) > 1 else ""
    console = make_console()
    shown = not quiet and presentation.form is Format.TABLE
    with opened(campaign.storage, must_exist=False) as storage:
        for number, cell in enumerate(cells):
            stored = _study(storage, cell)
            summary = campaigns.summary(stored)
            if shown and number == 0:
                print_plan(
                    console,
                    summary,
                    cell.campaign,
                    title=f"{len(cells)} to compare: {', '.join(searchers)}, {units.count(seeds, 'seed')} each{of}",
                )
            title = f"[{number + 1}/{len(cells)}] {cell.name}"
            if summary.executed_count >= cell.campaign.trials:
                if shown:
                    write(console, f"{title}: finished before, {units.count(summary.executed_count, 'trial')}")
                continue
            ended = run(stored, console=console, quiet=not shown, title=f"{title}  ", go_on="the same command again")
            if shown:
                best = units.score(ended.summary.best.score if ended.summary.best else None)
                write(console, f"{title}: {ended.reason}; best R {best}")
            if ended.was_stopped and ended.summary.executed_count < cell.campaign.trials:
                write(console, f"Stopped in study {number + 1} of {len(cells)}; the same command goes on from here.")
                return ExitCode.STOPPED
        chosen = [storage.open(cell.name) for cell in cells]
        return _show(console, chosen, trial_budget=campaign.trials, presentation=presentation)


def compare_studies(names: Sequence[str], *, url: str | None, presentation: Presentation) -> int:
    """Compare studies that have run; return the exit code."""
    if len(set(names)) < len(names):
        raise StudyError(f"compare: got {', '.join(names)}; name every study once")
    if presentation.raw is not None:
        raw.check(presentation.raw)
    with opened(url) as storage:
        chosen = [storage.open(name) for name in names]
        budget = min(campaigns.summary(stored).trial_budget for stored in chosen)
        return _show(make_console(), chosen, trial_budget=budget, presentation=presentation)


def on_workloads(campaign: Campaign, workloads: int) -> list[Campaign]:
    """Return a campaign on so many simulated workloads, its own first; with one the campaign as it is.

    Raises:
        CampaignError: when there are several and its trials are not simulated.
    """
    if workloads == 1:
        return [campaign]
    if campaign.evaluator != "simulated":
        raise CampaignError(
            f"--workloads: got {workloads}, and the trials of {campaign.name} are {campaign.evaluator}: only simulated "
            "workloads can be made up; give --evaluator simulated, or a campaign file for each workload"
        )
    seeds = [campaign.simulated.workload_seed + number for number in range(workloads)]
    return [
        campaign.model_copy(
            update={
                "name": f"{campaign.name}-workload{seed}",
                "simulated": campaign.simulated.model_copy(update={"workload_seed": seed}),
            }
        )
        for seed in seeds
    ]


def _refuse_unlike(loaded: Sequence[Campaign]) -> None:
    for name, count in Counter(campaign.name for campaign in loaded).items():
        if count > 1:
            raise CampaignError(f"compare: got {count} campaigns of the name {name}; give each a name of its own")
    for key in ("trials", "storage", "evaluator", "objective"):
        found = {str(getattr(campaign, key)) for campaign in loaded}
        if len(found) > 1:
            raise CampaignError(
                f"compare: the campaigns have different {key} ({' and '.join(sorted(found))}); set one for all "
                f"(--set {key}=...)"
            )


def grid(entered: Sequence[Campaign], searchers: Sequence[str], seeds: int) -> list[Cell]:
    """Return workloads x searchers x seeds studies, in an order that spreads a machine's drift over all searchers.

    They have no finals, and their baseline is not watched: a comparison takes the scores that each search got itself.

    Raises:
        CampaignError: when a searcher is unknown or given twice.
    """
    names = [name.strip() for name in searchers]
    for name, count in Counter(names).items():
        searcher_table.check(name)
        if count > 1:
            raise CampaignError(f"--searchers: got {name} {count} times; name every searcher once")
    cells = []
    for turn, (offset, campaign) in enumerate(itertools.product(range(seeds), entered)):
        seed = campaign.seed + offset
        first = turn % len(names)
        for searcher in (*names[first:], *names[:first]):
            study_name = f"{campaign.name}-{searcher.replace(':', '.')}-seed{seed}"
            changed = campaign.model_copy(
                update={"name": study_name, "searcher": searcher, "seed": seed, **_SEARCH_ALONE}
            )
            cells.append(Cell(name=study_name, campaign=changed))
    return cells


def _study(storage: Storage, cell: Cell) -> StoredStudy:
    """Return the cell's study, made if it is missing.

    Raises:
        StudyError: when there is one of that name that measures something else.
    """
    if cell.name not in storage.names():
        return create(cell.campaign, storage, name=cell.name)
    stored = storage.open(cell.name)
    then, now = (
        campaign.model_dump(exclude=_MAY_DIFFER) for campaign in (campaigns.campaign_of(stored), cell.campaign)
    )
    different = [key for key, value in now.items() if then.get(key) != value]
    if different:
        key = different[0]
        raise StudyError(
            f"study {cell.name!r} is in the storage already, with {key} {then.get(key)!r} instead of {now[key]!r}; "
            f"give the campaign another name (--set name=...), or another --storage"
        )
    if campaigns.summary(stored).trial_budget < cell.campaign.trials:
        raise_budget(stored, cell.campaign.trials)
    return stored


def _show(console: Console, chosen: Sequence[StoredStudy], *, trial_budget: int, presentation: Presentation) -> int:
    objective = weights(campaigns.summary(chosen[0]).objective, alpha=presentation.alpha, beta=presentation.beta)
    contenders = _contenders(chosen)
    compared = comparisons.compare(contenders, trial_budget=trial_budget, objective=objective)
    if presentation.path is not None:
        write_report(compared, presentation.path)
    if presentation.raw is not None:
        raw.write(raw.records(contenders, compared), presentation.raw)
    rows = comparisons.rows(compared)
    if presentation.form is Format.JSON:
        print_json(rows)
    elif presentation.form is Format.CSV:
        print_csv(rows)
    else:
        _print(console, compared)
        written = [str(path) for path in (presentation.path, presentation.raw) if path is not None]
        if written:
            write(console, f"\nwritten  {', '.join(written)}")
    return ExitCode.OK


def _contenders(chosen: Sequence[StoredStudy]) -> list[Contender]:
    """Group studies by searcher; where a searcher has two of one seed and workload, every study stands for itself."""
    workloads: dict[str, str] = {}
    runs = []
    for stored in chosen:
        summary, campaign = campaigns.summary(stored), campaigns.campaign_of(stored)
        found = Run(
            seed=campaign.seed,
            workload=_workload(campaign, workloads),
            trials=tuple(summary.trials),
            replay_slots=campaigns.replay_slots(campaign),
        )
        runs.append((summary.searcher, stored.name, found))
    repeats = Counter((searcher, found.workload, found.seed) for searcher, _, found in runs)
    contenders: dict[str, list[Run]] = defaultdict(list)
    for searcher, name, found in runs:
        contenders[searcher if max(repeats.values()) == 1 else name].append(found)
    return [Contender(name=name, runs=tuple(of)) for name, of in contenders.items()]


def _workload(campaign: Campaign, known: dict[str, str]) -> str:
    """Return the name of what a campaign measures; of two of one name the second gets a number.

    Args:
        campaign: the campaign.
        known: names given so far, by what they stand for; a new one is added.
    """
    measured = campaign.model_dump_json(include=_MEASURED)
    if measured not in known:
        name = {
            "simulated": f"simulated workload {campaign.simulated.workload_seed}",
            "recorded": Path(campaign.recorded.path or "").name,
            "deepspeed": campaign.workload.name,
        }[campaign.evaluator]
        taken = sum(other == name or other.startswith(f"{name} (") for other in known.values())
        known[measured] = f"{name} ({taken + 1})" if taken else name
    return known[measured]


def write_report(compared: Comparison, path: Path) -> None:
    """Write the report, Markdown where the path says so, else HTML."""
    if path.suffix == ".md":
        comparisons.write_markdown(compared, path)
    else:
        comparisons.write_html(compared, path)


def _print(console: Console, compared: Comparison) -> None:
    write(console, "")
    write(console, Text(comparisons.headline(compared), style="name"))
    for sentence in (*comparisons.verdicts(compared), *compared.notes):
        write(console, Text(sentence, style="muted"))
    write(console, "")
    print_standings(console, tables.standings(compared))
    best = tables.by_trials(compared)
    if not fits(console, best):
        best = tables.by_trials(compared, with_intervals=False)
    for table in (best, tables.duels(compared, last_only=True)):
        if table.rows:
            write(console, "")
            print_report_table(console, table)
