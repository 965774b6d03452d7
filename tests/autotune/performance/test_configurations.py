"""Configurations read from points of the search space and from DeepSpeed's own files."""

import numpy as np
import pytest

from autotune.errors import ConfigError, ResourceError
from autotune.performance import Configurations, cluster, device, with_measured_matmul


@pytest.mark.parametrize(
    ("offload", "optimizer", "parameters"),
    [("none", 0, 0), ("optimizer", 1, 0), ("parameters", 0, 1), ("optimizer_and_parameters", 1, 1)],
)
def test_what_is_offloaded(offload, optimizer, parameters):
    read = Configurations.from_points([{"zero_optimization.stage": 3, "zero_optimization.offload": offload}])
    assert (read.offload_optimizer, read.offload_parameters) == (optimizer, parameters)


def test_a_point_of_the_default_space():
    point = {
        "zero_optimization.stage": 3,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "optimizer.params.lr": 3e-4,
        "precision": "bf16",
        "activation_checkpointing": True,
        "zero_optimization.offload": "optimizer_and_parameters",
        "zero_optimization.reduce_bucket_size": 1_000_000,
        "zero_optimization.allgather_bucket_size": 5_000_000,
        "zero_optimization.overlap_comm": False,
        "zero_optimization.stage3_param_persistence_threshold": 0,
        "zero_optimization.stage3_max_live_parameters": 10_000_000,
    }
    read = Configurations.from_points([point])
    said = {
        "stage": 3,
        "micro_batch": 8,
        "accumulation": 2,
        "learning_rate": 3e-4,
        "precision": 2,
        "checkpointing": 1,
        "offload_optimizer": 1,
        "offload_parameters": 1,
        "reduce_bucket_size": 1e6,
        "allgather_bucket_size": 5e6,
        "overlap_comm": 0,
        "persistence_threshold": 0,
        "max_live_parameters": 1e7,
    }
    assert {name: float(getattr(read, name)[0]) for name in said} == said


def test_a_deepspeed_file_with_its_own_switches():
    file = {
        "train_micro_batch_size_per_gpu": 4,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": "auto"},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    read = Configurations.from_points([file, {"zero_optimization": {"stage": 3}}])
    assert read.precision.tolist() == [1, 0]
    assert read.stage.tolist() == [2, 3]
    assert read.offload_optimizer.tolist() == [1, 0]
    assert np.broadcast_to(read.reduce_bucket_size, 2).tolist() == [5e8, 5e8]
    assert read.optimizer_states.tolist() == [0, 2]
    assert read.overlap_comm.tolist() == [0, 1]  # stage 3 overlaps by default


def test_columns_say_the_same_as_points():
    points = [
        {"zero_optimization.stage": stage, "precision": precision, "zero_optimization.offload": "optimizer"}
        for stage in (1, 2)
        for precision in ("fp32", "fp16", "bf16")
    ]
    columns = {key: [point[key] for point in points] for key in points[0]}
    by_points, by_columns = Configurations.from_points(points), Configurations.from_columns(columns)
    for name in ("stage", "precision", "offload_optimizer", "offload_parameters"):
        assert getattr(by_points, name).tolist() == getattr(by_columns, name).tolist()


def test_other_fields_are_given_by_name():
    read = Configurations.from_points([{"zero_optimization.stage": 1}], tensor_parallel=4.0, flash_attention=1.0)
    assert float(read.tensor_parallel) == 4
    assert len(read) == 1


def test_points_that_say_nothing_are_deepspeeds_defaults():
    read = Configurations.from_points([{}, {"zero_optimization": {"stage": 3, "overlap_comm": None}}], interleave=2.0)
    assert len(read) == 2
    assert read.overlap_comm.tolist() == [0, 1]
    assert read.micro_batch.tolist() == [1, 1]
    assert len(Configurations.from_points([{}, {}, {}])) == 3


def test_rows_can_be_chosen():
    read = Configurations(stage=np.arange(4.0), micro_batch=2.0)
    some = read[1:3]
    assert len(read) == 4
    assert some.stage.tolist() == [1, 2]
    assert float(some.micro_batch) == 2


@pytest.mark.parametrize(
    ("key", "value"), [("precision", "int4"), ("zero_optimization.stage", "two"), ("zero_optimization.offload", "disk")]
)
def test_a_value_that_cant_be_read_is_named(key, value):
    with pytest.raises(ConfigError, match=rf"{key}: got '{value}'"):
        Configurations.from_points([{key: value}])


def test_a_device_by_a_wrong_name_suggests_the_right_one():
    with pytest.raises(ResourceError, match="A100-SXM-40GB"):
        device("A100-40GB")
    with pytest.raises(ResourceError, match="at least 1"):
        cluster("A100-SXM-40GB", devices=0)


def test_the_tables_rates():
    a100 = device("A100-SXM-80GB")
    assert float(a100.half_flops) == 312e12
    assert float(a100.measured_fraction) == pytest.approx(271.2 / 312)
    assert float(with_measured_matmul(a100, 250e12).measured_fraction) == pytest.approx(250 / 312)
    assert np.isnan(device("V100-SXM2/3-32GB").measured_fraction)
    two = cluster("A100-SXM-80GB", devices=16)
    assert float(two.inter_bandwidth) == 200e9  # 1600 Gbit/s
    assert float(two.nodes) == 2
