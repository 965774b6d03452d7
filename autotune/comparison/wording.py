"""What a comparison shows, in words: who wins after how many trials, or that it can't be told, and why."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.comparison.contest import Comparison, Duel, Standing
from autotune.comparison.statistics import LEVEL, pairs_needed
from autotune.report import units


def headline(comparison: Comparison) -> str:
    """Return the one sentence that a reader came for."""
    standings = comparison.standings
    after = f"after {units.count(comparison.trial_budget, 'trial')}"
    if len(standings) == 1:
        return f"{standings[0].name} reaches R = {units.score(standings[0].final.value)} {after}."
    if not can_claim(comparison):
        return f"One seed each is no evidence: {standings[0].name} was ahead {after}, and no claim can be made."
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
    sentences = [
        _at_budget(trials, [duel for duel in comparison.duels if duel.trials == trials])
        for trials in dict.fromkeys(duel.trials for duel in comparison.duels)
    ]
    needed = pairs_needed(len(comparison.duels))
    pairs = min(duel.pair_count for duel in comparison.duels)
    if pairs < needed:
        have = f"{units.count(pairs, 'common seed')} of a pair" if pairs else "no seeds in common"
        sentences.append(
            f"With {have} the test of {units.count(len(comparison.duels), 'duel')} can't reach {1 - LEVEL:.0%} however "
            f"large the differences are; it takes at least {needed} seeds that all contenders ran."
        )
    return sentences


def can_claim(comparison: Comparison) -> bool:
    """Whether every contender has more than one seed."""
    return all(len(standing.seeds) > 1 for standing in comparison.standings)


def is_shown(duel: Duel) -> bool:
    """Whether the paired test, corrected, tells the two apart."""
    return duel.pair_count > 1 and duel.p_value <= 1 - LEVEL + 1e-12


def interval(standing: Standing) -> str:
    """Return a contender's final best R with its interval."""
    return estimate(standing.final.value, standing.final.low, standing.final.high)


def estimate(value: float, low: float | None, high: float | None) -> str:
    """Return a figure with its interval: '1.432 (1.301 to 1.520)'."""
    if low is None or high is None:
        return units.score(value)
    return f"{units.score(value)} ({units.score(low)} to {units.score(high)})"


def _of_the_first(comparison: Comparison) -> list[Duel]:
    first = comparison.standings[0].name
    return [duel for duel in comparison.duels if duel.trials == comparison.trial_budget and duel.first == first]


def _at_budget(trials: int, duels: Sequence[Duel]) -> str:
    shown, open_ = [], []
    for duel in duels:
        if is_shown(duel) and duel.difference is not None:
            winner, loser = (duel.first, duel.second) if duel.difference > 0 else (duel.second, duel.first)
            shown.append(f"{winner} beats {loser} by {abs(duel.difference):.3f} in R (p = {duel.p_value:.3f})")
        else:
            p_value = f"p = {duel.p_value:.2f}" if duel.pair_count > 1 else "no test"
            open_.append(f"{duel.first} and {duel.second} ({p_value})")
    if not shown and len(duels) > 1:
        smallest = min(duel.p_value for duel in duels)
        test = f"smallest p = {smallest:.2f}" if all(duel.pair_count > 1 for duel in duels) else "too few pairs"
        return f"After {units.count(trials, 'trial')}: no two of them can be told apart ({test})."
    parts = [units.listed(shown)] if shown else []
    if open_:
        parts.append(f"can't tell apart {units.listed(open_)}")
    return f"After {units.count(trials, 'trial')}: {'; '.join(parts)}."
