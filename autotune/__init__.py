"""autotune: find the DeepSpeed configuration that trains fastest and learns fastest, by short real trials.

Importing this package loads nothing heavy: torch and deepspeed load in rank processes, ray and optuna when used.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
