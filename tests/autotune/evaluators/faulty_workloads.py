"""Workloads that misbehave in one way each; loaded by rank processes through `python_path`."""

import os
import signal
import sys
import time
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import TensorDataset

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
