"""Workloads that come with autotune (`autotune.workload.BUILT_IN`); importing one loads torch."""
