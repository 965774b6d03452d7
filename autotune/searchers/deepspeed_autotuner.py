"""DeepSpeed's own autotuner as a searcher, to compare others with: its order of ZeRO stages and micro-batches.

It follows `deepspeed/autotuning/` of DeepSpeed 0.19.8, file by file:

- `autotuner.py`, `tune`: stages 0, 1, 2, 3 in turn, and what each hands to the next.
- `autotuner.py`, `get_min_max_micro_batch_size`: your micro-batch first, then the largest; where that fails, a binary
  search between them, which a failure sends down, and which ends where throughput rises by less than 5 %
  (`constants.py`, METRIC_PERCENT_DIFF_CONST).
- `autotuner.py`, `get_tuning_micro_batch_size_list` and `run_tuning_micro_batch_sizes`: up to three micro-batches from
  half of the largest up, at one batch per rank, the accumulation making up for it.
- `autotuner.py`, `tune_space`: a stage's other keys are tuned only where its best micro-batch is larger than the stage
  before had it, and its throughput no less.
- `constants.py`, DEFAULT_TUNING_SPACE_ZERO_1 to _3, and `config_templates/template_zero*.json`: those keys' values.
- `tuner/base_tuner.py`, `tune`: 50 trials of a stage at most, and none further after five without a better one.
- `utils.py`, `remove_dupe_dicts`: the grid passes through a Python `set`, so the order of DeepSpeed's "gridsearch" is
  another in each process. Here it is drawn from the seed.

What can't be the same:

- Values that the space does not have are not tried (a bucket of 1e9 elements; micro-batches between its levels).
- There is no profiling run, so no estimate of memory: a stage that does not fit shows by its first trial, and the
  largest micro-batch is the space's.
- It is DeepSpeed's whole autotuner (`"fast": false`). Its default, fast, ends each stage after the micro-batches.
- The metric is throughput, DeepSpeed's default: it does not look at R.
- Its model-based tuner is left out: it needs XGBoost.
- DeepSpeed ends when it is done, and waits for each trial; where a study goes on, or has several slots, random points
  are proposed instead.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from autotune.errors import SearcherError, SpaceExhausted
from autotune.space import ACCUMULATION, MICRO_BATCH, SearchSpace
from autotune.trials import Point, Trial, Value

PLATEAU = 0.05
"""METRIC_PERCENT_DIFF_CONST of `deepspeed/autotuning/constants.py`."""
TUNING_MICRO_BATCHES = 3
"""AUTOTUNING_NUM_TUNING_MICRO_BATCH_SIZES_DEFAULT of `deepspeed/autotuning/constants.py`."""
TUNER_TRIALS = 50
"""AUTOTUNING_TUNER_NUM_TRIALS_DEFAULT of `deepspeed/autotuning/constants.py`."""
EARLY_STOPPING = 5
"""AUTOTUNING_TUNER_EARLY_STOPPING_DEFAULT of `deepspeed/autotuning/constants.py`."""

_STAGE = "zero_optimization.stage"
_ZERO = "zero_optimization."
_REDUCE, _GATHER = "zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size"
_OVERLAP = "zero_optimization.overlap_comm"
_BUCKETS = (50_000_000, 500_000_000, 1_000_000_000)

TUNED: Mapping[int, Mapping[str, tuple[Value, ...]]] = {
    0: {},
    1: {_REDUCE: _BUCKETS, _GATHER: _BUCKETS},
    2: {_OVERLAP: (True, False), _REDUCE: _BUCKETS, _GATHER: _BUCKETS},
    3: {_OVERLAP: (True, False), _REDUCE: _BUCKETS, _GATHER: _BUCKETS},
}
"""What is tuned at each stage: DEFAULT_TUNING_SPACE_ZERO_* of `deepspeed/autotuning/constants.py`, without the keys
that no ready-made space has (`reduce_scatter`, `contiguous_gradients`, `allgather_partitions`)."""
TEMPLATES: Mapping[int, Mapping[str, Value]] = {
    0: {},
    1: {_REDUCE: 500_000_000, _GATHER: 500_000_000},
    2: {_OVERLAP: False, _REDUCE: 500_000_000, _GATHER: 500_000_000},
    3: {
        _OVERLAP: False,
        _REDUCE: 500_000_000,
        _GATHER: 500_000_000,
        "zero_optimization.stage3_max_live_parameters": 1_000_000_000,
        "zero_optimization.stage3_param_persistence_threshold": 1_000_000,
    },
}
"""What the other keys are meanwhile: `deepspeed/autotuning/config_templates/template_zero*.json`."""

_Encoding: TypeAlias = tuple[int, ...]
_Plan: TypeAlias = Generator[_Encoding, float | None]
"""Yields what to try next; is sent its throughput, or None where it failed."""


@dataclass(frozen=True, slots=True)
class _Best:
    """What a stage hands to the next: sizes of micro-batches, 0 where it has none, and throughput."""

    largest: int = 0
    micro_batch: int = 0
    throughput: float = 0.0


@dataclass(slots=True)
class _Records:
    """Throughput by micro-batch at one stage (`Autotuner.records`), the highest of each; 0 where it failed."""

    by_size: dict[int, float] = field(default_factory=dict)

    def add(self, size: int, throughput: float | None) -> None:
        self.by_size[size] = max(self.by_size.get(size, 0.0), throughput or 0.0)

    @property
    def best(self) -> tuple[int, float]:
        """Micro-batch and throughput (`get_best_space_record`)."""
        return max(self.by_size.items(), key=lambda item: item[1], default=(0, 0.0))


class DeepSpeedAutotuner:
    """Proposes what DeepSpeed's autotuner would try next; implements `autotune.searchers.Searcher`.

    Its place is not kept: each ask goes through the whole plan anew, past all that was told.
    """

    def __init__(self, space: SearchSpace, *, seed: int = 0) -> None:
        self._space = space
        self._seed = seed
        self._throughput: dict[_Encoding, float | None] = {}
        self._open: list[_Encoding] = []
        self._lost: list[_Encoding] = []
        self._start: Point = {}

    def ask(self) -> Point:
        while self._lost:
            lost = self._lost.pop(0)
            if lost in self._open:
                return self._space.decode(lost)
        if len(self._throughput) + len(self._open) >= self._space.count:
            raise SpaceExhausted(f"all {self._space.count} points of the space have been tried; widen it to go on")
        encoding = self._next()
        if encoding is None or encoding in self._open:
            encoding = self._random()
        self._open.append(encoding)
        return self._space.decode(encoding)

    def tell(self, trial: Trial) -> None:
        if not trial.point or set(trial.point) - set(self._space.names):
            return
        encoding = self._space.encode(trial.point)
        if trial.is_baseline:
            self._start = dict(trial.point)
        self._throughput[encoding] = _throughput(trial)
        if encoding in self._open:
            self._open.remove(encoding)

    def state(self) -> Mapping[str, str]:
        """Return the open asks; all else follows from what was told."""
        return {"open": json.dumps(self._open)}

    def restore(self, state: Mapping[str, str], history: list[Trial]) -> None:
        """Take up the open asks, and hear of the trials.

        Raises:
            SearcherError: when another searcher kept the state.
        """
        if state and set(state) != {"open"}:
            raise SearcherError(
                f"searcher state: got {', '.join(sorted(state))}; it must be open: another searcher kept it; "
                f"start a new study"
            )
        self._open = [tuple(encoding) for encoding in json.loads(state.get("open", "[]"))]
        for trial in history:
            self.tell(trial)
        self._lost = list(self._open)

    def _next(self) -> _Encoding | None:
        """Return the first point of the plan whose throughput is not known; None where the plan is through."""
        plan = self._tune()
        try:
            encoding = next(plan)
            while encoding in self._throughput:
                encoding = plan.send(self._throughput[encoding])
        except StopIteration:
            return None
        return encoding

    def _random(self) -> _Encoding:
        known = {*self._throughput, *self._open}
        generator = np.random.default_rng(np.random.SeedSequence([self._seed, len(known)]))
        for _ in range(100):
            encoding = self._space.encode(self._space.sample(generator))
            if encoding not in known:
                return encoding
        return next(code for code in map(self._space.encode, self._space.points()) if code not in known)

    def _tune(self) -> _Plan:
        """`Autotuner.tune`: one stage after the other."""
        before = _Best()
        for stage in self._levels(_STAGE):
            after = yield from self._tune_stage(int(stage), before)
            if after.micro_batch > before.micro_batch:
                before = after

    def _tune_stage(self, stage: int, before: _Best) -> Generator[_Encoding, float | None, _Best]:
        """`Autotuner.tune_space`."""
        records = _Records()
        smallest, largest = yield from self._range(stage, before.largest, records)
        if largest < max(1, before.largest):
            return _Best()
        whole = largest * self._start_accumulation()
        sizes = yield from self._sizes(stage, smallest, largest, whole, records)
        micro_batch, throughput = records.best
        best = _Best(largest, micro_batch, throughput)
        if stage == 0 or micro_batch <= before.micro_batch or throughput < before.throughput:
            return best
        tuned = yield from self._grid(stage, sizes, whole)
        if tuned[1] > throughput:
            return _Best(largest, *tuned)
        return best

    def _range(self, stage: int, least: int, records: _Records) -> Generator[_Encoding, float | None, tuple[int, int]]:
        """`Autotuner.get_min_max_micro_batch_size`: the smallest and the largest that run; (0, 0) where none does."""
        accumulation = self._start_accumulation()
        sizes = [size for size in self._sizes_of_space() if self._fits(size, accumulation)]
        if not sizes:
            return 0, 0
        smallest = 0
        for size in [least] if least else [self._start_micro_batch(), sizes[0]]:
            if size in sizes and size not in records.by_size:
                records.add(size, (yield self._point(stage, size, accumulation)))
            if records.by_size.get(size, 0.0) > 0:
                smallest = size
                break
        if not smallest:
            return 0, 0
        largest = sizes[-1]
        if largest not in records.by_size:
            records.add(largest, (yield self._point(stage, largest, accumulation)))
        if records.by_size[largest] > 0:
            return smallest, largest
        return smallest, (yield from self._bisect(stage, smallest, sizes, records))

    def _bisect(
        self, stage: int, smallest: int, sizes: Sequence[int], records: _Records
    ) -> Generator[_Encoding, float | None, int]:
        """Return the largest micro-batch that runs, or that is worth it, where the largest of all failed."""
        before = records.by_size[smallest]
        found, low, high = smallest, smallest + 1, sizes[-1] - 1
        while within := [size for size in sizes if low <= size <= high]:
            middle = (low + high) // 2
            size = min(within, key=lambda size: (abs(size - middle), size))
            throughput = yield self._point(stage, size, self._start_accumulation())
            records.add(size, throughput)
            if throughput is None:
                high = size - 1
                continue
            found, low = size, size + 1
            if (throughput - before) / before < PLATEAU:
                break
            before = throughput
        return found

    def _sizes(
        self, stage: int, smallest: int, largest: int, whole: int, records: _Records
    ) -> Generator[_Encoding, float | None, list[int]]:
        """`get_tuning_micro_batch_size_list` and `run_tuning_micro_batch_sizes`: try, and return, a few sizes.

        Args:
            stage: of ZeRO.
            smallest: micro-batch that runs.
            largest: micro-batch that runs.
            whole: samples of one rank per step, of which the micro-batch takes its part.
            records: of the stage.
        """
        smallest = max(smallest, largest // 2)
        stride = max(1, (largest - smallest) // TUNING_MICRO_BATCHES)
        fewest = whole // largest
        wanted = [size for size in range(smallest, largest, stride) if whole // size != fewest]
        sizes = [size for size in [*wanted, largest] if self._fits(size, whole // size)]
        for size in sizes:
            records.add(size, (yield self._point(stage, size, whole // size)))
        best_size, best = largest, records.by_size[largest]
        alike = range(sizes[-2] + 1 if len(sizes) > 1 else smallest, largest)
        for size in reversed([size for size in alike if self._fits(size, whole // size)]):
            throughput = yield self._point(stage, size, whole // size)
            records.add(size, throughput)
            if throughput is None or throughput <= best * (1 + PLATEAU):
                break
            best_size, best = size, throughput
        return [*sizes[:-1], best_size]

    def _grid(
        self, stage: int, sizes: Iterable[int], whole: int
    ) -> Generator[_Encoding, float | None, tuple[int, float]]:
        """`GridSearchTuner` over the stage's tuning space; return its best micro-batch and throughput."""
        tuned = {
            name: [value for value in values if self._has(name, value)] or [TEMPLATES[stage][name]]
            for name, values in TUNED[stage].items()
            if name in self._space.names
        }
        grid = [
            (size, dict(zip(tuned, values, strict=True)))
            for values in itertools.product(*tuned.values())
            for size in sizes
        ]
        order = np.random.default_rng(np.random.SeedSequence([self._seed, stage])).permutation(len(grid))
        best, best_at = (0, 0.0), 0
        for number, index in enumerate(order[:TUNER_TRIALS]):
            size, values = grid[index]
            throughput = yield self._point(stage, size, whole // size, {**TEMPLATES[stage], **values})
            if not best[1] or (throughput or 0.0) > best[1]:
                best, best_at = (size, throughput or 0.0), number
            if number + 1 >= best_at + EARLY_STOPPING:
                break
        return best

    def _point(self, stage: int, size: int, accumulation: int, zero: Point | None = None) -> _Encoding:
        """Return your configuration with this stage, batch and ZeRO keys, the other ZeRO keys at their defaults."""
        wanted = {**(zero or {}), _STAGE: stage, MICRO_BATCH: size, ACCUMULATION: accumulation}
        values: dict[str, Value] = {}
        for dimension in self._space.dimensions:
            name = dimension.name
            own = dimension.default if name.startswith(_ZERO) else self._start.get(name, dimension.default)
            values[name] = wanted[name] if name in wanted and self._has(name, wanted[name]) else own
        return self._space.encode(self._space.canonical(values))

    def _has(self, name: str, value: Value) -> bool:
        return value in self._space[name].levels

    def _levels(self, name: str) -> tuple[Value, ...]:
        """Return the levels of a dimension; where it is not searched, the one value that it has."""
        if name in self._space.names:
            return self._space[name].levels
        settings = {**self._space.given, **self._space.fixed}
        return (settings.get(name, 0 if name == _STAGE else 1),)

    def _sizes_of_space(self) -> list[int]:
        return [int(size) for size in self._levels(MICRO_BATCH)]

    def _fits(self, size: int, accumulation: int) -> bool:
        """Whether the space has this batch (a fixed global batch makes its own accumulation)."""
        if size not in self._sizes_of_space():
            return False
        return self._space.global_batch is not None or accumulation in self._levels(ACCUMULATION)

    def _start_micro_batch(self) -> int:
        return int(self._start.get(MICRO_BATCH, self._sizes_of_space()[0]))

    def _start_accumulation(self) -> int:
        """`Autotuner.get_gas_from_user_config`."""
        return int(self._start.get(ACCUMULATION, self._levels(ACCUMULATION)[0]))


def _throughput(trial: Trial) -> float | None:
    """Return samples per second, of a pruned trial as far as it came; None where it failed."""
    if trial.measurement is not None:
        return trial.measurement.samples_per_second
    if trial.failure is None and trial.intermediates:
        return trial.intermediates[-1].samples_per_second
    return None
