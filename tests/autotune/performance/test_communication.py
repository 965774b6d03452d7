"""What is sent, against volumes of the ZeRO, ZeRO++ and Megatron papers and DeepSpeed's code."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.performance import Configurations, ModelShape, cluster, estimate

P = 1e9
BF16 = 2.0


def shape(**numbers):
    given_numbers = {"parameters": P, "layers": 20, "hidden": 2048, "heads": 16, "sequence": 1024, "vocabulary": 1}
    return ModelShape.from_numbers(**(given_numbers | numbers))


def sent(machines, model=None, **fields):
    return estimate(model or shape(), machines, Configurations(precision=BF16, **fields)).communication


def total(traffic):
    return float(traffic.inside_bytes + traffic.between_bytes)


def test_a_ring_all_reduce_sends_two_buffers_but_for_one_part():
    found = sent(cluster("A100-SXM-40GB", devices=8), stage=0)
    assert total(found.gradients) == pytest.approx(2 * 7 / 8 * 2 * P)
    assert float(found.gradients.between_bytes) == 0


def test_of_a_ring_over_two_nodes_one_link_in_eight_crosses():
    found = sent(cluster("A100-SXM-40GB", devices=16, devices_per_node=8), stage=0)
    assert float(found.gradients.between_bytes) == pytest.approx(total(found.gradients) / 8)


@pytest.mark.parametrize(
    ("stage", "accumulation", "elements"),
    [(0, 4, 2.0), (1, 4, 3.0), (2, 4, 2.0 * 4 + 1.0), (3, 4, 3.0 * 4)],
)
def test_elements_per_step_are_those_of_deepspeeds_code(stage, accumulation, elements):
    """Stage 1 all-reduces and gathers, 3 P; stage 2 all-reduces each micro-step; stage 3 moves 3 P each."""
    found = sent(
        cluster("A100-SXM-40GB", devices=8),
        stage=stage,
        accumulation=accumulation,
        max_live_parameters=1.0,  # nothing of stage 3 is kept from forward to backward
        persistence_threshold=0.0,
    )
    moved = total(found.gradients) + total(found.parameters) + total(found.updated)
    assert moved == pytest.approx(elements * 2 * P * 7 / 8)


def test_reduce_scatter_saves_a_third_of_stage_1():
    machines = cluster("A100-SXM-40GB", devices=8)
    found = sent(machines, stage=1, multi_rank_bucket_allreduce=0)
    assert total(found.gradients) + total(found.updated) == pytest.approx(2 * 2 * P * 7 / 8)


def test_what_stays_live_is_gathered_once():
    machines = cluster("A100-SXM-40GB", devices=8)
    kept = sent(machines, stage=3, persistence_threshold=0.0)  # 1e9 parameters may live
    assert total(kept.parameters) == pytest.approx(1 * 2 * P * 7 / 8)


@pytest.mark.parametrize(
    ("hpz", "weights", "gradients", "left"),
    [
        (1, 0, 0, 1.0),
        (1, 1, 0, 2 / 3),
        (8, 0, 0, 2 / 3),
        (1, 0, 1, 0.75),
        (8, 1, 0, 0.5),
        (8, 0, 1, 5 / 12),
        (8, 1, 1, 0.25),
    ],
)
def test_zero_plus_plus_between_nodes(hpz, weights, gradients, left):
    """Of 3 M: qwZ halves two gathers, hpZ takes backward's away, qgZ sends a quarter (Wang et al. 2023, section 3)."""
    machines = cluster("A100-SXM-40GB", devices=64, devices_per_node=8)
    common = {"stage": 3, "max_live_parameters": 1.0, "persistence_threshold": 0.0}
    plain = sent(machines, **common)
    found = sent(
        machines,
        secondary_partition=hpz,
        quantized_weights=weights,
        quantized_gradients=gradients,
        **common,
    )
    assert float(found.between_bytes / plain.between_bytes) == pytest.approx(left, abs=1e-9)


def test_tensor_parallel_all_reduces_four_times_a_layer():
    """4 of s b h values, 2 (t-1)/t each; 6 with full recomputation (Narayanan et al. 2021, section 2.3)."""
    machines = cluster("A100-SXM-40GB", devices=8)
    found = sent(machines, tensor_parallel=8, micro_batch=2)
    width = 1024 * 2 * 2048 * 2
    assert total(found.tensor) == pytest.approx(4 * 20 * width * 2 * 7 / 8)
    again = sent(machines, tensor_parallel=8, micro_batch=2, checkpointing=1)
    assert total(again.tensor) == pytest.approx(1.5 * total(found.tensor))


def test_ulysses_sends_a_share_of_the_sequence():
    """4 all-to-alls of s b h / sp per layer, forward and backward (Jacobs et al. 2023, section 3.2)."""
    found = sent(cluster("A100-SXM-40GB", devices=8), sequence_parallel=8)
    assert total(found.sequence) == pytest.approx(8 * 20 * (1024 / 8) * 2048 * 2 * 7 / 8)


def test_a_pipeline_sends_there_and_back():
    found = sent(cluster("A100-SXM-40GB", devices=4), pipeline_parallel=4, accumulation=8)
    assert total(found.pipeline) == pytest.approx(2 * 8 * 1024 * 2048 * 2)


def test_one_rank_sends_nothing():
    found = sent(cluster("A100-SXM-40GB", devices=1), stage=3)
    assert total(found.gradients) + total(found.parameters) + total(found.updated) == 0


@given(devices=st.sampled_from([2, 8, 16, 64, 256]), stage=st.integers(0, 3), accumulation=st.integers(1, 16))
@settings(max_examples=100, deadline=None)
def test_a_faster_network_is_never_slower(devices, stage, accumulation):
    slow = cluster("A100-SXM-40GB", devices=devices, devices_per_node=min(8, devices))
    quick = replace(slow, inter_bandwidth=slow.inter_bandwidth * 4)
    configurations = Configurations(stage=stage, accumulation=accumulation, precision=BF16)
    first = estimate(shape(), slow, configurations).time.step_time_s
    second = estimate(shape(), quick, configurations).time.step_time_s
    assert np.all(second <= first * (1 + 1e-12))
