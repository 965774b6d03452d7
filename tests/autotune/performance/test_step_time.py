"""Step time: phases add up, bubbles and offload by hand, laws that any machine obeys."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.performance import Coefficients, Configurations, ModelShape, cluster, cpu_cluster, estimate, in_chunks
from autotune.performance.arrays import smooth_maximum
from tests.benchmarks.performance_model import drawn

SHAPE = ModelShape.from_numbers(layers=24, hidden=2048, heads=16, sequence=2048, vocabulary=50257)
MACHINES = cluster("A100-SXM-80GB", devices=16)
BF16 = 2.0


def test_phases_add_up():
    time = estimate(SHAPE, MACHINES, drawn(2000)).time
    parts = [getattr(time, field.name) for field in fields(time) if field.name != "step_time_s"]
    assert np.allclose(np.sum(parts, axis=0), time.step_time_s, rtol=1e-12)
    assert all(np.all(part >= -1e-12) for part in parts)


def test_a_pipelines_bubble_is_p_minus_1_over_m():
    """Narayanan et al. 2021, section 2.2.1, where all stages are alike (no logits) and launches cost nothing."""
    shape = replace(SHAPE, predicted_fraction=0.0)
    c = replace(Coefficients.prior(), host_layer_s=1e-12, host_zero_layer_s=1e-12)
    configurations = Configurations(
        pipeline_parallel=4, accumulation=8, precision=BF16, interleave=np.array([1.0, 3.0])
    )
    time = estimate(shape, MACHINES, configurations, c).time
    assert time.bubble_s[0] / time.compute_s[0] == pytest.approx(3 / 8)
    assert time.bubble_s[1] == pytest.approx(time.bubble_s[0] / 3)


def test_offloaded_adam_takes_the_hosts_rate():
    """10.3e9 parameters at 1.6e9 a second take 6.4 s on a DGX-2 (zero-offload tutorial: 6.2 to 6.5 s)."""
    shape = ModelShape.from_numbers(
        parameters=10.3e9, layers=50, hidden=4096, heads=32, sequence=1024, vocabulary=50304
    )
    machines = cluster("V100-SXM2/3-32GB", devices=1, cpu_adam_per_second=1.6e9)
    c = replace(Coefficients.prior(), cpu_adam_efficiency=1.0, pcie_efficiency=1e6)
    configurations = Configurations(stage=2, precision=1, offload_optimizer=1, micro_batch=10, checkpointing=1)
    time = estimate(shape, machines, configurations, c).time
    assert float(time.offload_s) == pytest.approx(10.3e9 / 1.6e9, rel=0.01)
    assert float(time.optimizer_s) == 0


def test_nvme_reads_and_writes_the_states():
    """24 P bytes there and back at the node's rate (ZeRO-Infinity, section 4)."""
    shape = ModelShape.from_numbers(parameters=1e9, sequence=128, vocabulary=1)
    machines = cluster("V100-SXM2/3-32GB", devices=16, devices_per_node=16, nvme_bandwidth=3e9)
    on_host, on_drive = (
        estimate(shape, machines, Configurations(stage=3, precision=1, offload_optimizer=place)).time.offload_s
        for place in (1.0, 2.0)
    )
    assert float(on_drive - on_host) == pytest.approx(24e9 / 3e9, rel=1e-6)


