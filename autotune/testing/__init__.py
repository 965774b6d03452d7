"""Contract tests for searchers and runners, to subclass for your own (`SearcherContract`, `RunnerContract`).

They need pytest; import them from `autotune.testing.searchers` and `autotune.testing.runners`.
"""
