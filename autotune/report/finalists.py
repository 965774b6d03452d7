"""The finals of a study in words."""

from __future__ import annotations

from autotune.finals import Finalist, Finals, Place, Verdict
from autotune.remeasuring import LEVEL, Mean
from autotune.report import units
from autotune.report.summary import StudySummary


def headline(finals: Finals) -> str:
    """Return what the finals came to, in one sentence."""
    if finals.verdict is None:
        return (
            f"Finals are under way: {units.count(len(finals.record.runs), 'run')} of at most "
            f"{finals.record.rules.runs}, no winner yet."
        )
    winner = finals.finalist(finals.winner) if finals.winner is not None else None
    if winner is None:
        return "The finals named no winner: the configuration that R is relative to failed when it was run again."
    if finals.verdict is Verdict.NOTHING_BETTER:
        return _nothing_better(finals)
    record = finals.record
    beside = "yours" if record.reference_is_baseline else f"trial {record.reference.number}, which R is relative to"
    measured = f"run again {units.count(len(winner.scores), 'time')} in turns with {beside}, it has {gain(winner)}"
    if finals.verdict is Verdict.WINNER:
        return f"Trial {winner.number} wins the finals: {measured}."
    tied = units.listed([str(number) for number in sorted(finals.tied)])
    return (
        f"A tie: trials {tied} can't be told apart. Trial {winner.number} is taken, which changes least of your "
        f"configuration ({units.count(winner.changes, 'setting')}): {measured}."
    )


def gain(finalist: Finalist) -> str:
    """Return its figures over the reference's: '1.62x (1.58 to 1.66) the throughput and R = 1.460 (1.431 to 1.490)'."""
    parts = [f"{times(finalist.throughput)} the throughput"]
    if finalist.convergence.value is not None:
        parts.append(f"{times(finalist.convergence)} the convergence speed")
    return f"{units.listed(parts)} (R = {score(finalist.score)})"


def notes(summary: StudySummary) -> list[str]:
    """Return what else a reader of the finals must know."""
    finals = summary.finals
    if finals is None:
        return []
    record = finals.record
    found = [
        f"Trial {each.number} failed when it was run again and is out: {each.failure}"
        for each in finals.finalists
        if each.failure is not None
    ]
    failed = [run for run in record.runs if run.number == record.reference.number and run.result.failure is not None]
    found += [f"Round {run.round} has no ratios, as the reference failed: {run.result.failure}" for run in failed]
    leading, winner = summary.leading, finals.finalist(finals.winner) if finals.winner is not None else None
    again = finals.finalist(leading.number) if leading is not None else None
    if leading is not None and again is not None and winner is not None and again.score.value is not None:
        found.append(
            f"The search had trial {leading.number} first, at R = {units.score(leading.score)}, the highest of "
            f"{units.count(len(summary.completed), 'noisy figure')}; run again it is {score(again.score)}."
        )
    return found


def rule(finals: Finals) -> str:
    """Return what a tie is, and who is taken then."""
    level, floor = units.percent(LEVEL), units.percent(finals.record.rules.noise_floor)
    return (
        f"Finalists ran in rounds, forth in one and back in the next, so that a drift of the machine cancels out. Two "
        f"are tied where the {level} interval of their ratio includes 1, or they differ by less than {floor}, "
        "the noise floor. Where your configuration is tied with the leader, it stays. Else the one that changes the fewest of "
        f"your settings is taken of those tied and less than {floor} behind the leader, then the one with the higher R."
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
