"""The micro-steps of one optimizer step: what a script feeds, and the losses it trains on. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class MicroStep:
    """The forwards of one micro-batch, and the backwards that follow them."""

    samples: list[int] = field(default_factory=list)
    """First dimension of each forward's input, where it has one."""
    tokens: int = 0
    has_forward: bool = False
    has_backward: bool = False
    losses: list[Any] = field(default_factory=list)

    def fed(self, micro_batch_size: int) -> int | None:
        """Return the samples: of several forwards their sum if that is the micro-batch, else they see the same ones."""
        if not self.samples:
            return None
        return sum(self.samples) if sum(self.samples) == micro_batch_size else max(self.samples)


class MicroSteps:
    """Tells micro-steps apart: a forward after a backward, or a call of engine.step, begins the next.

    A micro-step may go forward several times (two views of a batch) and backward several times (two losses, which
    then add up).
    """

    def __init__(self) -> None:
        self._steps: list[MicroStep] = []
        self._current = MicroStep()
        self._losses_add_up = False

    @property
    def awaits_backward(self) -> bool:
        """Whether there was a forward that no backward has followed."""
        return self._current.has_forward and not self._current.has_backward

    def forward(self, *, samples: int | None, tokens: int) -> None:
        """Count a forward in training."""
        if self._current.has_backward:
            self.boundary()
        self._current.has_forward = True
        self._current.tokens += tokens
        if samples is not None:
            self._current.samples.append(samples)

    def backward(self, loss: Any, *, adds_up: bool) -> None:
        """Count a backward.

        Args:
            loss: of one number; None where it is something else.
            adds_up: whether the script has divided it by the accumulation already.
        """
        self._current.has_backward = True
        self._losses_add_up = adds_up
        if loss is not None:
            self._current.losses.append(loss)

    def boundary(self) -> None:
        """Close the micro-step under way, if it went backward."""
        if self._current.has_backward:
            self._steps.append(self._current)
            self._current = MicroStep()

    def take(self) -> Taken:
        """Return the micro-steps since the last call."""
        self.boundary()
        steps, self._steps = self._steps, []
        return Taken(steps=tuple(steps), losses_add_up=self._losses_add_up)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The micro-steps of one optimizer step."""

    steps: tuple[MicroStep, ...]
    losses_add_up: bool

    def count(self, accumulation_steps: int) -> int:
        """Return how many there were; where the engine saw no forward (`engine.module`), as many as it accumulates."""
        return len(self.steps) if any(step.has_forward for step in self.steps) else accumulation_steps

    def fed(self, micro_batch_size: int) -> tuple[int, ...]:
        """Return the samples of each micro-step; empty where they can't be counted in all of them."""
        fed = [step.fed(micro_batch_size) for step in self.steps]
        return tuple(samples for samples in fed if samples is not None) if None not in fed else ()

    @property
    def tokens(self) -> int:
        return sum(step.tokens for step in self.steps)

    def loss(self) -> float | None:
        """Return the step's loss: the mean over its micro-steps, or their sum where the script divided it already."""
        losses = [sum(float(loss) for loss in step.losses) for step in self.steps if step.losses]
        if not losses:
            return None
        return sum(losses) if self.losses_add_up else sum(losses) / len(losses)
