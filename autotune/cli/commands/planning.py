"""Commands that calculate before anything runs: what fits, how fast it would be, and what cluster it takes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from autotune.cli.options import Format, Output


class Precision(StrEnum):
    """Number formats; the values are those of `autotune.performance.configurations.PRECISIONS`."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"


class Checkpointing(StrEnum):
    """Activation checkpointing; the values are those of `autotune.performance.configurations.CHECKPOINTING`."""

    NONE = "none"
    FULL = "full"
    SELECTIVE = "selective"


ModelText: TypeAlias = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A size (7B), numbers (layers=24,hidden=2048,heads=16,vocabulary=50257), a Hugging Face config.json or "
        "its folder, or module:function that makes a torch module.",
        show_default=False,
    ),
]
Sequence: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--sequence", min=1, metavar="TOKENS", help="Tokens per sample; by default the model's.", show_default=False
    ),
]
DevicesPerNode: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="GPUs of one node; by default as is usual for them.", show_default=False),
]
NetworkGbps: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="GBPS", help="Gigabits/s of one node's network; by default as is usual for the GPU.", show_default=False
    ),
]
HostMemory: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--host-memory-gib", metavar="GIB", help="Memory of one node's host; 931 GiB by default.", show_default=False
    ),
]
Page: TypeAlias = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE.html", help="Write it as a page with pictures.", show_default=False),
]


def estimate(
    model: ModelText,
    hardware: Annotated[
        str,
        typer.Option(
            metavar="HARDWARE",
            help='GPUs, "8 x A100" or H100:16; or cpu:RANKS, this machine, whose rates are measured first.',
            show_default=False,
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A DeepSpeed configuration: batch, precision and the rest.", show_default=False
        ),
    ] = None,
    sequence: Sequence = None,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples per device and micro-step.", show_default=False)
    ] = None,
    accumulation: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Micro-steps per optimizer step.", show_default=False)
    ] = None,
    precision: Annotated[
        Precision | None,
        typer.Option(help="By default the file's, else bf16 where the GPU has it.", show_default=False),
    ] = None,
    checkpointing: Annotated[
        Checkpointing | None, typer.Option(help="Activation checkpointing; none by default.", show_default=False)
    ] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tensor-parallel devices.", show_default=False)
    ] = None,
    pipeline_parallel: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Pipeline stages.", show_default=False)
    ] = None,
    no_flash_attention: Annotated[
        bool, typer.Option("--no-flash-attention", help="Attention that writes its scores to memory.")
    ] = False,
    devices_per_node: DevicesPerNode = None,
    network_gbps: NetworkGbps = None,
    host_memory_gib: HostMemory = None,
    path: Page = None,
    output: Output = Format.TABLE,
) -> int:
    """Estimate memory and step time, by ZeRO stage and offload.

    What fits and by how much, where the time goes, throughput and utilisation, calculated without a trial.
    """
    from autotune.cli.estimating import print_estimate
    from autotune.planning import Options

    return print_estimate(
        model,
        hardware,
        config=config,
        sequence=sequence,
        options=Options(
            micro_batch=micro_batch,
            accumulation=accumulation,
            precision=precision,
            checkpointing=checkpointing,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
            flash_attention=not no_flash_attention,
        ),
        devices_per_node=devices_per_node,
        network_gbps=network_gbps,
        host_memory_gib=host_memory_gib,
        path=path,
        form=output,
    )


def plan(
    model: ModelText,
    tokens: Annotated[str, typer.Option(metavar="COUNT", help="Tokens to train on: 300B, 2T.", show_default=False)],
    days: Annotated[float, typer.Option(metavar="DAYS", help="Leave out what takes longer.")] = 30.0,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="HARDWARE",
            help='A GPU (H100): clusters of it; with a count ("2048 x A100"): ways to train on that one; '
            "by default eight kinds of GPUs.",
            show_default=False,
        ),
    ] = None,
    global_batch: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Of one optimizer step (4M); by default by size.", show_default=False),
    ] = None,
    sequence: Sequence = None,
    devices_per_node: DevicesPerNode = None,
    network_gbps: NetworkGbps = None,
    host_memory_gib: HostMemory = None,
    path: Page = None,
    output: Output = Format.TABLE,
) -> int:
    """Find clusters that can train a model in time.

    How many GPUs of which kind, in how many days, at what utilisation, by which configuration: a search over ZeRO
    stage, offload, tensor and pipeline parallelism, micro-batch and checkpointing.
    """
    from autotune.cli.estimating import print_plan

    return print_plan(
        model,
        tokens=tokens,
        days=days,
        hardware=hardware,
        global_batch=global_batch,
        sequence=sequence,
        devices_per_node=devices_per_node,
        network_gbps=network_gbps,
        host_memory_gib=host_memory_gib,
        path=path,
        form=output,
    )


COMMANDS = (estimate, plan)
