"""The model against published measurements: read, fit, score (`python -m autotune.performance.validation FOLDER`)."""
