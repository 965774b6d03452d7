"""Finals: who runs when, who is out, who wins, and that a stop changes none of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.drift import noise_ratio
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.finals import Entrant, Finals, Place, Record, Rules, Run, Verdict, judge, leaders
from autotune.objective import Objective, Reference
from autotune.remeasuring import Remeasured
from autotune.searchers.optuna import OptunaSearcher
from autotune.study import StopRequest, Study
from autotune.trials import Trial, TrialState

OBJECTIVE = Objective()
RULES = Rules(candidates=4, rounds=3, runs=20, noise_floor=0.05)
START = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


def drawn_up(*changes, rules=RULES, reference_is_baseline=True, scores=None):
    """Finals of trials 1, 2, ... with so many changed settings each, and trial 0 as the reference."""
    numbered = enumerate(zip(changes, scores or [1.5] * len(changes), strict=True), start=1)
    entrants = tuple(Entrant(number=number, changes=count, score=score) for number, (count, score) in numbered)
    return Record(
        entrants=entrants,
        reference=Entrant(number=0, changes=0, score=1.0),
        reference_is_baseline=reference_is_baseline,
        executed_trials=10,
        rules=rules,
        reach=1.1,
    )


def played(record, result, *, until=None):
    """Run what the record lacks by `result(round, number, runs before)`; return the standing."""
    standing = judge(record, OBJECTIVE)
    while standing.next_run is not None and len(record.runs) != until:
        round_, number = standing.next_run
        run = Run(round=round_, number=number, result=result(round_, number, len(record.runs)), at="2026-01-01")
        record = replace(record, runs=(*record.runs, run))
        standing = judge(record, OBJECTIVE)
    return standing


def speeds(*figures, noise=0.0, seed=0, drift=0.0):
    """Results with given throughput of trial 0, 1, ..., None where it fails; convergence goes along."""
    draws = np.random.default_rng(seed)

    def result(_, number, before):
        if figures[number] is None:
            return Remeasured(failure="CRASH: it broke")
        speed = figures[number] * math.exp(noise * draws.standard_normal() + drift * before)
        return Remeasured(samples_per_second=speed, convergence_per_second=speed / 100)

    return result


def order(standing):
    return [(run.round, run.number) for run in standing.record.runs]


def places(standing):
    return {finalist.number: finalist.place for finalist in standing.finalists}


def test_rounds_go_forth_and_back():
    standing = played(drawn_up(1, 1), speeds(100, 150, 151))
    assert order(standing)[:9] == [(1, 0), (1, 1), (1, 2), (2, 2), (2, 1), (2, 0), (3, 0), (3, 1), (3, 2)]


def test_a_drift_cancels_out_over_two_rounds():
    rules = replace(RULES, rounds=4)
    standing = played(drawn_up(1, 1, 1, rules=rules), speeds(100, 150, 120, 110, drift=0.02))
    winner = standing.finalist(1)
    assert len(winner.scores) == 4
    assert min(winner.scores) < 1.5 < max(winner.scores)
    assert winner.score.value == pytest.approx(1.5, rel=1e-9)


def test_the_slower_half_drops_out_and_the_rest_goes_on():
    standing = played(drawn_up(1, 1, 1, 1), speeds(100, 150, 149, 120, 110, noise=0.02, seed=3))
    out = [finalist for finalist in standing.finalists if finalist.place is Place.OUT and not finalist.is_reference]
    assert {(finalist.number, finalist.left_in) for finalist in out} == {(3, 3), (4, 3)}
    assert len(standing.finalist(1).scores) > 3
    assert {run for run in order(standing) if run[0] > 3 and run[1] in (3, 4)} == set()
    assert standing.verdict is Verdict.TIE


def test_who_is_far_behind_in_the_search_and_again_runs_once():
    results = speeds(100, 200, 150, 195, 130, noise=0.01)
    standing = played(drawn_up(1, 1, 1, 1, scores=(2.1, 1.5, 1.6, 2.05)), results)
    left = {finalist.number: finalist.left_in for finalist in standing.finalists}
    assert left[2] == 1  # 1.5 of 2.1 in the search, and as far behind when it ran again
    assert left[4] == 3  # 2.05 in the search: luck, which its own runs have to show
    assert left[3] is None  # 1.6 in the search: bad luck, and its first run says so
    assert {3} < {*standing.tied} == {1, 3}
    nothing = played(drawn_up(1, 1, scores=(0.5, 0.4)), speeds(100, 50, 40))
    assert (nothing.verdict, nothing.winner, len(nothing.record.runs)) == (Verdict.NOTHING_BETTER, 0, 3)


@pytest.mark.parametrize(
    ("ratios", "left_in"),
    [
        # Two runs with a mean of 0.786, and an interval of its logarithm of -0.241 +- 12.71 * 0.190: 0.07 to 8.8.
        ((0.95, 0.65, 0.99), None),
        # A mean of 0.9086, below 1 / 1.1, and an interval of its logarithm of -0.0959 +- 12.71 * 0.00066: up to 0.916.
        ((0.9092, 0.908, 0.99), 2),
        # One run has no interval.
        ((0.65, 0.99, 0.99), 1),
    ],
    ids=["scattered", "steady", "first run"],
)
def test_from_the_second_run_on_nobody_drops_out_who_cannot_be_told_from_the_leader(ratios, left_in):
    def result(round_, number, _):
        speed = 100 if number == 0 else 200 if number == 1 else 200 * ratios[round_ - 1]
        return Remeasured(samples_per_second=speed, convergence_per_second=speed / 100)

    standing = played(drawn_up(1, 1, scores=(2.1, 1.5), rules=replace(RULES, runs=9)), result)
    assert standing.finalist(2).left_in == left_in
    assert standing.tied == ((1, 2) if left_in is None else (1,))


def test_a_clear_winner_needs_no_more_rounds():
    standing = played(drawn_up(5, 1, 1), speeds(100, 200, 150, 120, noise=0.01))
    assert (standing.verdict, standing.winner, standing.tied) == (Verdict.WINNER, 1, (1,))
    assert standing.rounds == RULES.rounds
    assert standing.finalist(1).score.value == pytest.approx(2.0, rel=0.03)


def test_of_those_tied_the_nearest_to_the_users_configuration_is_taken():
    standing = played(drawn_up(7, 2, 2), speeds(100, 152, 150, 151))
    assert (standing.verdict, standing.winner) == (Verdict.TIE, 3)
    assert standing.leader == 1
    assert set(standing.tied) == {1, 2, 3}


def test_one_that_only_noise_ties_is_not_taken_for_being_near():
    """The interval is wide enough for a tie, but the mean is beyond the noise floor behind."""
    results = {1: (160, 140, 160), 2: (140, 139, 131)}

    def result(round_, number, _):
        speed = 100 if number == 0 else results[number][round_ - 1]
        return Remeasured(samples_per_second=speed, convergence_per_second=speed / 100)

    standing = played(drawn_up(7, 1, rules=replace(RULES, runs=9)), result)
    assert (standing.verdict, standing.winner) == (Verdict.TIE, 1)
    assert set(standing.tied) == {1, 2}


def test_where_the_users_own_is_tied_nothing_better_was_found():
    standing = played(drawn_up(1, 1), speeds(100, 102, 99, noise=0.01))
    assert (standing.verdict, standing.winner) == (Verdict.NOTHING_BETTER, 0)
    assert places(standing)[0] is Place.WINNER
    ahead = played(drawn_up(1), speeds(100, 80))
    assert (ahead.verdict, ahead.winner, ahead.tied) == (Verdict.NOTHING_BETTER, 0, (0,))


def test_a_reference_that_is_not_the_users_own_is_like_any_other():
    standing = played(drawn_up(1, reference_is_baseline=False), speeds(100, 101))
    assert (standing.verdict, standing.winner) == (Verdict.TIE, 0)


def test_a_finalist_that_fails_is_out():
    standing = played(drawn_up(1, 1), speeds(100, None, 130))
    assert places(standing) == {2: Place.WINNER, 0: Place.OUT, 1: Place.FAILED}
    assert standing.finalist(1).failure == "CRASH: it broke"
    assert [run for run in order(standing) if run[1] == 1] == [(1, 1)]
    assert standing.winner == 2
    nobody = played(drawn_up(1, 1), speeds(100, None, None))
    assert (nobody.verdict, nobody.winner, len(nobody.record.runs)) == (Verdict.NOTHING_BETTER, 0, 3)


def test_without_the_reference_nothing_can_be_told():
    standing = played(drawn_up(1, 1), speeds(None, 150, 130))
    assert (standing.verdict, standing.winner) == (Verdict.UNDECIDED, None)
    assert len(standing.record.runs) == 6

    def once(round_, number, before):
        return speeds(None if round_ == 1 else 100, 150, 110)(round_, number, before)

    standing = played(drawn_up(1, 1), once)
    assert (standing.verdict, standing.winner) == (Verdict.WINNER, 1)
    assert len(standing.finalist(1).scores) == 3


def test_convergence_may_be_negative():
    def result(_, number, __):
        return Remeasured(samples_per_second=100 + 50 * number, convergence_per_second=(0.5, -0.2, 0.9)[number])

    standing = played(drawn_up(1, 1), result)
    assert (standing.verdict, standing.winner) == (Verdict.WINNER, 2)
    assert standing.finalist(1).of_leader.value < 0.5


figure = st.one_of(st.none(), st.floats(20, 500))


@settings(deadline=None, max_examples=40)
@given(st.lists(figure, min_size=2, max_size=5), st.floats(0, 0.2), st.integers(0, 99), st.integers(6, 24), st.data())
def test_a_stop_anywhere_changes_nothing(figures, noise, seed, most, data):
    rules = replace(RULES, runs=most)

    def result(round_, number, before):
        return speeds(*figures, noise=noise, seed=1000 * seed + 10 * round_ + number)(round_, number, before)

    whole = played(drawn_up(*range(1, len(figures)), rules=rules), result)
    ran = order(whole)
    assert len(ran) == len(set(ran)) <= most
    cut = data.draw(st.integers(0, len(ran)))
    stopped = played(drawn_up(*range(1, len(figures)), rules=rules), result, until=cut)
    assert stopped.next_run == (ran[cut] if cut < len(ran) else None)
    kept = Record.from_json(json.loads(json.dumps(stopped.record.to_json())))
    assert kept == stopped.record
    resumed = played(kept, result)
    assert resumed == whole
    assert whole.verdict is not None
    if whole.winner is not None:
        assert whole.winner in whole.tied
        assert places(whole)[whole.winner] is Place.WINNER


def trial(number, score, *, is_baseline=False):
    return Trial(
        number=number,
        state=TrialState.COMPLETE,
        is_baseline=is_baseline,
        point={},
        ds_config={},
        activation_checkpointing=False,
        config_hash=str(number),
        outcome=None,
        score=score,
    )


def test_the_leaders_of_the_search_take_part():
    baseline = trial(0, 1.0, is_baseline=True)
    found = [baseline, trial(1, 1.5), trial(2, 1.4), trial(3, 1.35), trial(4, 1.49), trial(5, 1.48), trial(6, 1.47)]

    def numbers(trials=found, champion=None, **rules):
        chosen = leaders(trials, reference=baseline, rules=replace(RULES, **rules), champion=champion)
        return [each.number for each in chosen]

    assert numbers() == [1, 4, 5, 6]
    assert numbers(candidates=9, runs=99) == [1, 4, 5, 6, 2, 3]
    assert numbers(candidates=9, runs=9) == [1, 4]  # three rounds of three
    assert numbers(candidates=0) == []
    assert numbers(champion=found[3]) == [1, 4, 5, 3]
    assert numbers(champion=found[4]) == [1, 4, 5, 6]
    assert numbers([baseline]) == []


@dataclass
class Heard:
    """A listener that keeps what it hears."""

    begun: list[tuple[int, str]] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)

    def remeasuring(self, number, text):
        self.begun.append((number, text))

    def remeasured(self, number, text):
        self.ended.append((number, text))


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a simulated study, of near-equal configurations by default."""
    storage = storages.connect(f"sqlite:///{tmp_path}/autotune.db")

    def made(name="sim", **changes):
        raw = {
            "name": name,
            "ds_config": START,
            "evaluator": "simulated",
            "trials": 8,
            "hardware": {"accelerator": "cpu", "ranks": 2},
            "baseline_every": 0,
            "space": {"narrow": {"optimizer.params.lr": [5e-4, 1e-3]}, "fix": {"train_micro_batch_size_per_gpu": 8}},
            **changes,
        }
        return campaigns.create(campaigns.parse(raw, where="test"), storage, name=name)

    yield made
    storage.close()


