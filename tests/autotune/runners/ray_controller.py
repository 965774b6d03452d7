"""A controller to be interrupted and killed by test_ray_processes.py: runs one trial of two ranks that sleeps.

Says what it does, a word a line; waits after an interruption until its standard input has a line.
"""

import sys
import time

from autotune.runners.ray_runner import RayRunner
from autotune.testing.runners import ProcessEvaluator, request

if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    directory = sys.argv[1]
    source = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(120)"
    runner = RayRunner(ProcessEvaluator(ranks=2, source=source, directory=directory))
    runner.open([], lambda line: None)
    runner.submit(request(0))
    sys.stdout.write("submitted" + "\n")
    try:
        time.sleep(120)
    except KeyboardInterrupt:
        sys.stdout.write("interrupted" + "\n")
    sys.stdin.readline()
    under_way = runner.collect(0.5) is None
    sys.stdout.write("under-way\n" if under_way else "ended\n")
    runner.close(cancel=True)
    sys.stdout.write(runner.collect(0.0).outcome.failure.kind.value + "\n")
