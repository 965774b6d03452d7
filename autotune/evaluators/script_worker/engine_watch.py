"""A watch on one rank's engine: its configuration compared, its steps timed and counted, its end at the budget.

Loaded only after the script itself has loaded torch and DeepSpeed.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from autotune.evaluators import diagnosis
from autotune.evaluators.rank_files import RankResult
from autotune.evaluators.rank_worker import engine as rank_engine
from autotune.evaluators.rank_worker import failures
from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.evaluators.rank_worker.memory import PeakMemory
from autotune.evaluators.script_files import (
    ENGINE_FILE,
    STEPS_FILE,
    EngineRecord,
    ScriptAssignment,
    StepRecord,
    samples_of_all,
)
from autotune.evaluators.script_worker import sent_config
from autotune.evaluators.script_worker.micro_steps import MicroSteps
from autotune.evaluators.script_worker.phases import BACKWARD, FORWARD, OPTIMIZER, Phases
from autotune.evaluators.script_worker.progress import Progress
from autotune.evaluators.step_times import STAGE_3_WARMUP_STEPS
from autotune.space import ACCUMULATION, MICRO_BATCH
from autotune.trials import FailureKind, Intermediate, Stage

_SHIELDED: list[bool] = []
"""Not empty while an engine that is not watched goes backward."""
_TOKEN_TYPES = (torch.int64, torch.int32, torch.uint8)
VERSIONS = ("torch", "deepspeed", "transformers", "accelerate", "peft")


class Listener(Protocol):
    """Whom the watch tells."""

    def enter(self, stage: Stage) -> None:
        """Hear that a stage begins."""
        ...

    def report(self, course: Sequence[Intermediate]) -> None:
        """Hear what was measured on the way so far."""
        ...

    def deliver(self, result: RankResult) -> None:
        """Hear how this rank ended."""
        ...


def trains(engine: Any) -> bool:
    """Say whether an engine has an optimizer (`DummyOptim` stands for none, in deepspeed/runtime/utils.py)."""
    optimizer = getattr(engine, "optimizer", None)
    return optimizer is not None and type(optimizer).__name__ != "DummyOptim"


def watch(engine: Any, *, assignment: ScriptAssignment, folder: Path, probe: Listener) -> None:
    """Compare the engine's configuration with the one that was sent, then follow its steps to the budget."""
    try:
        record = _record(engine, assignment)
    except TrialFailed as failed:
        _end(probe, failures.result_of(failed, stage=Stage.INITIALIZE, initializing=False))
        return
    (folder / ENGINE_FILE).write_text(record.to_text())
    EngineWatch(engine, assignment=assignment, record=record, steps=folder / STEPS_FILE, probe=probe).begin()


def shield(engine: Any) -> None:
    """Keep the backward of another engine than the watched one from being taken for the script's `loss.backward()`."""
    backward = engine.backward

    def shielded(*arguments: Any, **named: Any) -> Any:
        _SHIELDED.append(True)
        try:
            return backward(*arguments, **named)
        finally:
            _SHIELDED.pop()

    engine.backward = shielded


