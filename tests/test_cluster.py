"""Real DeepSpeed trials over several nodes: code sent to them, nodes that die, heads that change, hosts apart."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune import storage as storages
from autotune.cli.exit_codes import ExitCode
from tests.autotune.runners.ray_nodes import PROCESSORS, RayNodes, wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(len(PROCESSORS) < 2, reason="needs two processors, one for each node"),
]

AUTOTUNE = [sys.executable, "-c", "from autotune.cli import main; main()"]
QUICKSTART = Path(__file__).parents[1] / "experiments" / "quickstart"
FIRST, SECOND = PROCESSORS[:2]
WORKLOAD = """
import os
from autotune.evaluators.workloads import byte_gpt

def workload(context):
    assert "_ray_pkg_" in __file__, f"read where it was written, {__file__}, and not where it was sent"
    assert os.environ["GREETING"] == "hello"
    return byte_gpt.workload(context)
"""
CAMPAIGN = """
name: real
workload: {function: "mine:workload"}
ds_config: ds_config.json
hardware: {ranks: 2, accelerator: cpu}
placement:
  strategy: strict_spread
  ship_code: true
  environment: {GREETING: hello}
  node_wait_s: 120
budget: {steps: 4, warmup_steps: 1}
trials: 2
searcher: random
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "campaign"
    folder.mkdir()
    shutil.copy(QUICKSTART / "ds_config.json", folder)
    (folder / "mine.py").write_text(WORKLOAD)
    (folder / "campaign.yaml").write_text(CAMPAIGN)
    return folder


def start(*arguments, folder, prefix=()):
    """Start the command line in `folder`, with the storage there; its output goes to a file."""
    environment = os.environ | {"AUTOTUNE_STORAGE": f"sqlite:///{folder}/autotune.db", "COLUMNS": "200"}
    with (folder.parent / "out").open("w") as out:
        return subprocess.Popen(
            [*prefix, *AUTOTUNE, *arguments], cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT
        )


def ended(process, folder, timeout_s=300):
    """Return exit code and output of a command line that was started."""
    code = process.wait(timeout_s)
    return code, (folder.parent / "out").read_text()


def trials(folder):
    opened = storages.connect(f"sqlite:///{folder}/autotune.db")
    try:
        return opened.open("real").trials()
    finally:
        opened.close()


def under_way(folder, number):
    """Whether both ranks of a trial train."""
    stages = [folder / "autotune_runs" / "real" / f"trial-{number:05d}" / f"rank{rank}" / "stage" for rank in range(2)]
    return all(stage.exists() and stage.read_text().strip() in ("initialize", "first_step") for stage in stages)


def test_a_node_dies_in_the_baseline_and_the_campaign_goes_on_elsewhere(folder, tmp_path):
    with RayNodes(tmp_path) as nodes:
        nodes.start("first", address="127.0.0.1", processors=[FIRST])
        nodes.start("second", address="127.0.0.2", processors=[SECOND])
        launched = start("launch", "campaign.yaml", "--ray-address", nodes.address, folder=folder)
        try:
            wait_until(lambda: under_way(folder, 0), 120, launched)
            nodes.kill("second")
            nodes.start("third", address="127.0.0.3", processors=[SECOND])
            code, out = ended(launched, folder)
        finally:
            launched.kill()
        assert code == ExitCode.OK, out
        assert "at once" in out
        assert "trial 0: the host of rank" in out
        assert "it is measured again" in out
        baseline, other = trials(folder)
        assert (baseline.number, baseline.is_baseline, baseline.state.value) == (0, True, "COMPLETE")
        assert baseline.measurement.remarks[-1].startswith("measured anew after its host was lost (the host of rank")
        assert other.counts
        assert set(baseline.outcome.nodes) == {"rank0", "rank1"}
        assert "127.0.0.3" in baseline.outcome.nodes.values()
        assert "on 127.0.0.3" in ended(start("show", "real", "0", folder=folder), folder)[1]
        assert not (folder / "autotune_runs" / "real" / "trial-00002").exists()
    with RayNodes(tmp_path) as nodes:  # another cluster: the head was started anew
        nodes.start("head", address="127.0.0.1", processors=[FIRST])
        nodes.start("other", address="127.0.0.2", processors=[SECOND])
        resumed = start("resume", "real", "--trials", "3", "--ray-address", nodes.address, folder=folder)
        code, out = ended(resumed, folder)
        assert code == ExitCode.OK, out
        assert [trial.number for trial in trials(folder) if trial.counts] == [0, 1, 2]


