"""What calibration makes of the performance model on recorded trials: errors before, and after on trials left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests import calibrated_trials
from tests.calibrated_trials import Errors

SPLITS = 20
COUNTS = (8, 16, 32, 64)
COLUMNS = ("trials of", "fitted to", "kind", "median error", "mean error", "Spearman", "in 90 %")


def main() -> None:
    """Print one row for each recording and number of trials fitted to."""
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    recordings = {name: calibrated_trials.quiet(name) for name in ("byte_gpt", "module_mlp")}
    recordings["busy machine"] = (calibrated_trials.BYTE_GPT, calibrated_trials.everything())
    slowest_s = 0.0
    for name, (subject, trials) in recordings.items():
        title = f"{name} ({len(trials)})"
        _print_rows(title, "none (priors)", calibrated_trials.before(trials, subject))
        for count in COUNTS:
            if count > 0.75 * len(trials):
                continue
            nulls = [calibrated_trials.null(trials, count, seed) for seed in range(SPLITS)]
            _print_rows(title, f"{count} (samples/s)", {"step_time": calibrated_trials.mean(nulls)})
            runs = [calibrated_trials.held_out(trials, count, seed, subject) for seed in range(SPLITS)]
            slowest_s = max(slowest_s, *(took_s for _, took_s in runs))
            _print_rows(title, str(count), _means([errors for errors, _ in runs]))
    print(f"slowest fit: {slowest_s:.2f} s")


def _means(runs: Sequence[Mapping[str, Errors]]) -> Mapping[str, Errors]:
    return {kind: calibrated_trials.mean([run[kind] for run in runs]) for kind in runs[0]}


def _print_rows(name: str, fitted: str, errors: Mapping[str, Errors]) -> None:
    for kind, each in errors.items():
        figures = f"{each.median:.1%} | {each.mean:.1%} | {each.spearman:.2f} | {each.inside:.0%}"
        print(f"| {name} | {fitted} | {kind} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
