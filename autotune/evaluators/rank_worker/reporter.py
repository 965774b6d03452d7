"""What a rank tells its host: the stage it entered and the result it leaves, each in a file written at once."""

from __future__ import annotations

from pathlib import Path

from autotune.evaluators.rank_files import RESULT_FILE, STAGE_FILE, RankResult
from autotune.trials import Stage


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

    def deliver(self, result: RankResult) -> None:
        """Leave the result. What happens to this process afterwards no longer matters."""
        self._write(RESULT_FILE, result.to_text())

    def _write(self, name: str, text: str) -> None:
        partial = self.directory / f"{name}.partial"
        partial.write_text(text)
        partial.replace(self.directory / name)
