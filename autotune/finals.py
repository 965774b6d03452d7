"""Finals: a study's leaders run again in turns with the user's configuration, until one wins or a tie is declared.

The highest of many noisy figures is flattered by luck, so the search alone names no winner. Finalists run in rounds,
forth in one and back in the next (ABBA), so that a drift of the machine's speed cancels out of their ratios. Who was
far behind in the search and is so again drops out at once; from a given round on the worse half drops out after each.
Who ran twice or more and can't be told from the leader stays. The runs that this spares go to the others: successive
halving (Z. Karnin, T. Koren, O. Somekh, "Almost Optimal Exploration in Multi-Armed Bandits", ICML 2013, section 3; K.
Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016, section
2), with a test in the place of a fixed schedule.

The record holds what was run and nothing that was concluded: the standing is judged from it anew each time, so that
finals go on after a stop where they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from autotune.objective import Objective
from autotune.remeasuring import Mean, Remeasured, gains, mean_with_interval
from autotune.study import Study
from autotune.trials import Trial

_LEAST_ROUNDS = 2
"""Whole ones, for an interval."""
_REFERENCE_FAILURES = 2
"""Failures of the reference that end the finals: without it no round has a ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Who takes part, how long it goes on, and what is called a tie."""

    candidates: int
    """Trials beside the reference, at most; 0: no finals."""
    rounds: int
    """Each finalist's, before one drops out for being slow."""
    runs: int
    """At most, all finalists and the reference together."""
    noise_floor: float
    """Relative difference in R below which two are a tie, whatever their interval says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A trial that takes part."""

    number: int
    changes: int
    """Settings in which it differs from the user's configuration."""
    score: float
    """R in the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run in the finals."""

    round: int
    """From 1."""
    number: int
    """Of the trial whose configuration ran."""
    result: Remeasured
    at: str
    """When it ended: UTC, ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is kept of finals: who takes part, by which rules, and every run so far, in order."""

    entrants: tuple[Entrant, ...]
    """Without the reference, the best of the search first."""
    reference: Entrant
    """What R is relative to; it runs in every round."""
    reference_is_baseline: bool
    """Whether that is the user's configuration; not where the latter failed."""
    executed_trials: int
    """Of the study when the finals began: with more of them, these finals are history."""
    rules: Rules
    reach: float
    """How many times the R of another that is as good one run may have, by noise: who is further behind in the search
    and in the runs so far is out, whatever the round, unless the interval of two runs or more says otherwise."""
    runs: tuple[Run, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `Record.from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Read what `to_json` wrote."""
        return cls(
            entrants=tuple(Entrant(**entrant) for entrant in data["entrants"]),
            reference=Entrant(**data["reference"]),
            reference_is_baseline=data["reference_is_baseline"],
            executed_trials=data["executed_trials"],
            rules=Rules(**data["rules"]),
            reach=data["reach"],
            runs=tuple(Run(**{**run, "result": Remeasured(**run["result"])}) for run in data["runs"]),
        )


class Verdict(StrEnum):
    """What finals came to."""

    WINNER = "winner"
    TIE = "tie"
    """Some can't be told from the leader; the one nearest to the user's configuration is taken."""
    NOTHING_BETTER = "nothing better"
    """The user's configuration can't be told from the leader, or leads."""
    UNDECIDED = "undecided"
    """The reference failed when it was run again, so that there are no ratios."""


class Place(StrEnum):
    """How a finalist stands."""

    IN = "in"
    WINNER = "winner"
    TIED = "tied"
    OUT = "out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """One entrant, or the reference, as it stands."""

    number: int
    changes: int
    is_reference: bool
    scores: tuple[float, ...]
    """R over the reference's own, by round."""
    throughput: Mean
    """Over the reference's."""
    convergence: Mean
    score: Mean
    of_leader: Mean
    """Its R over the leader's, of the rounds that both ran."""
    place: Place
    left_in: int | None = None
    """The round after which it was out."""
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finals:
    """Finals as they stand."""

    record: Record
    finalists: tuple[Finalist, ...]
    """Those who stayed longest first, of these the highest mean R first."""
    leader: int
    """Number of the trial with the highest mean R of those who stayed."""
    rounds: int
    """Whole ones."""
    next_run: tuple[int, int] | None
    """(round, trial number) of the run to come; None when it is over."""
    verdict: Verdict | None
    """None while runs are to come."""
    winner: int | None
    """Number of the trial that is taken; None while runs are to come, and where nothing is decided."""

    def finalist(self, number: int) -> Finalist | None:
        """Return one by its trial's number; None for a trial that took no part."""
        return next((finalist for finalist in self.finalists if finalist.number == number), None)

    @property
    def tied(self) -> tuple[int, ...]:
        """Numbers of the trials that can't be told from the leader, itself and the one that is taken among them."""
        places = (Place.WINNER, Place.TIED)
        return tuple(finalist.number for finalist in self.finalists if finalist.place in places)


def leaders(trials: Sequence[Trial], *, reference: Trial, rules: Rules, champion: Trial | None = None) -> list[Trial]:
    """Return the trials, but for the reference, with the highest scores, the highest first.

    Args:
        trials: completed, of one study, the reference among them.
        reference: runs in every round without this.
        rules: of the finals; fewer take part than they allow where the runs don't suffice for the rounds of all.
        champion: winner of earlier finals, which takes part whatever its score.
    """
    places = min(rules.candidates, rules.runs // rules.rounds - 1)
    ranked = sorted(trials, key=lambda trial: (-(trial.score or 0.0), trial.number))
    first = [trial for trial in ranked if trial.number != reference.number][:places]
    is_missed = champion is not None and champion.number not in {reference.number, *(trial.number for trial in first)}
    return [*first[: places - 1], champion] if champion is not None and is_missed and places > 0 else first


def hold(
    study: Study,
    record: Record,
    *,
    trials: Mapping[int, Trial],
    objective: Objective,
    keep: Callable[[Record], None],
    before_run: Callable[[Finals], None],
    after_run: Callable[[Finals], None],
) -> Finals:
    """Run what finals lack; return how they stand, which is not the end where a stop came.

    Args:
        study: entered; nothing is recorded as a trial.
        record: new, or of finals that were stopped.
        trials: of the study, by number.
        objective: of the study.
        keep: stores the record, after every run.
        before_run: hears of the standing with `next_run` about to begin.
        after_run: hears of the standing with the run just ended as the last of the record.
    """
    standing = judge(record, objective)
    while standing.next_run is not None:
        before_run(standing)
        number_of_round, number = standing.next_run
        outcome = study.remeasure(trials[number])
        if outcome is None:
            break
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        run = Run(round=number_of_round, number=number, result=Remeasured.of(outcome), at=now)
        record = replace(record, runs=(*record.runs, run))
        keep(record)
        standing = judge(record, objective)
        after_run(standing)
    return standing


def judge(record: Record, objective: Objective) -> Finals:
    """Return how finals stand: who is out since when, what runs next, or who wins."""
    return _Bout(record, objective).standing()


class _Bout:
    """Goes through the rounds of a record."""

    def __init__(self, record: Record, objective: Objective) -> None:
        self._record = record
        self._objective = objective
        self._kept = {(run.round, run.number): run.result for run in record.runs}
        self._results: dict[tuple[int, int], Remeasured] = {}
        """Of the rounds gone through so far: what came later has no part in a decision."""
        self._scored: dict[int, dict[int, float]] = {}
        """By number and round, from `_results`; emptied when they grow."""
        self._entrants = {entrant.number: entrant for entrant in (record.reference, *record.entrants)}
        self._remaining = [entrant.number for entrant in record.entrants]
        self._out: dict[int, int] = {}
        self._failed: dict[int, str] = {}
        self._rounds = 0

    def standing(self) -> Finals:
        used, number_of_round = 0, 1
        while self._remaining and self._reference_failures < _REFERENCE_FAILURES:
            order = [self._record.reference.number, *self._remaining]
            if used + len(order) > self._record.rules.runs or self._is_decided():
                break
            for number in order if number_of_round % 2 else reversed(order):
                result = self._kept.get((number_of_round, number))
                if result is None:
                    return self._stands(next_run=(number_of_round, number))
                self._results[number_of_round, number] = result
                self._scored.clear()
                if result.failure is not None and number != self._record.reference.number:
                    self._leave(number, number_of_round, failure=result.failure)
            used += len(order)
            self._rounds += self._reference(number_of_round) is not None
            self._drop(number_of_round)
            number_of_round += 1
        return self._end(last_round=number_of_round - 1)

    def _drop(self, number_of_round: int) -> None:
        """Let go who is far behind, and later the worse half, but for those that can't be told from the leader."""
        far = [number for number in self._remaining if self._is_far_behind(number)]
        ranked = sorted(self._remaining, key=self._mean, reverse=True)
        if self._rounds >= self._record.rules.rounds:
            far += [number for number in ranked[len(ranked) - len(ranked) // 2 :] if self._is_behind(number)]
        for number in dict.fromkeys(far):
            self._leave(number, number_of_round)

    def _end(self, *, last_round: int) -> Finals:
        reference, rules = self._record.reference.number, self._record.rules
        if self._rounds < _LEAST_ROUNDS and self._remaining:
            return self._stands(verdict=Verdict.UNDECIDED)
        for number in [number for number in self._remaining if self._is_behind(number)]:
            self._leave(number, last_round)
        tied = [number for number in (*self._remaining, reference) if not self._is_behind(number)]
        if self._record.reference_is_baseline and reference in tied:
            return self._stands(verdict=Verdict.NOTHING_BETTER, winner=reference, tied=tied)
        best = self._mean(self._leader)
        near = [number for number in tied if self._mean(number) * (1 + rules.noise_floor) >= best]
        winner = min(near, key=lambda number: (self._entrants[number].changes, -self._mean(number), number))
        verdict = Verdict.WINNER if len(tied) == 1 else Verdict.TIE
        return self._stands(verdict=verdict, winner=winner, tied=tied)

    def _stands(
        self,
        *,
        next_run: tuple[int, int] | None = None,
        verdict: Verdict | None = None,
        winner: int | None = None,
        tied: Sequence[int] = (),
    ) -> Finals:
        def place(number: int) -> Place:
            if number in self._failed:
                return Place.FAILED
            if number == winner:
                return Place.WINNER
            if number in tied:
                return Place.TIED
            return Place.OUT if number in self._out or winner is not None else Place.IN

        finalists = [self._finalist(number, place(number)) for number in self._entrants]
        stay = max(self._out.values(), default=0) + 1
        finalists.sort(key=lambda f: (-(f.left_in or stay), f.failure is not None, -self._mean(f.number), f.number))
        return Finals(
            record=self._record,
            finalists=tuple(finalists),
            leader=self._leader,
            rounds=self._rounds,
            next_run=next_run,
            verdict=verdict,
            winner=winner,
        )

    def _finalist(self, number: int, place: Place) -> Finalist:
        found = gains(self._pairs(number), self._objective)
        return Finalist(
            number=number,
            changes=self._entrants[number].changes,
            is_reference=number == self._record.reference.number,
            scores=found.score,
            throughput=mean_with_interval(found.throughput),
            convergence=mean_with_interval(found.convergence),
            score=mean_with_interval(found.score),
            of_leader=self._of_leader(number),
            place=place,
            left_in=self._out.get(number),
            failure=self._failed.get(number),
        )

    def _is_decided(self) -> bool:
        """Whether more rounds would tell nothing new: all others are behind, or too near to be told apart."""
        if self._rounds < self._record.rules.rounds:
            return False
        nearest = 1 / (1 + self._record.rules.noise_floor)
        others = [n for n in (*self._remaining, self._record.reference.number) if n != self._leader]
        return all(self._is_behind(number) or (self._of_leader(number).low or 0.0) > nearest for number in others)

    def _is_far_behind(self, number: int) -> bool:
        """Whether it is further behind than one run explains, in the search and in the runs so far.

        From the second run on there is an interval, and who can't be told from the leader by it is not far behind.
        """
        ratio, in_search = self._of_leader(number), self._entrants[number].score
        leaders = self._entrants[self._leader].score
        if ratio.value is None or (ratio.high is not None and not self._is_behind(number)):
            return False
        return ratio.value * self._record.reach < 1 and in_search * self._record.reach < leaders

    def _is_behind(self, number: int) -> bool:
        """Whether the interval of its R over the leader's is below 1, and the difference above the noise floor."""
        ratio = self._of_leader(number)
        if number == self._leader or ratio.value is None or ratio.high is None:
            return False
        return ratio.high < 1 and ratio.value * (1 + self._record.rules.noise_floor) < 1

    @property
    def _leader(self) -> int:
        return max((*self._remaining, self._record.reference.number), key=lambda number: (self._mean(number), -number))

    def _of_leader(self, number: int) -> Mean:
        """Return its R over the leader's: 1 - difference / mean leader where one is not positive.

        The leader's mean is at least 1, which is the reference's own.
        """
        own, leaders = self._scores(number), self._scores(self._leader)
        both = [(own[each], leaders[each]) for each in own if each in leaders]
        if not both or number == self._leader:
            return mean_with_interval([1.0] * len(both))
        if all(score > 0 for pair in both for score in pair):
            return mean_with_interval([score / leader for score, leader in both])
        mean = sum(leader for _, leader in both) / len(both)
        return mean_with_interval([1 - (leader - score) / mean for score, leader in both])

    def _mean(self, number: int) -> float:
        return mean_with_interval(list(self._scores(number).values())).value or 0.0

    def _scores(self, number: int) -> dict[int, float]:
        """Return R over the reference's own by round, of the rounds in which both gave figures."""
        if number not in self._scored:
            scores = gains(self._pairs(number), self._objective).score
            self._scored[number] = dict(zip(self._common_rounds(number), scores, strict=True))
        return self._scored[number]

    def _pairs(self, number: int) -> list[tuple[Remeasured, Remeasured]]:
        reference = self._record.reference.number
        return [(self._results[each, reference], self._results[each, number]) for each in self._common_rounds(number)]

    def _common_rounds(self, number: int) -> list[int]:
        return [
            each
            for each, who in self._results
            if who == number and self._results[each, who].failure is None and self._reference(each) is not None
        ]

    def _reference(self, number_of_round: int) -> Remeasured | None:
        """Return the reference's run of a round; None where it gave no figures, or is to come."""
        result = self._results.get((number_of_round, self._record.reference.number))
        return result if result is not None and result.failure is None else None

    @property
    def _reference_failures(self) -> int:
        reference = self._record.reference.number
        return sum(run.failure is not None for (_, number), run in self._results.items() if number == reference)

    def _leave(self, number: int, number_of_round: int, *, failure: str | None = None) -> None:
        self._remaining.remove(number)
        self._out[number] = number_of_round
        if failure is not None:
            self._failed[number] = failure
