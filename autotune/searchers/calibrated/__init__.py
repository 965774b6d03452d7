"""Calibrated search: the performance model, fitted to each trial, proposes; a Gaussian process learns its errors."""

from autotune.searchers.calibrated.searcher import CalibratedSearcher

__all__ = ["CalibratedSearcher"]
