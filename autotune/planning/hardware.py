"""The cluster that is asked about: `8 x A100-SXM-80GB`, `A100:8`, or `cpu`, from the table of devices."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from autotune.errors import ResourceError
from autotune.performance import Cluster, cluster
from autotune.performance.devices import table
from autotune.planning import machine

CPU = "cpu"
MEANT = {
    "a100": "A100-SXM-80GB",
    "a100-sxm": "A100-SXM-80GB",
    "a100-sxm4": "A100-SXM-80GB",
    "h100": "H100-SXM-80GB",
    "h100-sxm5": "H100-SXM-80GB",
    "b300": "B300-SXM",
    "v100-sxm3": "V100-SXM2/3-32GB",
}
"""Names of families as people type them, where one member is what is mostly rented; what was taken is said."""
_COUNT_FIRST = re.compile(r"(?P<count>\d+)\s*[x×*]\s*(?P<name>.+)", re.IGNORECASE)  # noqa: RUF001 (people paste it)
_COUNT_LAST = re.compile(r"(?P<name>.+?)\s*:\s*(?P<count>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A cluster, and how it was understood."""

    cluster: Cluster
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        return int(np.asarray(self.cluster.devices))

    @property
    def devices_per_node(self) -> int:
        return min(int(np.asarray(self.cluster.devices_per_node)), self.devices)

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.devices_per_node)

    @property
    def is_cpu(self) -> bool:
        return bool(np.asarray(self.cluster.device.is_cpu) > 0)

    @property
    def gbps(self) -> float:
        """Gigabits per second of one node's network."""
        return float(np.asarray(self.cluster.inter_bandwidth)) * 8 / 1e9

    @property
    def title(self) -> str:
        """Return words: '16 x A100-SXM-80GB, 2 nodes at 1,600 Gb/s'."""
        name = f"{self.devices:,} x {self.cluster.device.name}"
        if self.is_cpu:
            return f"{self.devices} ranks on this machine's CPU" if self.devices > 1 else "this machine's CPU"
        return f"{name}, {self.nodes:,} nodes at {self.gbps:,.0f} Gb/s" if self.nodes > 1 else name


def hardware(
    text: str,
    *,
    devices_per_node: int | None = None,
    network_gbps: float | None = None,
    host_memory_gib: float | None = None,
) -> Hardware:
    """Return the cluster that a text names.

    Args:
        text: a device of the table and how many, `8 x NAME` or `NAME:8`, one where no number is given; `cpu` or
            `cpu:RANKS` is this machine, whose rates are measured now.
        devices_per_node: by default the table's.
        network_gbps: of one node's network, in gigabits per second; by default the table's.
        host_memory_gib: of one node.

    Raises:
        ResourceError: when no device, or several, go by that name, or a number is not above 0.
    """
    for name, value in (("network-gbps", network_gbps), ("host-memory-gib", host_memory_gib)):
        if value is not None and not value > 0:
            raise ResourceError(f"{name}: got {value:g}; it must be above 0")
    name, count = _parts(text)
    if name.lower() == CPU:
        return Hardware(cluster=machine.measured(ranks=count or 1))
    found = device_name(name)
    count = count or 1
    made = cluster(found, devices=count, devices_per_node=devices_per_node, inter_node_gbps=network_gbps)
    if host_memory_gib is not None:
        made = replace(made, host_memory_bytes=host_memory_gib * 2**30)
    result = Hardware(cluster=made, notes=_notes(name, found))
    if count > result.devices_per_node and count % result.devices_per_node:
        raise ResourceError(
            f"hardware: {count} x {found} is no multiple of the {result.devices_per_node} of a node; give another "
            "count, or --devices-per-node"
        )
    return result


def has_count(text: str) -> bool:
    """Whether a text says how many devices there are."""
    return _parts(text)[1] is not None


def _parts(text: str) -> tuple[str, int | None]:
    if text.strip() in table():
        return text.strip(), None
    found = _COUNT_FIRST.fullmatch(text.strip()) or _COUNT_LAST.fullmatch(text.strip())
    if found is None:
        return text.strip(), None
    if int(found["count"]) < 1:
        raise ResourceError(f"hardware: got {text!r}; there must be at least one device")
    return found["name"].strip(), int(found["count"])


def known_devices() -> list[str]:
    """Return the devices of the table that make clusters: not CPUs, and none whose links the table doesn't know."""
    return [name for name, row in table().items() if row["typical_inter_node_gbps_per_node"] and row["pcie_unidir_gbs"]
            and not name.startswith("CPU")]  # fmt: skip


def device_name(text: str) -> str:
    """Return the table's name of a device that goes by a short name.

    All words of the short name must be in the table's, in any order: `A100-80GB`, `h100 pcie`, `4090`. SXM is meant
    where PCIe isn't said.

    Raises:
        ResourceError: when there is none, or several.
    """
    known = known_devices()
    by_key = {_key(name): name for name in known}
    key = _key(text)
    if key in by_key:
        return by_key[key]
    if key in MEANT:
        return MEANT[key]
    found = _matching(text)
    if len(found) > 1 and "pcie" not in _words(text):
        found = [name for name in found if "pcie" not in _words(name)] or found
    if len(found) > 1:
        plain = [name for name in found if "(" not in name]
        found = plain or found
    if len(found) == 1:
        return found[0]
    if found:
        raise ResourceError(f"hardware: {text!r} may be any of {', '.join(found)}; say which")
    raise ResourceError(f"hardware: got {text!r}; it must be {CPU} or one of {', '.join(known)}")


def _matching(text: str) -> list[str]:
    words = _words(text)
    return [name for name in known_devices() if words and all(_is_in(word, _words(name)) for word in words)]


def _notes(typed: str, found: str) -> tuple[str, ...]:
    if _key(typed) == _key(found):
        return ()
    others = [name for name in _matching(typed) if name != found]
    return (f"{typed} taken for {found}" + (f" (not {', '.join(others)})" if others else ""),)


def _key(text: str) -> str:
    return re.sub(r"[\s_-]+", "-", text.strip().lower())


def _words(text: str) -> list[str]:
    words = re.findall(r"[a-z0-9.]+", re.sub(r"(\d+)\s*(gb|gib|g)\b", r"\1gb", text.lower()))
    return [word for word in words if word not in ("nvidia", "amd", "intel", "geforce", "tesla")]


def _is_in(word: str, words: list[str]) -> bool:
    """Whether a word is one of a name's, or begins the first (mi300 of MI300X), or is a form of SXM."""
    if word.startswith("sxm"):
        return any(other.startswith("sxm") for other in words)
    if word in words or (len(word) > 3 and "".join(words).startswith(word)):
        return True
    return word.isalpha() and any(other.startswith(word) and other[len(word) :].isdigit() for other in words[1:])
