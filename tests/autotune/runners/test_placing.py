"""What decides where trials are placed, without Ray: seats, labels, processors, and the watch over nodes."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ResourceError
from autotune.runners import labels, processors
from autotune.runners.bundles import Bundles, PlacementStrategy
from autotune.runners.cluster import Cluster, Node
from autotune.runners.node_watch import PATIENCE, NodeWatch
from autotune.runners.processors import Processors, shares
from autotune.runners.seats import nodes_for_next, shape


def cluster(*sizes):
    nodes = tuple(
        Node(
            node_id=f"id{i}",
            address=f"10.0.0.{i}",
            cpu_count=cpus,
            gpu_count=gpus,
            memory_bytes=1,
            object_store_bytes=1,
            port=i,
        )
        for i, (cpus, gpus) in enumerate(sizes)
    )
    return Cluster(nodes=nodes, ray_version="2", address="10.0.0.0:6379", connect_s=0.0)


def bundles(*, ranks=1, cpus=1.0, gpus=0.0, strategy="PACK"):
    return Bundles(ranks=ranks, slots=1, cpus_per_rank=cpus, gpus_per_rank=gpus, strategy=PlacementStrategy(strategy))


def seats(wanted, there, *placed, one_per_node=False):
    return nodes_for_next(wanted, there, placed=placed, one_per_node=one_per_node)


def test_a_machine_is_shared_only_where_no_other_is_left():
    there = cluster((4, 0), (4, 0))
    assert seats(bundles(ranks=2), there) == ("id0", "id1")
    assert seats(bundles(ranks=2), there, ("id0", "id0")) == ("id1",)
    assert seats(bundles(ranks=2), there, ("id0", "id0"), ("id1", "id1")) == ("id0", "id1")
    full = [("id0", "id0"), ("id1", "id1")] * 2
    assert seats(bundles(ranks=2), there, *full) == ()


def test_one_trial_for_each_node():
    there = cluster((4, 0), (4, 0))
    assert seats(bundles(), there, ("id0",), one_per_node=True) == ("id1",)
    assert seats(bundles(), there, ("id0",), ("id1",), one_per_node=True) == ()
    # Over two nodes, where one has too little for it.
    assert seats(bundles(ranks=3), cluster((2, 0), (2, 0)), one_per_node=True) == ("id0", "id1")


def test_a_strict_spread_takes_nodes_with_trials_only_when_it_must():
    there = cluster((2, 0), (2, 0), (2, 0))
    wanted = bundles(ranks=2, strategy="STRICT_SPREAD")
    assert seats(wanted, there, ("id0", "id1")) == ("id0", "id1", "id2")


@given(
    sizes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=4),
    ranks=st.integers(1, 3),
    cpus=st.sampled_from([0.5, 1, 2]),
    gpus=st.sampled_from([0, 0.5, 1]),
    one_per_node=st.booleans(),
)
def test_what_is_taken_is_never_more_than_there_is(sizes, ranks, cpus, gpus, one_per_node):
    """Fill a cluster as a packing placement does, node after node, until it says that there is no more room."""
    there, wanted = cluster(*sizes), bundles(ranks=ranks, cpus=cpus, gpus=gpus)
    placed = []
    while allowed := seats(wanted, there, *placed, one_per_node=one_per_node):
        group = []
        for node in there.nodes:
            room = lambda resource, each: float("inf") if not each else resource / each  # noqa: E731
            taken = sum(other.count(node.node_id) for other in placed)
            free = min(room(node.cpu_count, cpus), room(node.gpu_count, gpus)) - taken
            fits = int(free + 1e-9) if node.node_id in allowed else 0
            group += [node.node_id] * min(fits, ranks - len(group))
        assert len(group) == ranks, "said there was room, and there was none"
        placed.append(tuple(group))
    for node in there.nodes:
        here = sum(group.count(node.node_id) for group in placed)
        assert here * cpus <= node.cpu_count + 1e-6
        assert here * gpus <= node.gpu_count + 1e-6
        assert not one_per_node or sum(node.node_id in group for group in placed) <= 1
    if not one_per_node:
        largest = replace(wanted, slots=len(placed) + 1)
        assert not largest.fit(there), "there was room for one more"


def test_shapes():
    assert shape(["a", "b", "a"]) == (2, 1) == shape(["b", "a", "b"])


LABELS = {"zone": "a", "gpu": "H100"}


@pytest.mark.parametrize(
    ("conditions", "fulfilled"),
    [
        ({}, True),
        ({"zone": "a"}, True),
        ({"zone": "b"}, False),
        ({"zone": "!b"}, True),
        ({"zone": "in(b, a)"}, True),
        ({"zone": "!in(a,b)"}, False),
        ({"zone": "a", "gpu": "H200"}, False),
        ({"disk": "!slow"}, True),
        ({"disk": "fast"}, False),
    ],
)
def test_conditions_on_labels(conditions, fulfilled):
    labels.check(conditions)
    assert labels.match(conditions, LABELS) is fulfilled


@pytest.mark.parametrize("condition", ["", "!", "a b", "in()", "in(a", "-a", "a|b"])
def test_a_condition_that_is_none_is_refused(condition):
    with pytest.raises(ResourceError, match=r"labels\.zone: got .*a condition is a value"):
        labels.check({"zone": condition})


def test_whole_cores_go_first():
    hyper_threaded = Processors(((0, 4), (1, 5), (2, 6)))
    assert hyper_threaded.count == 6
    assert hyper_threaded.take(1) == (0,)
    assert hyper_threaded.take(2) == (1, 5)
    assert hyper_threaded.take(2) == (2, 6)
    assert hyper_threaded.take(2) is None
    assert hyper_threaded.take(1) == (4,)
    hyper_threaded.give_back((1, 5))
    assert hyper_threaded.take(2) == (1, 5)


@given(counts=st.lists(st.integers(1, 4), max_size=8), size=st.integers(1, 8), threads=st.sampled_from([1, 2]))
def test_nobody_gets_a_processor_that_another_has(counts, size, threads):
    of_node = Processors(tuple(tuple(range(core, size * threads, size)) for core in range(size)))
    taken = [each for count in counts for each in of_node.take(count) or ()]
    assert len(taken) == len(set(taken)) <= size * threads


def test_the_processors_of_a_slot_are_its_ranks_own_or_all_of_theirs():
    assert shares((0, 1, 2, 3), ranks=2, per_rank=2.0) == [(0, 1), (2, 3)]
    assert shares((0,), ranks=2, per_rank=0.5) == [(0,), (0,)]
    assert shares((0, 1, 2), ranks=2, per_rank=1.5) == [(0, 1, 2), (0, 1, 2)]


def test_the_processors_of_this_machine():
    there = [processor for core in processors.usable_cores() for processor in core]
    assert sorted(there) == sorted(os.sched_getaffinity(0))


def test_threads_of_a_core_belong_together(tmp_path, monkeypatch):
    monkeypatch.setattr(processors, "TOPOLOGY", str(tmp_path / "{}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for processor, (package, core) in enumerate([(1, 0), (0, 0), (0, 0), (1, 0)]):
        folder = tmp_path / str(processor)
        folder.mkdir()
        (folder / "physical_package_id").write_text(f"{package}\n")
        (folder / "core_id").write_text(f"{core}\n")
    assert processors.usable_cores() == ((1, 2), (0, 3))


def test_a_node_is_lost_when_it_was_missed_often_enough_in_a_row():
    there = {0: True, 1: True}
    watch = NodeWatch(lambda address, port: there[port])
    nodes = cluster((1, 0), (1, 0)).nodes
    assert watch.look(nodes) == frozenset()
    there[1] = False
    for _ in range(PATIENCE - 1):
        assert watch.look(nodes) == frozenset()
    there[1] = True
    assert watch.look(nodes) == frozenset()  # one answer makes up for it
    there[1] = False
    for _ in range(PATIENCE - 1):
        assert watch.look(nodes) == frozenset()
    assert watch.look(nodes) == {"id1"}
    assert watch.look(nodes[:1]) == frozenset()
    assert watch.reachable(nodes) == [nodes[0]]
    assert watch.look([]) == frozenset()
