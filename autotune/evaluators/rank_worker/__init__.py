"""One rank of one trial, as a process of its own: `python -m autotune.evaluators.rank_worker`."""
