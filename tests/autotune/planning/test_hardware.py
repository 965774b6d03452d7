"""Clusters by the names that people type."""

import pytest

from autotune.errors import ResourceError
from autotune.performance.devices import table
from autotune.planning.hardware import device_name, hardware, known_devices


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("A100", "A100-SXM-80GB"),
        ("a100", "A100-SXM-80GB"),
        ("H100", "H100-SXM-80GB"),
        ("A100-80GB", "A100-SXM-80GB"),
        ("A100 40GB", "A100-SXM-40GB"),
        ("A100 PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("V100-32GB", "V100-SXM2/3-32GB"),
        ("V100-16GB", "V100-SXM2-16GB"),
        ("H100-PCIe", "H100-PCIe-80GB"),
        ("H200", "H200-SXM-141GB"),
        ("B200", "B200-SXM-180GB"),
        ("4090", "RTX-4090"),
        ("rtx 4090", "RTX-4090"),
        ("MI300", "MI300X"),
        ("MI250X", "MI250X (module, 2 GCD)"),
        ("A10", "A10"),
        ("T4", "T4"),
    ],
)
def test_short_names(typed, name):
    assert device_name(typed) == name


@pytest.mark.parametrize("name", known_devices())
def test_every_device_goes_by_its_own_name(name):
    assert device_name(name) == name
    assert hardware(name).cluster.device.name == name


@pytest.mark.parametrize(
    ("typed", "choices"),
    [
        ("V100", ["V100-SXM2-16GB", "V100-SXM2/3-32GB"]),
        ("RTX", ["RTX-3090", "RTX-5090"]),
        ("Gaudi", ["Gaudi2", "Gaudi3"]),
    ],
)
def test_an_ambiguous_name_gives_the_choices(typed, choices):
    with pytest.raises(ResourceError, match="say which") as refusal:
        device_name(typed)
    assert all(choice in str(refusal.value) for choice in choices)


def test_an_unknown_name_gives_all():
    with pytest.raises(ResourceError, match=r"got 'X9000'; it must be cpu or one of .*H100-SXM-80GB"):
        device_name("X9000")


def test_cpus_and_devices_without_links_make_no_clusters():
    left_out = set(table()) - set(known_devices())
    assert left_out == {name for name in table() if name.startswith("CPU")} | {"TPUv4"}


@pytest.mark.parametrize("text", ["8 x A100-SXM-80GB", "8xA100-SXM-80GB", "A100-SXM-80GB:8", "8 * a100-80gb", "A100:8"])
def test_counts(text):
    found = hardware(text)
    assert found.devices == 8
    assert found.nodes == 1
    assert found.title == "8 x A100-SXM-80GB"


def test_nodes_and_network():
    usual = hardware("2048 x A100")
    assert (usual.nodes, usual.gbps) == (256, 1600)
    assert usual.notes == ("A100 taken for A100-SXM-80GB (not A100-SXM-40GB, A100-PCIe-80GB)",)
    slow = hardware("64 x A100-80GB", devices_per_node=4, network_gbps=100.0, host_memory_gib=512.0)
    assert (slow.nodes, slow.devices_per_node, slow.gbps) == (16, 4, 100)
    assert slow.cluster.host_memory_bytes == 512 * 2**30
    assert slow.title == "64 x A100-SXM-80GB, 16 nodes at 100 Gb/s"


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("12 x A100", {}, "no multiple of the 8"),
        ("0 x A100", {}, "at least one"),
        ("8 x A100", {"network_gbps": 0.0}, "network-gbps: got 0"),
        ("8 x A100", {"host_memory_gib": -1.0}, "host-memory-gib: got -1"),
        ("cpu:4096", {}, "a processor for each rank"),
    ],
)
def test_what_cannot_be(text, options, words):
    with pytest.raises(ResourceError, match=words):
        hardware(text, **options)


@pytest.mark.real
def test_this_machine_is_measured():
    found = hardware("cpu")
    device = found.cluster.device
    assert found.is_cpu
    assert found.title == "this machine's CPU"
    assert device.fp32_flops > 1e9  # the slowest processor that runs torch makes more
    assert 1e8 < device.memory_bandwidth < 1e13
    assert found.cluster.cpu_adam_per_second > 1e6
