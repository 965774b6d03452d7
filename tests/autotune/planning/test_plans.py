"""Plans: nothing beats the peak, everything offered fits and is in time, and batches come out whole."""

import pytest

from autotune.errors import ResourceError, WorkloadError
from autotune.planning import make_plan, named_hardware, named_model, tables, wording
from autotune.planning.plans import SPARE, candidates, samples_per_step

TOKENS = 140e9


@pytest.fixture(scope="module")
def clusters():
    return make_plan(named_model("7B"), tokens=TOKENS, days=20.0)


@pytest.fixture(scope="module")
def ways():
    return make_plan(named_model("175B"), tokens=300e9, hardware="2048 x A100", days=30.0)


def test_everything_offered_is_in_time_and_fits(clusters):
    assert len({offer.hardware.cluster.device.name for offer in clusters.offers}) == 8
    for offer in clusters.offers:
        assert offer.days <= 20
        assert offer.needed_bytes <= (1 - SPARE) * offer.capacity_bytes
        assert offer.days_low < offer.days_high


def test_nothing_is_faster_than_the_peak(clusters, ways):
    for found in (clusters, ways):
        for offer in found.offers:
            peak = float(offer.hardware.cluster.device.half_flops) * offer.hardware.devices
            days = found.flops / peak / 86400
            assert offer.days > days
            assert offer.utilization == pytest.approx(days / offer.days, rel=1e-6)


def test_operations_are_6_per_parameter_and_token(ways):
    # and 12 l h s of attention: 2 % at 175B and 2,048 tokens (Narayanan et al. 2021, appendix: s/(6h) = 2.8 %)
    assert ways.flops == pytest.approx(6 * 175e9 * 300e9, rel=0.04)


def test_smaller_clusters_come_first_and_the_pareto_set_is_one(clusters):
    devices = [offer.hardware.devices for offer in clusters.offers]
    assert devices == sorted(devices)
    front = clusters.pareto
    assert 1 < len(front) < len(clusters.offers)
    days = [offer.days for offer in front]
    assert days == sorted(days, reverse=True)
    rest = [offer for offer in clusters.offers if offer not in front]
    for offer in rest:
        assert any(one.hardware.devices <= offer.hardware.devices and one.days < offer.days for one in front)


def test_the_batch_is_filled(ways):
    samples = samples_per_step(named_model("175B"))
    assert samples == 2048
    for offer in ways.offers:
        ranks = 2048 // (offer.tensor_parallel * offer.pipeline_parallel)
        assert offer.micro_batch * offer.accumulation * ranks == samples


def test_ways_on_one_cluster_trade_days_for_memory(ways):
    days = [offer.days for offer in ways.offers]
    assert days == sorted(days)
    parallel = [o for o in ways.offers if o.tensor_parallel * o.pipeline_parallel > 1]
    needs = [offer.needed_bytes for offer in parallel]
    assert needs == sorted(needs, reverse=True)
    assert any(o.tensor_parallel == o.pipeline_parallel == 1 for o in ways.offers)


def test_candidates_keep_to_the_rules():
    model, place = named_model("175B"), named_hardware("64 x A100")
    found = candidates(model, place, samples=2048.0)
    assert set(found.tensor_parallel) <= {1, 2, 4, 8}
    assert all(96 % stages == 0 for stages in found.pipeline_parallel)
    assert not any((found.pipeline_parallel > 1) & (found.stage > 1))
    assert all(found.accumulation >= 1)


def test_a_slow_network_is_never_faster():
    fast, slow = (
        make_plan(named_model("30B"), tokens=TOKENS, hardware="64 x A100", days=30.0, network_gbps=gbps).offers[0].days
        for gbps in (1600.0, 100.0)
    )
    assert fast < slow


def test_it_says_when_nothing_will_do():
    late = make_plan(named_model("1T"), tokens=20e12, hardware="V100-32GB", days=10.0)
    assert late.offers == ()
    assert "give more --days" in wording.plan_headline(late)
    large = make_plan(named_model("1T"), tokens=20e12, hardware="1 x T4", days=10.0)
    assert large.offers == ()
    assert "doesn't fit" in wording.plan_headline(large)


@pytest.mark.parametrize("options", [{"tokens": 0.0, "days": 1.0}, {"tokens": 1e9, "days": -1.0}])
def test_numbers_above_0(options):
    with pytest.raises(WorkloadError, match="must be above 0"):
        make_plan(named_model("7B"), **options)


def test_a_cpu_is_no_cluster():
    with pytest.raises(ResourceError, match="clusters of GPUs"):
        make_plan(named_model("7B"), tokens=1e9, days=1.0, hardware="cpu:2")


def test_records_and_tables_have_every_offer(clusters, ways):
    for found in (clusters, ways):
        assert len(tables.plan_records(found)) == len(tables.offers(found).rows) == len(found.offers)
    assert tables.offers(ways).columns[0] == "Days"
    assert sum(record["pareto"] for record in tables.plan_records(clusters)) == len(clusters.pareto)
