"""Claims about communication."""

from __future__ import annotations

import numpy as np

from autotune.performance import ModelShape
from autotune.planning.claims.claim import GIGA, Claim, Verdict, estimated, sent_bytes
from autotune.planning.hardware import hardware
from autotune.planning.models import model
from autotune.report import units


def zero_plus_plus() -> Claim:
    """Judge ZeRO++'s 4 times less traffic."""
    kinds = {
        "qwZ": (1, 0, 0), "hpZ": (0, 1, 0), "qgZ": (0, 0, 1), "qwZ + hpZ": (1, 1, 0),
        "qwZ + qgZ": (1, 0, 1), "hpZ + qgZ": (0, 1, 1), "all three": (1, 1, 1),
    }  # fmt: skip
    columns = np.array([(0, 0, 0), *kinds.values()], dtype=float)
    found = estimated(
        model("10B").shape,
        hardware("64 x V100-32GB", devices_per_node=8),
        stage=3,
        checkpointing=1,
        max_reuse_distance=0.0,
        quantized_weights=columns[:, 0],
        secondary_partition=1.0 + 7.0 * columns[:, 1],
        quantized_gradients=columns[:, 2],
    )
    between = found.communication.between_bytes
    saved = dict(zip(kinds, (1.0 - between / between[0])[1:], strict=True))
    told = ", ".join(f"{name} {units.percent(share)}" for name, share in saved.items())
    return Claim(
        said="ZeRO++ sends 4 times less.",
        found=f"Bytes between nodes against ZeRO-3 (10B, 8 nodes of 8): less by {told}.",
        verdict=Verdict.HOLDS,
        why="With all three, and between nodes: hpZ sends the same inside the node, and quantizing takes time.",
        figures={name: float(share) for name, share in saved.items()},
    )


def fp16_gradients() -> Claim:
    """Judge 75 % less traffic by 16-bit gradients."""
    found = estimated(model("7B").shape, hardware("8 x A100-80GB"), stage=0, precision=[0.0, 2.0])
    fp32, half = (float(value) for value in sent_bytes(found.communication.gradients))
    return Claim(
        said="Sending gradients in FP16 saves 75 % of the communication.",
        found=f"7B on 8 devices: {fp32 / GIGA:.0f} GB of gradients a step in fp32, {half / GIGA:.0f} GB in 16 bits: "
        f"{units.percent(1 - half / fp32)} less.",
        verdict=Verdict.WRONG,
        why="16 of 32 bits are half. In fp16 or bf16 training gradients have 16 bits already, and nothing is saved; "
        "75 % are 16 to 4 bits (qgZ).",
        figures={"saved": 1 - half / fp32},
    )


def tensor_parallel_embedding() -> Claim:
    """Judge 68 % less traffic by tensor parallelism."""
    saved, between = [], []
    for layers, hidden, micro in ((4, 4096, 1), (24, 8192, 1), (24, 8192, 4), (48, 8192, 8)):
        shape = ModelShape.from_numbers(
            layers=float(layers), hidden=float(hidden), heads=hidden / 128.0, sequence=2048.0, vocabulary=10e9 / hidden
        )
        found = estimated(
            shape, hardware("64 x A100-80GB"), stage=0, micro_batch=float(micro), tensor_parallel=[1.0, 8.0]
        )
        total = np.sum([sent_bytes(part) for part in found.communication.parts], axis=0)
        saved.append(float(1.0 - total[1] / total[0]))
        between.append(float(1.0 - found.communication.between_bytes[1] / found.communication.between_bytes[0]))
    return Claim(
        said="Tensor parallelism of 8 on an embedding of more than 10B parameters takes 68 % less communication.",
        found=(
            f"Bytes that one of 64 A100 sends in a step, embedding of 10B: {units.percent(min(saved))} to "
            f"{units.percent(max(saved))} less, by layers and micro-batch; between nodes "
            f"{units.percent(max(between))} at most."
        ),
        verdict=Verdict.DEPENDS,
        why="Gradients shrink by 7/8, and four all-reduces of s b h a layer come on top: the more layers and samples, "
        "the less is left. The slow link between nodes hardly gains.",
        figures={"least": min(saved), "most": max(saved), "between_most": max(between)},
    )
