import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ResourceError
from autotune.runners.bundles import Bundles, PlacementStrategy
from autotune.runners.cluster import Cluster, Node


def cluster(*sizes):
    nodes = tuple(
        Node(
            node_id=f"id{i}",
            address=f"10.0.0.{i}",
            cpu_count=cpus,
            gpu_count=gpus,
            memory_bytes=1,
            object_store_bytes=1,
        )
        for i, (cpus, gpus) in enumerate(sizes)
    )
    return Cluster(nodes=nodes, ray_version="2", address="10.0.0.0:6379", connect_s=0.0)


def bundles(*, ranks=1, slots=1, cpus=1.0, gpus=0.0, strategy="PACK"):
    return Bundles(
        ranks=ranks, slots=slots, cpus_per_rank=cpus, gpus_per_rank=gpus, strategy=PlacementStrategy(strategy)
    )


def refusal(wanted, there):
    with pytest.raises(ResourceError) as caught:
        wanted.check_fit(there)
    return str(caught.value)


def test_more_ranks_than_processors_suggests_a_share():
    message = refusal(bundles(ranks=4), cluster((2, 0)))
    assert message == (
        "ray: asked for 4 bundles of 1 CPU (PACK); the cluster has 1 node (10.0.0.0 with 2 CPU, 0 GPU). "
        "Set cpus_per_rank: 0.5, or give the address of a larger cluster"
    )


def test_gpus_that_are_not_there():
    message = refusal(bundles(ranks=4, gpus=1), cluster((2, 0)))
    assert "asked for 4 bundles of 1 CPU and 1 GPU (PACK); the cluster has 1 node" in message
    assert "gpus_per_rank: 0 and cpus_per_rank: 0.5 to train on CPUs" in message


def test_fewer_gpus_than_ranks_suggests_fewer_ranks():
    assert "Set ranks: 3 and slots: 1," in refusal(bundles(ranks=4, gpus=1), cluster((64, 3)))


def test_too_many_slots_suggests_fewer():
    message = refusal(bundles(ranks=2, slots=4), cluster((5, 0)))
    assert "asked for 4 placement groups of 2 bundles" in message
    assert "Set slots: 2," in message


@pytest.mark.parametrize(
    ("strategy", "sizes", "ranks", "slots", "fits"),
    [
        ("PACK", [(2, 0), (2, 0)], 4, 1, True),
        ("SPREAD", [(4, 0)], 4, 1, True),
        ("STRICT_PACK", [(2, 0), (2, 0)], 4, 1, False),
        ("STRICT_PACK", [(2, 0), (2, 0)], 2, 2, True),
        ("STRICT_SPREAD", [(4, 0)], 2, 1, False),
        ("STRICT_SPREAD", [(1, 0), (1, 0)], 2, 1, True),
        ("STRICT_SPREAD", [(9, 0), (1, 0)], 2, 2, False),
        ("STRICT_SPREAD", [(2, 0), (2, 0)], 2, 2, True),
        ("PACK", [], 1, 1, False),
    ],
)
def test_strategies(strategy, sizes, ranks, slots, fits):
    assert bundles(ranks=ranks, slots=slots, strategy=strategy).fit(cluster(*sizes)) is fits


def test_a_strict_strategy_suggests_pack():
    assert "Set strategy: PACK" in refusal(
        bundles(ranks=4, cpus=0, gpus=1, strategy="STRICT_PACK"), cluster((8, 2), (8, 2))
    )


@given(
    ranks=st.integers(1, 5),
    slots=st.integers(1, 3),
    cpus=st.sampled_from([0.25, 0.3, 0.5, 1, 2, 8]),
    gpus=st.sampled_from([0, 0.5, 1]),
    strategy=st.sampled_from(list(PlacementStrategy)),
    sizes=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), max_size=3),
)
def test_more_nodes_never_hurt_and_every_refusal_has_words(ranks, slots, cpus, gpus, strategy, sizes):
    wanted = bundles(ranks=ranks, slots=slots, cpus=cpus, gpus=gpus, strategy=strategy)
    if wanted.fit(cluster(*sizes)):
        assert wanted.fit(cluster(*sizes, (1, 0)))
    else:
        assert "address of a larger cluster" in refusal(wanted, cluster(*sizes))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": 0}, "ranks: got 0"),
        ({"slots": 0}, "slots: got 0"),
        ({"cpus": 0}, "got 0 for both"),
        ({"cpus": -1}, "cpus_per_rank: got -1"),
        ({"gpus": 1.5}, "gpus_per_rank: got 1.5"),
    ],
)
def test_nonsense_is_refused(change, words):
    with pytest.raises(ResourceError, match=words):
        bundles(**change)
