"""Searchers: what proposes the next point to try."""

from autotune.searchers.protocol import FAILED_SCORE, Searcher

__all__ = ["FAILED_SCORE", "Searcher"]
