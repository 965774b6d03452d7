"""Comparing searchers: a grid of studies run from one campaign, or studies that have run already."""

from __future__ import annotations

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
from autotune.comparison import Comparison, Contender, Run, tables
from autotune.errors import CampaignError, StudyError
from autotune.objective import Objective
from autotune.report import page, units
from autotune.storage import Storage, StoredStudy

_MAY_DIFFER = {"name", "storage", "trials", "folder", "run_directory", "finals", "noise_floor", "baseline_every"}
"""Keys of a campaign that do not change what a trial measures."""
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
    form: Format
    alpha: float | None
    beta: float | None


def is_campaign(targets: Sequence[str]) -> bool:
    """Whether what was given is a campaign file rather than names of studies.

    Raises:
        CampaignError: when there is a campaign file among several targets.
    """
    files = [target for target in targets if Path(target).suffix in (".yaml", ".yml")]
    if files and len(targets) > 1:
        raise CampaignError(f"compare: got {', '.join(targets)}; give one campaign file, or names of studies")
    return bool(files)


def compare_campaign(
    path: Path,
    *,
    searchers: Sequence[str],
    trials: int | None,
    seeds: int,
    overrides: Sequence[str],
    url: str | None,
    presentation: Presentation,
    quiet: bool,
) -> int:
    """Run what the grid lacks, then compare; return the exit code."""
    loaded = campaigns.load(path, overrides)
    campaign = configured(loaded, searcher=None, trials=trials, url=url)
    cells = grid(campaign, searchers, seeds)
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
                    title=f"{len(cells)} to compare: {', '.join(searchers)}, {units.count(seeds, 'seed')} each",
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
    with opened(url) as storage:
        chosen = [storage.open(name) for name in names]
        budget = min(campaigns.summary(stored).trial_budget for stored in chosen)
        return _show(make_console(), chosen, trial_budget=budget, presentation=presentation)


def grid(campaign: Campaign, searchers: Sequence[str], seeds: int) -> list[Cell]:
    """Return searchers x seeds studies, in an order that spreads a drift of the machine over all searchers.

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
    for offset in range(seeds):
        seed = campaign.seed + offset
        first = offset % len(names)
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
    compared = _compared(chosen, trial_budget=trial_budget, objective=objective)
    if presentation.path is not None:
        write_report(compared, presentation.path)
    rows = comparisons.rows(compared)
    if presentation.form is Format.JSON:
        print_json(rows)
    elif presentation.form is Format.CSV:
        print_csv(rows)
    else:
        _print(console, compared)
        if presentation.path is not None:
            write(console, f"\nwritten  {presentation.path}")
    return ExitCode.OK


def _compared(chosen: Sequence[StoredStudy], *, trial_budget: int, objective: Objective) -> Comparison:
    """Group studies by searcher; where a searcher has two of one seed, every study stands for itself."""
    runs = []
    for stored in chosen:
        summary = campaigns.summary(stored)
        found = Run(seed=campaigns.campaign_of(stored).seed, trials=tuple(summary.trials))
        runs.append((summary.searcher, stored.name, found))
    repeats = Counter((searcher, found.seed) for searcher, _, found in runs)
    contenders: dict[str, list[Run]] = defaultdict(list)
    for searcher, name, found in runs:
        contenders[searcher if max(repeats.values()) == 1 else name].append(found)
    return comparisons.compare(
        [Contender(name=name, runs=tuple(of)) for name, of in contenders.items()],
        trial_budget=trial_budget,
        objective=objective,
    )


def write_report(compared: Comparison, path: Path) -> None:
    """Write the report, Markdown where the path says so, else HTML."""
    if path.suffix == ".md":
        page.write(comparisons.to_markdown(compared), path)
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
