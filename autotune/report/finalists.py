"""The finals of a study in words."""

from __future__ import annotations

from autotune.finals import Finalist, Finals, Place, Verdict
from autotune.remeasuring import LEVEL, Mean
from autotune.report import units
from autotune.report.summary import StudySummary
from autotune.storage import command


def headline(summary: StudySummary) -> str:
    """Return what the finals of a study came to, in one sentence; '' for one without finals."""
    finals = summary.finals
    if finals is None:
        return ""
    if finals.verdict is None:
        far = f"{units.count(len(finals.record.runs), 'run')} of at most {finals.record.rules.runs}, no winner yet"
        if summary.is_running:
            return f"Finals are under way: {far}."
        go_on = command("resume", summary.name, url=summary.storage_url)
        return f"The finals were stopped: {far}. Go on with them: {go_on}"
    winner = finals.finalist(finals.winner) if finals.winner is not None else None
    if winner is None:
        return "The finals named no winner: the configuration that R is relative to failed when it was run again."
    if finals.verdict is Verdict.NOTHING_BETTER:
        return _nothing_better(finals)
    if finals.verdict is Verdict.WINNER:
        own = "yours" if finals.record.reference_is_baseline else f"trial {finals.record.reference.number}"
        return f"Trial {winner.number} wins the finals: {_in_short(winner, own)}."
    tied = units.listed([str(number) for number in sorted(finals.tied)])
    return f"A tie: trials {tied} can't be told apart; trial {winner.number} is taken."


def notes(summary: StudySummary) -> list[str]:
    """Return what else a reader of the finals must know."""
    finals = summary.finals
    if finals is None:
        return []
    record = finals.record
    winner = finals.finalist(finals.winner) if finals.winner is not None else None
    found = [_measured(finals, winner)] if winner is not None and not winner.is_reference else []
    found += [
        f"Trial {each.number} failed when it was run again and is out: {each.failure}"
        for each in finals.finalists
        if each.failure is not None
    ]
    failed = [run for run in record.runs if run.number == record.reference.number and run.result.failure is not None]
    found += [f"Round {run.round} has no ratios, as the reference failed: {run.result.failure}" for run in failed]
    leading = summary.leading
    again = finals.finalist(leading.number) if leading is not None else None
    if leading is not None and again is not None and winner is not None and again.score.value is not None:
        rerun = "" if leading.number == winner.number else f"; run again it is {score(again.score)}"
        found.append(
            f"The search had trial {leading.number} first, at R = {units.score(leading.score)}, the highest of "
            f"{units.count(len(summary.completed), 'noisy figure')}{rerun}."
        )
    return found


def rule(finals: Finals) -> str:
    """Return what a tie is, and who is taken then."""
    level, floor = units.percent(LEVEL), units.percent(finals.record.rules.noise_floor)
    far = units.times(finals.record.reach)
    return (
        "Finalists ran in rounds, forth in one and back in the next, so that a drift of the machine cancels out. Who "
        f"was behind by {far} or more in the search and again has no further runs, unless it ran twice or more and is "
        f"tied with the leader. Two are tied where the {level} interval of their ratio includes 1, or they differ by "
        f"less than {floor}, the noise floor. Where your configuration is tied with the leader, it stays. Else the one "
        f"that changes the fewest of your settings is taken of those tied and less than {floor} behind the leader, "
        "then the one with the higher R."
    )


def verdict(finals: Finals, finalist: Finalist) -> str:
    """Return how a finalist stands: 'winner', 'tied', 'out in round 3'."""
    if finalist.place is Place.FAILED:
        return f"failed in round {finalist.left_in}"
    if finalist.place is Place.OUT and finalist.left_in is not None:
        return f"out in round {finalist.left_in}"
    if finalist.is_reference and finalist.place in (Place.OUT, Place.IN):
        return "reference"
    if finalist.place is Place.WINNER and finals.verdict is Verdict.NOTHING_BETTER:
        return "stays"
    if finalist.place is Place.WINNER and finals.verdict is Verdict.TIE:
        return "tied, taken"
    return finalist.place.value