def test_smooth_maximum_adds_at_one_and_takes_the_longer_at_infinity():
    assert smooth_maximum(3.0, 4.0, 1.0) == pytest.approx(7.0)
    assert smooth_maximum(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert smooth_maximum(3.0, 4.0, 200.0) == pytest.approx(4.0)
    assert smooth_maximum(0.0, 0.0, 2.0) == 0


def test_utilization_is_model_operations_over_peak():
    found = estimate(SHAPE, MACHINES, Configurations(micro_batch=4, precision=BF16))
    per_device = SHAPE.model_flops * 4 / float(found.time.step_time_s)
    assert float(found.utilization) == pytest.approx(float(per_device) / 312e12)
    assert float(found.model_tflops) == pytest.approx(float(per_device) / 1e12)
    recomputing = estimate(SHAPE, MACHINES, Configurations(micro_batch=4, precision=BF16, checkpointing=1))
    assert recomputing.hardware_tflops > recomputing.model_tflops
    assert float(found.samples_per_second) == pytest.approx(16 * 4 / float(found.time.step_time_s))


def test_many_rows_are_each_as_if_alone():
    configurations = drawn(20_000, seed=1)
    whole = estimate(SHAPE, MACHINES, configurations)
    pieces = np.concatenate(
        [estimate(SHAPE, MACHINES, part).time.step_time_s for part in in_chunks(configurations, 777)]
    )
    assert np.array_equal(pieces, whole.time.step_time_s) or np.allclose(pieces, whole.time.step_time_s, rtol=1e-13)
    for row in range(0, 20_000, 997):
        alone = estimate(SHAPE, MACHINES, configurations[row : row + 1])
        assert float(alone.time.step_time_s[0]) == pytest.approx(whole.time.step_time_s[row], rel=1e-12)
        assert float(alone.memory.margin_bytes[0]) == pytest.approx(whole.memory.margin_bytes[row], rel=1e-12)
        assert float(alone.progress_per_second[0]) == pytest.approx(whole.progress_per_second[row], rel=1e-12)


def test_an_ensemble_is_its_members_one_by_one():
    members = Coefficients.sample(np.random.default_rng(3), 5)
    configurations = drawn(50)
    together = estimate(SHAPE, MACHINES, configurations, members)
    assert together.time.step_time_s.shape == (5, 50)
    assert np.broadcast_to(together.memory.margin_bytes, (5, 50)).shape == (5, 50)
    for member in range(5):
        one = Coefficients(**{f.name: float(getattr(members, f.name)[member, 0]) for f in fields(members)})
        alone = estimate(SHAPE, MACHINES, configurations, one)
        assert np.allclose(together.time.step_time_s[member], alone.time.step_time_s, rtol=1e-12)


def test_shape_and_cluster_may_differ_by_row():
    shapes = ModelShape.from_numbers(
        layers=np.array([12.0, 24.0]), hidden=np.array([768.0, 1024.0]), sequence=1024.0, vocabulary=50257.0
    )
    both = estimate(shapes, MACHINES, Configurations(micro_batch=np.array([2.0, 2.0]), precision=BF16))
    one = ModelShape.from_numbers(layers=24.0, hidden=1024.0, sequence=1024.0, vocabulary=50257.0)
    alone = estimate(one, MACHINES, Configurations(micro_batch=2.0, precision=BF16))
    assert both.time.step_time_s[1] == pytest.approx(float(alone.time.step_time_s))


def test_on_a_cpu_launches_add_and_bf16_is_as_fast_as_measured():
    machines = cpu_cluster(
        ranks=2,
        matmul_flops=1e11,
        half_flops=2e11,
        memory_bandwidth=1e15,
        memory_bytes=4e9,
        link_bandwidth=1e15,
        cpu_adam_per_second=1e8,
    )
    shape = ModelShape.from_numbers(layers=4, hidden=128, heads=4, sequence=64, vocabulary=256)
    time = estimate(shape, machines, Configurations(micro_batch=8, precision=np.array([0.0, BF16]))).time
    c = Coefficients.prior()
    launches = 2 * 4 * c.host_layer_s + c.host_step_s + c.host_bucket_s
    assert time.host_s[0] == pytest.approx(launches, rel=0.01)
    assert time.forward_s[1] == pytest.approx(time.forward_s[0] / 2, rel=1e-3)


@given(
    stage=st.integers(0, 3),
    micro_batch=st.integers(1, 32),
    accumulation=st.integers(1, 16),
    precision=st.integers(0, 2),
    overlap=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_more_work_takes_longer_but_less_per_sample(stage, micro_batch, accumulation, precision, overlap):
    common = {"stage": stage, "precision": precision, "overlap_comm": overlap, "accumulation": accumulation}
    batch = np.array([micro_batch, micro_batch + 1.0])
    found = estimate(SHAPE, MACHINES, Configurations(micro_batch=batch, **common))
    assert found.time.step_time_s[1] > found.time.step_time_s[0]
    assert found.samples_per_second[1] > found.samples_per_second[0]
    common["accumulation"] = np.array([accumulation, accumulation + 1.0])
    longer = estimate(SHAPE, MACHINES, Configurations(micro_batch=micro_batch, **common)).time.step_time_s
    assert longer[1] > longer[0]


@given(stage=st.integers(0, 3), micro_batch=st.integers(1, 32))
@settings(max_examples=50, deadline=None)
def test_overlapping_and_flash_never_slow_down(stage, micro_batch):
    apart, together = estimate(
        SHAPE,
        MACHINES,
        Configurations(stage=stage, micro_batch=micro_batch, precision=BF16, overlap_comm=np.array([0.0, 1.0])),
    ).time.step_time_s
    assert together <= apart * (1 + 1e-12)
    recompute = Configurations(stage=stage, micro_batch=micro_batch, precision=BF16, checkpointing=np.array([0.0, 1.0]))
    plain, again = estimate(SHAPE, MACHINES, recompute).time.compute_s
    assert plain < again < 1.4 * plain
