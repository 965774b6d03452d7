"""What a rank tells its host: its stage, what it measured so far and its result, each in a file written at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.evaluators.rank_files import (
    INTERMEDIATES_FILE,
    RESULT_FILE,
    STAGE_FILE,
    RankResult,
    intermediates_to_text,
)
from autotune.trials import Intermediate, Stage


class Reporter:
    """Writes the status files of one rank into its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stage = Stage.LAUNCH
        self.initializing = False
        """Whether `deepspeed.initialize` is running: its complaints are about the configuration."""

    def enter(self, stage: Stage) -> None:
        """Say that a stage begins."""
        self.stage = stage
        self._write(STAGE_FILE, stage.value)

    def report(self, course: Sequence[Intermediate]) -> None:
        """Say what was measured on the way so far."""
        self._write(INTERMEDIATES_FILE, intermediates_to_text(course))

    def deliver(self, result: RankResult) -> None:
        """Leave the result. What happens to this process afterwards no longer matters."""
        self._write(RESULT_FILE, result.to_text())

    def _write(self, name: str, text: str) -> None:
        partial = self.directory / f"{name}.partial"
        partial.write_text(text)
        partial.replace(self.directory / name)
