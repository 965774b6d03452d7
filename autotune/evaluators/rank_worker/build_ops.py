"""Compile one DeepSpeed op into TORCH_EXTENSIONS_DIR: `python -m autotune.evaluators.rank_worker.build_ops BUILDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autotune.evaluators.op_build import NOT_AVAILABLE_EXIT_CODE
from autotune.evaluators.rank_worker import lifeline, processor_info


def main(builder_name: str) -> int:
    """Load the op once: DeepSpeed compiles on the first load."""
    lifeline.hold_on()
    processor_info.install(Path(os.environ["TORCH_EXTENSIONS_DIR"]))
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(builder_name)
    if builder is None or type(builder).__name__ == "NotImplementedBuilder":
        return NOT_AVAILABLE_EXIT_CODE
    builder.load(verbose=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