SCRIPT_CAMPAIGN = """
name: real
workload:
  command: "python train.py --deepspeed {config}"
  environment: {GREETING: hello}
hardware: {accelerator: cpu}
ds_config: {train_micro_batch_size_per_gpu: 4, gradient_accumulation_steps: 1,
            optimizer: {type: AdamW, params: {lr: 0.001, torch_adam: true}}}
placement: {ship_code: true, labels: {pool: tuning}}
budget: {steps: 4, warmup_steps: 1}
trials: 2
searcher: random
"""
SCRIPT = """
import os, sys
import deepspeed, torch
assert "_ray_pkg_" in os.getcwd(), os.getcwd()
model = torch.nn.Linear(16, 16)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=sys.argv[2])
for _ in range(200):
    inputs = torch.randn(engine.train_micro_batch_size_per_gpu(), 16, dtype=next(model.parameters()).dtype)
    loss = torch.nn.functional.mse_loss(engine(inputs), inputs)
    engine.backward(loss)
    engine.step()
"""


def test_a_script_is_sent_to_the_nodes_that_have_the_label(folder, tmp_path):
    (folder / "campaign.yaml").write_text(SCRIPT_CAMPAIGN)
    (folder / "train.py").write_text(SCRIPT)
    with RayNodes(tmp_path) as nodes:
        nodes.start("first", address="127.0.0.1", processors=[FIRST])
        nodes.start("second", address="127.0.0.2", processors=[SECOND], labels="pool=tuning")
        code, out = ended(start("launch", "campaign.yaml", "--ray-address", nodes.address, folder=folder), folder)
    assert code == ExitCode.OK, out
    baseline, other = trials(folder)
    assert baseline.measurement, baseline.failure
    assert baseline.outcome.nodes == {"output": "127.0.0.2"}
    assert other.counts


class Hosts:
    """Two network namespaces with a cable between them: two machines, as far as a network tells."""

    def __init__(self):
        self.names = [f"at{os.getpid()}{end}" for end in "ab"]
        self.addresses = ["10.213.77.1", "10.213.77.2"]

    def __enter__(self):
        first, second = self.names
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", "cable0", "netns", first, "type", "veth", "peer", "name", "cable1", "netns", second)
            for end, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", f"cable{end}")
                ip("-n", name, "link", "set", f"cable{end}", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def inside(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def cable(self, state):
        ip("-n", self.names[1], "link", "set", "cable1", state)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_no_hosts():
    """Return why this machine can't play two; None where it can."""
    if shutil.which("ip") is None:
        return "there is no command `ip`"
    try:
        with Hosts():
            return None
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()}"


@pytest.fixture
def hosts():
    reason = why_no_hosts()
    if reason is not None:
        pytest.skip(reason)
    with Hosts() as hosts:
        yield hosts


def test_trials_over_two_hosts_and_a_cable_that_is_pulled(hosts, folder, tmp_path):
    near, far = hosts.addresses
    with RayNodes(tmp_path) as nodes:
        nodes.start("near", address=near, processors=[FIRST], prefix=hosts.inside(0))
        nodes.start("far", address=far, processors=[SECOND], prefix=hosts.inside(1))
        short = ["--set", "placement.node_wait_s=3"]
        launched = start(
            "launch", "campaign.yaml", "--ray-address", nodes.address, *short, folder=folder, prefix=hosts.inside(0)
        )
        try:
            code, out = ended(launched, folder)
            assert code == ExitCode.OK, out
            baseline, _ = trials(folder)
            assert baseline.measurement, baseline.failure
            assert set(baseline.outcome.nodes.values()) == {near, far}
            resumed = start("resume", "real", "--trials", "3", folder=folder, prefix=hosts.inside(0))
            wait_until(lambda: under_way(folder, 2), 120, resumed)
            hosts.cable("down")
            pulled_s = time.monotonic()
            wait_until(lambda: "it is measured again" in (tmp_path / "out").read_text(), 60, resumed)
            lost_after_s = time.monotonic() - pulled_s
            code, out = ended(resumed, folder)
        finally:
            launched.kill()
        assert code == ExitCode.RESOURCES, out
        assert "no node is left that holds a trial" in out
        assert lost_after_s < 30, out
        assert trials(folder)[2].failure.kind.value == "CANCELLED"
        nodes.kill("far")
        hosts.cable("up")
        nodes.start("far", address=far, processors=[SECOND], prefix=hosts.inside(1))
        resumed = start("resume", "real", folder=folder, prefix=hosts.inside(0))
        code, out = ended(resumed, folder)
        assert code == ExitCode.OK, out
        assert [trial.number for trial in trials(folder) if trial.counts] == [0, 1, 3]
        print(json.dumps({"lost_after_s": round(lost_after_s, 1)}))
