"""What the controller costs per trial: a study of simulated trials, by searcher."""

from __future__ import annotations

import tempfile
import time

from autotune import campaign, storage
from autotune.searchers.optuna import SAMPLERS, OptunaSearcher

TRIALS = 60
CAMPAIGN = {
    "name": "bench",
    "evaluator": "simulated",
    "hardware": {"ranks": 2, "accelerator": "cpu"},
    "ds_config": {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
    "trials": TRIALS,
}


def main() -> None:
    """Print milliseconds per trial, asking, running, recording and telling together."""
    with tempfile.TemporaryDirectory() as folder:
        opened = storage.connect(f"sqlite:///{folder}/bench.db")
        for sampler in SAMPLERS:
            stored = campaign.create(campaign.parse(CAMPAIGN, where="bench"), opened, name=sampler)
            begun = time.perf_counter()
            with campaign.study(stored) as study:
                study.run(OptunaSearcher(study.space, sampler=sampler, seed=0))
            milliseconds = (time.perf_counter() - begun) / TRIALS * 1e3
            print(f"controller: {sampler:8} {milliseconds:7.1f} ms per simulated trial ({TRIALS} trials)")
        opened.close()


if __name__ == "__main__":
    main()