def name(finals: Finals, finalist: Finalist) -> str:
    """Return what a finalist is called: 'trial 7', 'yours (trial 0)'."""
    is_own = finalist.is_reference and finals.record.reference_is_baseline
    return f"yours (trial {finalist.number})" if is_own else f"trial {finalist.number}"


def next_run(finals: Finals) -> str:
    """Return the run to come: 'finals, round 2, run 7 of at most 20: trial 5'."""
    number_of_round, number = finals.next_run or (0, 0)
    done, most = len(finals.record.runs), finals.record.rules.runs
    return f"finals, round {number_of_round}, run {done + 1} of at most {most}: trial {number}"


def last_run(finals: Finals) -> str:
    """Return the last run on one line, and who dropped out by it."""
    run = finals.record.runs[-1]
    told = run.result.failure or f"{units.number(run.result.samples_per_second)} samples/s"
    lines = [f"finals  round {run.round}  trial {run.number:>3}  {told}"]
    is_round_over = finals.next_run is None or finals.next_run[0] > run.round
    left = [each for each in finals.finalists if each.left_in == run.round and each.failure is None]
    lines += [
        f"finals  round {run.round}  trial {each.number:>3}  out: {_behind(finals, each)}"
        for each in left
        if is_round_over
    ]
    return "\n".join(lines)


def times(mean: Mean) -> str:
    """Return a mean ratio with its interval: '1.62x (1.58 to 1.66)'."""
    if mean.low is None or mean.high is None:
        return units.times(mean.value)
    return f"{units.times(mean.value)} ({units.times(mean.low)} to {units.times(mean.high)})"


def score(mean: Mean) -> str:
    """Return a mean R with its interval: '1.460 (1.431 to 1.490)'."""
    if mean.low is None or mean.high is None or mean.low == mean.high:
        return units.score(mean.value)
    return f"{units.score(mean.value)} ({units.score(mean.low)} to {units.score(mean.high)})"


def _in_short(finalist: Finalist, reference: str) -> str:
    """Return its figures over the reference's, without intervals."""
    parts = [f"{units.times(finalist.throughput.value)} the throughput"]
    if finalist.convergence.value is not None:
        parts.append(f"{units.times(finalist.convergence.value)} the convergence speed")
    return f"{units.listed(parts)} of {reference} (R = {units.score(finalist.score.value)})"


def _measured(finals: Finals, winner: Finalist) -> str:
    """Return what was found of the one that is taken, and why it is where others are tied."""
    reference = finals.record.reference.number
    beside = "yours" if finals.record.reference_is_baseline else f"trial {reference}, which R is relative to"
    figures = [f"{times(winner.throughput)} the throughput"]
    if winner.convergence.value is not None:
        figures.append(f"{times(winner.convergence)} the convergence speed")
    again = units.count(len(winner.scores), "time")
    said = f"Run again {again} in turns with {beside}, trial {winner.number} has {units.listed(figures)}, "
    said += f"and R = {score(winner.score)}."
    if finals.verdict is not Verdict.TIE:
        return said
    if winner.number == finals.leader:
        return f"{said} Of those tied it has the highest R."
    return f"{said} It changes fewer of your settings ({winner.changes}) than trial {finals.leader}, the leader in R."


def _nothing_better(finals: Finals) -> str:
    others = [each for each in finals.finalists if not each.is_reference and each.score.value is not None]
    said = "Nothing found that is faster than yours beyond noise"
    if not others:
        return f"{said}: every other finalist failed when it was run again."
    nearest = max(others, key=lambda each: each.score.value or 0.0)
    rounds = units.count(len(nearest.scores), "round")
    return f"{said}: in {rounds} of the finals the nearest, trial {nearest.number}, has R = {score(nearest.score)}."


def _behind(finals: Finals, finalist: Finalist) -> str:
    return f"{times(finalist.of_leader)} the R of trial {finals.leader}"
