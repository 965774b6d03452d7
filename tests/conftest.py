"""Settings that hold for every test."""

import os

# Small models and two cores: more threads than one only get in each other's way (before numpy and torch load).
os.environ.setdefault("OMP_NUM_THREADS", "1")