def run(stored, *, trials=None, stop_after=None, searcher="random"):
    """Run the search and the finals; ask for a stop after so many runs of the finals."""
    stop, heard = StopRequest(), Heard()
    with campaigns.study(stored, stop=stop, trials=trials) as study:
        study.run(OptunaSearcher(study.space, sampler=searcher, seed=0))
        if stop_after is not None:
            keep = heard.remeasured

            def remeasured(number, text):
                keep(number, text)
                if len(heard.ended) == stop_after:
                    stop()

            heard.remeasured = remeasured
        campaigns.hold_finals(stored, study, heard)
    return campaigns.summary(stored), heard


def test_finals_name_the_best_and_are_no_trials(make):
    stored = make()
    summary, heard = run(stored)
    finals = summary.finals
    assert len(stored.trials()) == 8
    assert finals.verdict is not None
    assert summary.best.number == finals.winner
    assert len(heard.begun) == len(heard.ended) == len(finals.record.runs) <= 20
    assert not summary.finals_are_due
    assert {entrant.number for entrant in finals.record.entrants} == {trial.number for trial in summary.leaders}
    again, silence = run(stored)
    assert silence.ended == []
    assert again.finals == finals


def test_a_stop_is_gone_on_from_and_nothing_is_measured_twice(make):
    whole, _ = run(make("whole"))
    stored = make("stopped")
    stopped, heard = run(stored, stop_after=4)
    assert len(heard.ended) == len(stopped.finals.record.runs) == 4
    assert stopped.finals.verdict is None
    assert stopped.finals_are_due
    assert stopped.best == stopped.leading
    resumed, rest = run(stored)
    assert len(rest.ended) == len(resumed.finals.record.runs) - 4
    assert resumed.finals.record.runs[:4] == stopped.finals.record.runs
    assert (resumed.finals.winner, resumed.finals.verdict) == (whole.finals.winner, whole.finals.verdict)
    results = [[run.result for run in each.finals.record.runs] for each in (whole, resumed)]
    assert results[0] == results[1]  # simulated noise goes by the number of the run


