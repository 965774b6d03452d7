"""`python -m autotune` is the command line."""

from autotune.cli import main

main()
