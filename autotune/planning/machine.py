"""This machine as a cluster of CPU ranks: its rates measured by as many processes, all at once, in a few seconds."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from autotune.errors import ResourceError
from autotune.performance import Cluster, cpu_cluster
from autotune.planning import modules

WORKER = "autotune.planning.machine_worker"
DEADLINE_S = 180.0
"""It takes 5 to 10 s with two ranks, most of it torch's import."""


def measured(*, ranks: int) -> Cluster:
    """Return this machine with so many ranks, measured now.

    Raises:
        ResourceError: when there are fewer processors than ranks, or measuring fails.
    """
    processors = len(os.sched_getaffinity(0))
    if ranks > processors:
        raise ResourceError(
            f"hardware: cpu:{ranks} needs a processor for each rank; this machine gives {processors}; take "
            f"cpu:{processors}"
        )
    threads = os.environ.get("OMP_NUM_THREADS", str(processors // ranks))
    with tempfile.TemporaryDirectory(prefix="autotune-estimate-") as folder:
        result = Path(folder) / "rates.json"

        def run(rank: int) -> tuple[int | str, str]:
            words = [sys.executable, "-P", "-m", WORKER, str(rank), str(ranks), folder, str(result)]
            return modules.run(words, deadline_s=DEADLINE_S, environment={"OMP_NUM_THREADS": threads})

        with ThreadPoolExecutor(ranks) as pool:
            endings = list(pool.map(run, range(ranks)))
        if not result.exists():
            ended, output = next((ending for ending in endings if ending[0] != 0), endings[0])
            last = output.strip().splitlines()[-1:] or [""]
            raise ResourceError(f"hardware: measuring this machine failed: a rank ended with {ended}: {last[0]}")
        rates = json.loads(result.read_text(encoding="utf-8"))
    return cpu_cluster(
        ranks=ranks,
        matmul_flops=rates["matmul_flops"],
        half_flops=rates["half_flops"],
        memory_bandwidth=rates["memory_bandwidth"],
        memory_bytes=float(psutil.virtual_memory().total) / ranks,
        link_bandwidth=rates["link_bandwidth"],
        cpu_adam_per_second=rates["adam_per_second"] * ranks,
    )