def test_further_trials_make_new_finals_with_the_old_winner_in(make):
    stored = make()
    first, _ = run(stored)
    with campaigns.study(stored, trials=12) as study:
        study.run(OptunaSearcher(study.space, sampler="random", seed=0))
    between = campaigns.summary(stored)
    assert between.finals is None
    assert [record.executed_trials for record in between.past_finals] == [8]
    assert between.best == between.leading
    summary, heard = run(stored, trials=12)
    assert summary.finals.record.executed_trials == 12
    assert len(heard.ended) == len(summary.finals.record.runs)
    assert [record.executed_trials for record in summary.past_finals] == [8]
    known = {entrant.number for entrant in (*summary.finals.record.entrants, summary.finals.record.reference)}
    assert first.finals.winner in known


@pytest.mark.parametrize(
    "changes",
    [{"finals": {"candidates": 0}}, {"simulated": {"noise": 0}}, {"trials": 1}],
    ids=["off", "exact", "alone"],
)
def test_there_are_none(make, changes):
    summary, heard = run(make(**changes))
    assert summary.finals is None
    assert not summary.finals_are_due
    assert heard.ended == []
    assert summary.best == summary.leading


def test_the_noise_floor_fits_the_campaign(make):
    assert campaigns.summary(make("simulated")).rules.noise_floor == 0.04
    assert campaigns.summary(make("two", evaluator="deepspeed")).rules.noise_floor == 0.08
    one = {"accelerator": "cpu", "ranks": 1}
    assert campaigns.summary(make("one", evaluator="deepspeed", hardware=one)).rules.noise_floor == 0.05
    assert campaigns.summary(make("said", noise_floor=0.02)).rules.noise_floor == 0.02


