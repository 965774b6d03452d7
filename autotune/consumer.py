"""Whom an export is for: the program that reads the configuration."""

from __future__ import annotations

from enum import StrEnum


class Consumer(StrEnum):
    """The program that reads an exported configuration."""

    DEEPSPEED = "deepspeed"
    """`deepspeed.initialize(config=...)`: every number stands in the file."""
    HUGGING_FACE = "hf"
    """Hugging Face's Trainer: what it shares with TrainingArguments is "auto", and reaches the script as flags."""
    ACCELERATE = "accelerate"
    """`accelerate launch --config_file`: a YAML file that points at the configuration."""