class EngineWatch:
    """Wraps the engine's forward, backward, step and train_batch, each on this engine alone."""

    def __init__(
        self, engine: Any, *, assignment: ScriptAssignment, record: EngineRecord, steps: Path, probe: Listener
    ) -> None:
        self._engine = engine
        self._assignment = assignment
        self._record = record
        self._probe = probe
        self._steps = steps
        self._progress = Progress(assignment.request, warmup_steps=record.warmup_steps)
        self._course: list[Intermediate] = []
        self._is_cuda = torch.cuda.is_available() and assignment.device != "cpu"
        self._phases = Phases(is_cuda=self._is_cuda)
        self._memory = PeakMemory("cuda" if self._is_cuda else "cpu")
        self._stage = Stage.INITIALIZE
        self._step_began_s = 0.0
        self._inside_backward = False
        self._micro_steps = MicroSteps()

    def begin(self) -> None:
        """Wrap the engine's methods."""
        engine = self._engine
        if hasattr(type(engine), "train_batch"):  # pipeline parallel: one call is a whole step
            engine.train_batch = self._watched_train_batch(engine.train_batch)
            return
        engine.forward = self._watched_forward(engine.forward)
        engine.backward = self._watched_backward(engine.backward)
        engine.step = self._watched_step(engine.step)
        # `loss.backward()`, which DeepSpeed takes as well since 0.18, says nothing to the engine of the loss.
        tensor_backward: Callable[..., Any] = torch.Tensor.backward

        def backward(tensor: Any, *arguments: Any, **named: Any) -> Any:
            if self._inside_backward or _SHIELDED or not self._micro_steps.awaits_backward or tensor.numel() != 1:
                return tensor_backward(tensor, *arguments, **named)
            with self._backward(tensor, adds_up=False):
                return tensor_backward(tensor, *arguments, **named)

        setattr(torch.Tensor, "backward", backward)  # noqa: B010 - a wrapper of any signature

    def _watched_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*inputs: Any, **named: Any) -> Any:
            if not (self._engine.training and torch.is_grad_enabled()):
                return forward(*inputs, **named)
            self._begin_first_step()
            self._count(inputs, named)
            with self._phases.of(FORWARD):
                return forward(*inputs, **named)

        return watched

    def _watched_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            loss = arguments[0] if arguments else named.get("loss")
            adds_up = not (arguments[2] if len(arguments) > 2 else named.get("scale_wrt_gas", True))
            with self._backward(loss, adds_up=adds_up):
                return backward(*arguments, **named)

        return watched

    @contextmanager
    def _backward(self, loss: Any, *, adds_up: bool) -> Iterator[None]:
        self._begin_first_step()  # where the script goes forward by engine.module
        self._inside_backward = True
        is_number = isinstance(loss, torch.Tensor) and loss.numel() == 1
        self._micro_steps.backward(loss.detach() if is_number else None, adds_up=adds_up)
        try:
            with self._phases.of(BACKWARD):
                yield
        finally:
            self._inside_backward = False

    def _watched_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            before = self._engine.global_steps
            with self._phases.of(OPTIMIZER):
                returned = step(*arguments, **named)
            self._micro_steps.boundary()
            if self._engine.global_steps != before:
                self._finish_step()
            return returned

        return watched

    def _watched_train_batch(self, train_batch: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            self._begin_first_step()
            loss = train_batch(*arguments, **named)
            self._micro_steps.backward(torch.as_tensor(loss).detach(), adds_up=True)
            self._finish_step()
            return loss

        return watched

    def _begin_first_step(self) -> None:
        if self._stage is Stage.INITIALIZE:
            self._enter(Stage.FIRST_STEP)
            self._memory.start()
            self._step_began_s = time.perf_counter()

    def _count(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> None:
        tensors = [tensor for tensor in _tensors([*inputs, *named.values()]) if tensor.dim() > 0]
        text = next((tensor for tensor in tensors if tensor.dtype in _TOKEN_TYPES and tensor.dim() == 2), None)
        self._micro_steps.forward(
            samples=int(tensors[0].shape[0]) if tensors else None, tokens=text.numel() if text is not None else 0
        )

    def _finish_step(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()
        now_s = time.perf_counter()
        taken, engine = self._micro_steps.take(), self._record
        loss, fed = taken.loss(), taken.fed(engine.micro_batch_size)
        phase_s = self._phases.take()
        record = StepRecord(
            time_s=now_s - self._step_began_s,
            forward_s=phase_s[FORWARD],
            backward_s=phase_s[BACKWARD],
            optimizer_s=phase_s[OPTIMIZER],
            loss=loss if loss is None or math.isfinite(loss) else None,
            samples=sum(fed) if fed and self._assignment.counts_samples else None,
            tokens=taken.tokens or None,
            micro_steps=taken.count(engine.accumulation_steps),
            skipped_steps=int(getattr(self._engine, "skipped_steps", 0)),
            peak_memory_bytes=self._memory.peak_bytes(),
        )
        try:
            self._check(record, loss, fed)
        except TrialFailed as failed:
            _end(self._probe, failures.result_of(failed, stage=self._stage, initializing=False))
        self._write(record)
        whole = samples_of_all(record, engine, ranks=self._assignment.ranks)
        intermediate = self._progress.add(record.time_s, samples=whole, loss=record.loss)
        if self._progress.steps == 1:
            self._enter(Stage.RUN)
        if intermediate is not None:
            self._course.append(intermediate)
            self._probe.report(self._course)
        if self._progress.is_over:
            _end(self._probe, RankResult())
        self._step_began_s = time.perf_counter()

    def _write(self, record: StepRecord) -> None:
        try:
            with self._steps.open("a") as file:
                file.write(record.to_line())
        except OSError as error:
            failed = TrialFailed(
                FailureKind.CRASH, diagnosis.cannot_write(str(self._steps.parent), error.strerror or str(error))
            )
            _end(self._probe, failures.result_of(failed, stage=self._stage, initializing=False))

    def _check(self, record: StepRecord, loss: float | None, fed: Sequence[int]) -> None:
        """Refuse a step that would be filed under a configuration it wasn't trained with, or that went astray."""
        step = self._progress.steps + 1
        if loss is not None and not math.isfinite(loss):
            raise TrialFailed(
                FailureKind.DIVERGED,
                f"the training loss was not finite in step {step} ({loss} on this rank); "
                "a lower learning rate, a warm-up or gradient clipping may help",
            )
        if step > 1:
            return
        if record.samples is not None and MICRO_BATCH in self._assignment.searched:
            most = max(fed)
            _compare(MICRO_BATCH, fed=most, engine=self._record.micro_batch_size, what=f"micro-batches of {most}")
        if ACCUMULATION in self._assignment.searched:
            what = f"{record.micro_steps} micro-batches for each optimizer step"
            _compare(ACCUMULATION, fed=record.micro_steps, engine=self._record.accumulation_steps, what=what)

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._probe.enter(stage)


def _record(engine: Any, assignment: ScriptAssignment) -> EngineRecord:
    runs = rank_engine.effective_config(engine, assignment.ranks)
    compared = sent_config.compare(_dictionary(engine), runs, assignment)
    stage = int(engine.zero_optimization_stage())
    warmup_steps = max(assignment.request.budget.warmup_steps, STAGE_3_WARMUP_STEPS if stage == 3 else 0)
    trained, total = rank_engine.parameter_counts(engine)
    return EngineRecord(
        config_hash=compared.config_hash,
        effective=compared.effective,
        differences=compared.differences,
        warmup_steps=warmup_steps,
        micro_batch_size=engine.train_micro_batch_size_per_gpu(),
        accumulation_steps=engine.gradient_accumulation_steps(),
        train_batch_size=engine.train_batch_size(),
        trained_parameters=trained,
        total_parameters=total,
        memory_kind=PeakMemory("cpu" if assignment.device == "cpu" else "cuda").kind,
        versions={
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in VERSIONS if name in sys.modules},
        },
    )


def _dictionary(engine: Any) -> Mapping[str, Any]:
    """Return the configuration as DeepSpeed was given it (`DeepSpeedEngine.config` in deepspeed/runtime/engine.py)."""
    config = engine.config
    if isinstance(config, Mapping):
        return config
    dictionary: Mapping[str, Any] = engine._config._param_dict  # noqa: SLF001 - where a path was given
    return dictionary


def _compare(key: str, *, fed: int, engine: int, what: str) -> None:
    if fed != engine:
        raise TrialFailed(
            FailureKind.INVALID_CONFIG,
            f"the script overrides {key}: it feeds {what}, and the configuration that was sent says {engine}. Pass it "
            f"to the script with {{{key}}} in the command, or take {key} out of the search (space: remove); if the "
            "first dimension of the model's input counts something else than samples, say so with "
            "workload.batch_dimension: unknown",
        )


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _end(probe: Listener, result: RankResult) -> None:
    """Say how this rank ended, and wait for the guard to end the whole command."""
    probe.deliver(result)
    while True:
        time.sleep(3600)
