import subprocess
import sys

import psutil

from autotune.runners.reaper import Reaper, reap

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_closing_ends_what_is_left():
    with subprocess.Popen(SLEEP) as sleeper, subprocess.Popen(SLEEP) as spared:
        reaper = Reaper()
        reaper.start([psutil.Process(sleeper.pid)])
        assert sleeper.poll() is None
        reaper.close()
        reaper.close()
        assert sleeper.wait(10) == -9
        assert spared.poll() is None
        spared.kill()


def test_a_process_that_took_a_number_over_is_spared():
    with subprocess.Popen(SLEEP) as sleeper:
        started = psutil.Process(sleeper.pid).create_time()
        reap([f"{sleeper.pid} {started - 100}\n", f"{2**30} {started}\n"])
        assert sleeper.poll() is None
        sleeper.kill()


def test_killing_the_owner_ends_them():
    owner = (
        "import subprocess, sys, psutil\n"
        "from autotune.runners.reaper import Reaper\n"
        f"sleeper = subprocess.Popen({SLEEP!r})\n"
        "Reaper().start([psutil.Process(sleeper.pid)])\n"
        "sys.stdout.write(f'{sleeper.pid}\\n'); sys.stdout.flush(); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        sleeper = psutil.Process(int(process.stdout.readline()))
        process.kill()
    sleeper.wait(10)
