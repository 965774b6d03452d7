"""Settings that hold for every test."""

import os
import signal

# Small models and two cores: more threads than one only get in each other's way (before numpy and torch load).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where the tests run in the background of a shell, Ctrl-C is ignored, and the processes that they start inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
