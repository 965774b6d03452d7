"""An analytic model of DeepSpeed training: memory, step time, communication, convergence; pure numpy.

    shape = ModelShape.from_numbers(layers=24, hidden=2048, heads=16, sequence=2048, vocabulary=50257)
    machines = cluster("A100-SXM-80GB", devices=16)
    configurations = Configurations.from_points([{"zero_optimization.stage": 2, "train_micro_batch_size_per_gpu": 4}])
    found = estimate(shape, machines, configurations)
    found.time.step_time_s          # shape (configurations,); its phases are the other fields of found.time
    found.memory.out_of_memory      # boolean; found.memory.margin_bytes says by how much
    found.samples_per_second, found.utilization, found.progress_per_second

`ModelShape.from_numbers` derives what it isn't told. `cluster` takes devices from the published table;
`cpu_cluster` is one CPU machine with gloo, from measured rates. `Configurations` is a struct of arrays:
`from_points` reads points of the search space or DeepSpeed files, `from_columns` whole columns (the quick way to a
million), and any field takes an array. `in_chunks` cuts many rows so that they stay in the processor's cache.

`Coefficients` are what the formulas don't know: `Coefficients.prior()` are the shipped medians, `priors()` the table
(unit, spread, source). `from_logarithms` and `logarithms` turn them into vectors and back, for a fit; an ensemble
has fields of shape (members, 1), and then everything estimated has shape (members, configurations).

Formulas, sources and how well they fit published measurements: docs/performance_model.md.
"""

from autotune.performance.coefficients import Coefficients, Prior, priors
from autotune.performance.communication import Communication, Traffic
from autotune.performance.configurations import Configurations
from autotune.performance.convergence import Convergence, noise_scale, statistical_efficiency, steps_to_target
from autotune.performance.devices import Cluster, Device, cluster, cpu_cluster, device, with_measured_matmul
from autotune.performance.memory import Memory
from autotune.performance.model import Estimate, estimate, in_chunks
from autotune.performance.shape import ModelShape
from autotune.performance.step_time import StepTime

__all__ = [
    "Cluster",
    "Coefficients",
    "Communication",
    "Configurations",
    "Convergence",
    "Device",
    "Estimate",
    "Memory",
    "ModelShape",
    "Prior",
    "StepTime",
    "Traffic",
    "cluster",
    "cpu_cluster",
    "device",
    "estimate",
    "in_chunks",
    "noise_scale",
    "priors",
    "statistical_efficiency",
    "steps_to_target",
    "with_measured_matmul",
]
