"""Workloads that misbehave in one way each; loaded by rank processes through `python_path`."""

import multiprocessing
import os
import pathlib
import queue
import signal
import sys
import threading
import time
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from autotune.workload import TrainingWorkload


def regression(*, before_loss=lambda: None, model=None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=generator)
    data = TensorDataset(x, x.sum(1, keepdim=True))

    def loss(model, batch):
        before_loss()
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    return TrainingWorkload(
        model=model or nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), data=data, loss=loss, held_out=data
    )


def healthy(context):
    return regression()


def different_in_each_process(context):
    torch.manual_seed(os.getpid())
    return regression()


def without_module_list(context):
    return regression()


def crashing(context):
    """Rank 1 raises in its 20th loss, after words on stderr that must not count."""
    calls = []

    def fail():
        calls.append(None)
        if context.rank == context.world_size - 1 and len(calls) == 20:
            sys.stderr.write("ERROR: CUDA out of memory. Killed. DefaultCPUAllocator: can't allocate memory\n")
            raise KeyError("the twentieth")

    return regression(before_loss=fail)


def asleep(context):
    """The last rank never comes to its first collective."""
    if context.rank == context.world_size - 1:
        time.sleep(600)
    return regression()


def stubborn(context):
    """Ignores SIGTERM, has a child in a session of its own that does so too, and sleeps."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    open("ready", "w").close()
    time.sleep(600)


def fed_by_a_thread(context):
    fed = queue.Queue(maxsize=1)

    def feed():
        while True:
            fed.put(1.0)

    threading.Thread(target=feed, name="feeder", daemon=True).start()
    return regression(before_loss=lambda: fed.get(timeout=20))


def served_by_a_process(context):
    shared = multiprocessing.Manager().dict(scale=1.0)
    return regression(before_loss=lambda: shared["scale"])


class Filed(Dataset):
    """Reads its samples from a file that stays open, and whose beginning was read already."""

    SAMPLE_BYTES = 1000

    def __init__(self, path):
        path.write_bytes(bytes(range(251)) * 200)
        self.file = path.open("rb")
        self.file.read(1)

    def __len__(self):
        return 50

    def __getitem__(self, index):
        self.file.seek(index * self.SAMPLE_BYTES)
        read = torch.frombuffer(bytearray(self.file.read(self.SAMPLE_BYTES)), dtype=torch.uint8)
        x = read.float().view(8, -1)[:, ::7].mean(1) / 100 - 1
        return x, x.sum(0, keepdim=True)


def reading_a_file(context):
    data = Filed(pathlib.Path("samples"))
    return replace(regression(), data=data, held_out=data)


def slow_to_build(context):
    time.sleep(1.0)
    with open(context.arguments["notes"], "a") as notes:
        notes.write("built\n")
    return regression()


def slow_in_rendezvous(context):
    return regression()


def slow_in_initialize(context):
    time.sleep(600)


def slow_in_first_step(context):
    return regression(before_loss=lambda: time.sleep(600))


def slow_in_run(context):
    calls = []

    def sleep():
        calls.append(None)
        if len(calls) > 12:
            time.sleep(600)

    return regression(before_loss=sleep)


def asking_for_the_group(context):
    torch.distributed.barrier()
    return regression()


def leaving(context):
    sys.exit("no data here")


def killed(context):
    if context.rank == context.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return regression()


def hoarding(context):
    """Holds 64 MiB more with every loss."""
    hoard = []
    return regression(before_loss=lambda: hoard.append(torch.ones(16 * 1024 * 1024)))


def asking_too_much(context):
    return regression(before_loss=lambda: torch.empty(1 << 50, dtype=torch.uint8))


def leaving_badly(context):
    """Rank 0 is killed as soon as its result is there."""
    if os.fork() == 0:
        parent = os.getppid()
        while not os.path.exists("result.json"):
            time.sleep(0.0005)
        os.kill(parent, signal.SIGABRT)
        os._exit(0)
    return regression()


def not_a_workload(context):
    return 42


def not_a_model(context):
    return regression(model="a model")


def all_frozen(context):
    return regression(model=nn.Linear(8, 1).requires_grad_(requires_grad=False))


def never_finite(context):
    workload = regression()
    return replace(workload, loss=lambda model, batch: workload.loss(model, batch) * float("nan"))


def loss_by_sample(context):
    return replace(regression(), loss=lambda model, batch: model(batch[0]).squeeze(1))
