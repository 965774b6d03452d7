"""What a comparison shows, in words: who wins at which budget, or that it can't be told, and why."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.comparison.contest import Comparison, Duel, Mark, Unit
from autotune.comparison.statistics import LEAST_RUNS, LEVEL, Estimate, pairs_needed
from autotune.report import units


def headline(comparison: Comparison) -> str:
    """Return the one sentence that a reader came for."""
    standings = comparison.standings
    after = mark_in_words(comparison.last_mark)
    if len(standings) == 1:
        return f"{standings[0].name} reaches R = {units.score(standings[0].final.value)} {after}."
    if not can_claim(comparison):
        return f"One run each is no evidence: {standings[0].name} was ahead {after}, and no claim can be made."
    beaten = [duel.second for duel in _of_the_first(comparison) if is_shown(duel) and (duel.difference or 0) > 0]
    if len(beaten) == len(standings) - 1:
        return f"{standings[0].name} wins {after}."
    if beaten:
        return f"{standings[0].name} leads {after}; it beats {units.listed(beaten)}, the rest can't be told apart."
    return f"It can't be told who wins {after}; {standings[0].name} is ahead in these runs."


def verdicts(comparison: Comparison) -> list[str]:
    """Return a sentence for every budget that was tested, and what it would take to say more."""
    if len(comparison.standings) < 2:
        return []
    if not can_claim(comparison):
        return ["No claim can be made from one seed: the next seed may turn the order round. Run several seeds each."]
    sentences = [_at_mark(mark, [duel for duel in comparison.duels if duel.mark == mark]) for mark in comparison.marks]
    return [*sentences, *_what_it_takes(comparison)]


def can_claim(comparison: Comparison) -> bool:
    """Whether every contender has more than one run."""
    return all(len(standing.finals) > 1 for standing in comparison.standings)


def is_shown(duel: Duel) -> bool:
    """Whether the paired test, corrected, tells the two apart."""
    return duel.pair_count > 1 and duel.p_value <= 1 - LEVEL + 1e-12


def mark_in_words(mark: Mark) -> str:
    """Return a budget in words: 'after 8 trials', 'after 2 min 30 s'."""
    return f"after {units.count(int(mark.at), 'trial') if mark.unit is Unit.TRIALS else units.seconds(mark.at)}"


def estimate(figure: Estimate) -> str:
    """Return a figure with its interval: '1.432 (1.301 to 1.520)'."""
    if figure.low is None or figure.high is None:
        return units.score(figure.value)
    return f"{units.score(figure.value)} ({units.score(figure.low)} to {units.score(figure.high)})"


def share(figure: Estimate) -> str:
    """Return a probability with its interval: '83 % (61 to 97 %)'."""
    if figure.low is None or figure.high is None:
        return units.percent(figure.value)
    return f"{100 * figure.value:.0f} % ({100 * figure.low:.0f} to {100 * figure.high:.0f} %)"


def _of_the_first(comparison: Comparison) -> list[Duel]:
    first = comparison.standings[0].name
    return [duel for duel in comparison.duels if duel.mark == comparison.last_mark and duel.first == first]


def _at_mark(mark: Mark, duels: Sequence[Duel]) -> str:
    after = mark_in_words(mark).capitalize()
    shown = [_win(duel) for duel in duels if is_shown(duel)]
    open_ = [duel for duel in duels if not is_shown(duel)]
    if not shown and len(duels) > 1:
        smallest = min(duel.p_value for duel in duels)
        test = f"smallest p = {smallest:.2f}" if all(duel.pair_count > 1 for duel in duels) else "too few pairs"
        return f"{after}: it can't be told which of them are better ({test})."
    if not shown:
        (duel,) = duels
        test = f"p = {duel.p_value:.2f}" if duel.pair_count > 1 else "no test"
        return f"{after}: it can't be told; {duel.first} over {duel.second}, {share(duel.probability)}, {test}."
    if open_:
        pairs = units.listed([f"{duel.first} and {duel.second}" for duel in open_])
        shown.append(f"it can't be told of {pairs}")
    return f"{after}: {'; '.join(shown)}."


def _win(duel: Duel) -> str:
    if (duel.difference or 0) > 0:
        winner, loser, probability = duel.first, duel.second, duel.probability
    else:
        winner, loser, probability = duel.second, duel.first, _turned(duel.probability)
    gain = abs(duel.difference or 0)
    return f"{winner} over {loser}, {share(probability)}, by {gain:.3f} in R (p = {duel.p_value:.3f})"


def _turned(probability: Estimate) -> Estimate:
    """Return the probability of the opposite."""
    low, high = probability.low, probability.high
    return Estimate(
        value=1 - probability.value,
        low=None if high is None else 1 - high,
        high=None if low is None else 1 - low,
    )


def _what_it_takes(comparison: Comparison) -> list[str]:
    sentences = []
    opponents = len(comparison.standings) * (len(comparison.standings) - 1) // 2
    needed = pairs_needed(opponents)
    pairs = min(duel.pair_count for duel in comparison.duels)
    if pairs < needed:
        have = f"{units.count(pairs, 'common run')} of a pair" if pairs else "no seeds in common"
        sentences.append(
            f"With {have} the test of {units.count(opponents, 'pair')} of searchers can't reach {1 - LEVEL:.0%} "
            f"however large the differences are; it takes at least {needed} seeds that all contenders ran, counted "
            "over all workloads."
        )
    if any(standing.final.low is None for standing in comparison.standings):
        several = ", and one more for each further workload" if len(comparison.references) > 1 else ""
        sentences.append(
            f"So few runs give no interval of R that holds the truth as often as it says, so there is none; it takes "
            f"{LEAST_RUNS} of each searcher{several}."
        )
    return sentences