@dataclass(frozen=True)
class Paper:
    """A study on paper: the same points for every seed of the noise, and finals as a study holds them."""

    study: Study
    points: tuple[dict[str, object], ...]
    evaluator: SimulatedEvaluator

    def measured(self, index, *, seed, repeat=0):
        request = self.study.request(self.points[index], is_baseline=index == 0, number=index)
        request = replace(request, seed=seed, repeat=repeat)
        return self.evaluator.evaluate(request, hosts=(), progress=lambda _: None, cancelled=lambda: False)

    def trials(self, *, seed):
        outcomes = {index: self.measured(index, seed=seed) for index in range(len(self.points))}
        reference = Reference.of(outcomes[0].measurement)
        return [
            replace(
                trial(index, OBJECTIVE.score(outcome.measurement, reference).value, is_baseline=index == 0),
                point=self.points[index],
            )
            for index, outcome in outcomes.items()
            if outcome.measurement is not None
        ]

    def finals(self, *, seed, rules) -> tuple[Finals, int]:
        """Return the finals, and the leader of the search."""
        trials = self.trials(seed=seed)
        start = trials[0].point
        entrants = tuple(
            Entrant(
                number=each.number,
                changes=sum(start.get(name) != value for name, value in each.point.items()),
                score=each.score,
            )
            for each in leaders(trials, reference=trials[0], rules=rules)
        )
        record = replace(drawn_up(rules=rules), entrants=entrants, reach=noise_ratio(rules.noise_floor))

        def result(_, number, before):
            return Remeasured.of(self.measured(number, seed=seed, repeat=before + 1))

        return played(record, result), max(trials, key=lambda each: each.score).number


