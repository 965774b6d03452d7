"""Scripts that go wrong, under real launchers: each ends as a typed trial with its reason and leaves nothing behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import failures

pytestmark = pytest.mark.real

MARKS = {True: [pytest.mark.slow], False: []}
ROOT = Path(__file__).parents[1]
AUTOTUNE = [sys.executable, "-c", "from autotune.cli import main; main()"]
CAMPAIGN = f"""\
name: mixed
workload:
  command: torchrun --nproc_per_node 2 by_trial.py --trial {{trial}} --deepspeed_config {{config}}
  directory: {failures.SCRIPTS}
ds_config: {failures.SCRIPTS / "plain_loop.json"}
hardware: {{accelerator: cpu}}
runner: local
searcher: random
trials: 6
budget: {{seconds: 1.5, warmup_steps: 1}}
finals: {{candidates: 0}}
space:
  base: empty
  add:
    - {{name: gradient_clipping, type: float, levels: [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0]}}
"""


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=MARKS[case.slow]) for case in failures.CASES])
def test_it_ends_as_a_typed_trial_and_leaves_nothing(case, tmp_path):
    assert failures.complaints(case, failures.run(case, tmp_path)) == []


def test_a_disk_that_is_really_full(tmp_path):
    """A file system of 256 KiB, on which the log alone has no room: neither have the results of the ranks."""
    mounted = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"', str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*mounted, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets no user mount a tmpfs of his own (unshare -rm)")
    code = """
import dataclasses, sys
from pathlib import Path
from tests import failures
case = dataclasses.replace(failures.named("full disk for the log"), around=failures.nothing)
seen = failures.run(case, Path(sys.argv[1]))
print(seen.outcome.failure.kind, seen.outcome.failure.reason, seen.left, sep="\\n")
"""
    done = subprocess.run(
        [*mounted, sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    kind, reason, left = done.stdout.splitlines()
    assert (kind, left) == ("CRASH", "()")
    assert re.search(r"autotune can't write the trial's files to .*/trial-00007: .*run_directory", reason)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "mixed.yaml").write_text(CAMPAIGN)
    return folder


def environment(folder):
    return os.environ | {"AUTOTUNE_STORAGE": f"sqlite:///{folder}/autotune.db"}


def autotune(*arguments, folder):
    """Run the command line in `folder`, with the storage there, and return what it says."""
    done = subprocess.run(
        [*AUTOTUNE, *arguments], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_controller_killed_in_training_leaves_nothing(folder):
    trial = folder / "autotune_runs" / "mixed" / "trial-00000"
    controller = subprocess.Popen(
        [*AUTOTUNE, "launch", "mixed.yaml"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with failures.Traces(trial, psutil.Process(controller.pid)) as traces:
        failures.until(lambda: (trial / "rank1" / "steps.jsonl").exists() or controller.poll() is not None)
        time.sleep(0.3)  # for one more look at what runs
        controller.send_signal(signal.SIGKILL)
        controller.wait()
        assert traces.left()
        failures.until(lambda: not traces.left(), within_s=failures.CLEAN_WITHIN_S)
        assert traces.left() == []


def test_the_campaign_goes_on_after_the_kill_and_after_every_failure(folder):
    autotune("resume", "mixed", folder=folder)
    rows = json.loads(autotune("trials", "mixed", "--format", "json", folder=folder))
    failed = [(row["outcome"]["failure"] or {"kind": "none", "reason": ""}) for row in rows]
    assert [failure["kind"] for failure in failed] == [
        "CANCELLED",
        "none",
        "CRASH",
        "OUT_OF_MEMORY",
        "DIVERGED",
        "CRASH",
        "none",
    ]
    expected = [
        "the controller ended before the trial did",
        "",
        "RuntimeError: the data set has no file train.bin",
        "rank 1 was killed by signal 9",
        "the training loss was not finite",
        "never called deepspeed.initialize",
        "",
    ]
    for failure, words in zip(failed, expected, strict=True):
        assert words in failure["reason"]
    table = autotune("trials", "mixed", folder=folder)
    assert all(kind in table for kind in ("CRASH", "OUT_OF_MEMORY", "DIVERGED"))