def papers(make, count, *, noise, points=16):
    """Yield studies of so many workloads, each of random points of a narrow space, where many are nearly alike."""
    space = {
        "fix": {"precision": "bf16"},
        "narrow": {"train_micro_batch_size_per_gpu": [8, 16, 32], "optimizer.params.lr": [3e-4, 1e-3, 2e-3]},
    }
    with campaigns.study(make(space=space)) as study:
        for workload in range(count):
            draws = np.random.default_rng(workload)
            drawn = [
                study.space.canonical({d.name: d.levels[draws.integers(len(d.levels))] for d in study.space.dimensions})
                for _ in range(points - 1)
            ]
            yield Paper(study, ({}, *drawn), SimulatedEvaluator(workload_seed=workload, noise=noise, outliers=0.0))


@pytest.mark.parametrize("noise", [0.02, 0.045])
def test_the_same_study_twice_names_one_winner_or_a_declared_tie(make, noise):
    """In all of many studies, as a family: not one in which two runs name two winners and neither says tie."""
    rules = replace(RULES, noise_floor=2 * noise)
    searches_agree, studies = 0, 0
    for paper in papers(make, 40, noise=noise):
        (one, one_leads), (other, other_leads) = (paper.finals(seed=seed, rules=rules) for seed in (1, 2))
        studies += 1
        searches_agree += one_leads == other_leads
        assert one.winner == other.winner or {*one.tied} & {*other.tied}, (one, other)
        exact = replace(paper, evaluator=replace(paper.evaluator, noise=0.0)).trials(seed=0)
        truth = {each.number: each.score for each in exact}
        best = max(truth.values())
        for finals in (one, other):  # what is taken is the best there is, within two noise floors
            assert truth[finals.winner] * (1 + rules.noise_floor) ** 2 >= best
    assert searches_agree < studies, "a test in which the search alone never errs would show nothing"


@pytest.mark.slow
def test_two_searches_that_go_by_noisy_scores_name_one_winner_or_say_tie(make):
    """TPE proposes by the scores, so that the two don't even try the same configurations.

    Finals can't find what a search never tried: of eight pairs one may part so (docs/results.md).
    """
    space = {
        "fix": {"precision": "bf16"},
        "narrow": {"train_micro_batch_size_per_gpu": [8, 16, 32], "optimizer.params.lr": [3e-4, 1e-3, 2e-3]},
    }
    searches_agree, parted, pairs = 0, 0, 8
    for workload in range(pairs):
        found = []
        for seed in (1, 2):  # of the noise; the searcher has one seed
            noisy = {"workload_seed": workload, "noise": 0.045, "outliers": 0.0}
            stored = make(f"{workload}-{seed}", trials=16, seed=seed, simulated=noisy, space=space, pruner="none")
            found.append(run(stored, searcher="tpe")[0])
        one, other = found
        searches_agree += one.leading.config_hash == other.leading.config_hash
        same = one.best.config_hash == other.best.config_hash
        agreed = same or Verdict.TIE in (one.finals.verdict, other.finals.verdict)
        tried = [{trial.config_hash for trial in each.trials} for each in (one, other)]
        assert agreed or (other.best.config_hash not in tried[0] and one.best.config_hash not in tried[1]), workload
        parted += not agreed
    assert parted <= 1
    assert searches_agree < pairs
