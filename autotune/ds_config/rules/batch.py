"""The rule about the batch triple: train_batch_size = micro-batch x accumulation x ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.ds_config.findings import Finding, Severity
from autotune.ds_config.subject import Subject
from autotune.space import ACCUMULATION, MICRO_BATCH

TRAIN = "train_batch_size"
_SHOWN_TRIPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Triple:
    """A batch triple that holds on some number of ranks."""

    train: int
    micro: int
    accumulation: int

    def __str__(self) -> str:
        return f"{self.train} = {self.micro} x {self.accumulation}"


def batch_triple(subject: Subject) -> Iterator[Finding]:
    """`_set_batch_related_parameters` and `_batch_assertion` in deepspeed/runtime/config.py."""
    names = (TRAIN, MICRO_BATCH, ACCUMULATION)
    if all(subject.raw(name) is None for name in names[:2]):
        if not subject.value("autotuning", "enabled"):
            yield _missing(subject)
        return
    if any(subject.raw(name) is not None and subject.value(name) is None for name in names):
        return  # "auto", or a value that another rule tells of
    train, micro, accumulation = (subject.value(name) for name in names)
    if train is None:
        return  # it follows from the others
    if subject.ranks is None:
        yield from _without_ranks(subject, train, micro, accumulation)
        return
    if train != _product(train, micro, accumulation, subject.ranks):
        yield _wrong(subject, train, micro, accumulation, subject.ranks)


def nearest(train: int, micro: int, accumulation: int, ranks: int) -> list[Triple]:
    """Return the valid triples that are nearest to a wrong one, by the ratios of their numbers."""
    found = {(micro * accumulation * ranks, micro, accumulation)}
    for samples in (train // ranks, -(-train // ranks)):
        if samples:
            found |= {(samples * ranks, size, samples // size) for size in _divisors(samples)}
        for size in {samples // accumulation, -(-samples // accumulation)} - {0}:
            found.add((size * accumulation * ranks, size, accumulation))
        for steps in {samples // micro, -(-samples // micro)} - {0}:
            found.add((micro * steps * ranks, micro, steps))

    def distance(triple: tuple[int, int, int]) -> float:
        pairs = zip(triple, (train, micro, accumulation), strict=True)
        return sum(abs(math.log(new / old)) for new, old in pairs)

    best = sorted(found, key=lambda triple: (distance(triple), triple))[:_SHOWN_TRIPLES]
    return [Triple(train=one, micro=two, accumulation=three) for one, two, three in best]


def _product(train: int, micro: int | None, accumulation: int | None, ranks: int) -> int:
    """What DeepSpeed makes of the numbers that are given; it fills in the others by division."""
    if micro is None:
        micro = train // ranks // (accumulation or 1)
        accumulation = accumulation or 1
    elif accumulation is None:
        accumulation = train // micro // ranks
    return micro * accumulation * ranks


def _wrong(subject: Subject, train: int, micro: int | None, accumulation: int | None, ranks: int) -> Finding:
    steps = accumulation or (max(1, train // micro // ranks) if micro else 1)
    size = micro or max(1, train // ranks // steps)
    triples = nearest(train, size, steps, ranks)
    shown = ", ".join(f"{triple} x {ranks}" for triple in triples)
    return subject.find(
        Severity.ERROR,
        "batch-triple",
        (TRAIN,),
        rule=f"micro-batch x accumulation x ranks = {size} x {steps} x {ranks} = {size * steps * ranks}, not {train}",
        fix=f"the nearest that hold: {shown}; or leave one of the three out",
    )


def _without_ranks(subject: Subject, train: int, micro: int | None, accumulation: int | None) -> Iterator[Finding]:
    share = (micro or 1) * (accumulation or 1)
    given = " x ".join(str(number) for number in (micro, accumulation) if number is not None)
    ranks, rest = divmod(train, share)
    if rest or not ranks:
        rule = f"{given} x ranks is {train} for no whole number of ranks"
        below, above = ranks * share, (ranks + 1) * share
        fix = "make it " + " or ".join(str(number) for number in (below, above) if number) + ", or leave it out"
        yield subject.find(Severity.ERROR, "batch-triple", (TRAIN,), rule=rule, fix=fix)
    elif micro is not None and accumulation is not None:
        rule = f"{micro} x {accumulation} x ranks is {train} on {ranks} data-parallel rank{'s' * (ranks > 1)} only"
        yield subject.find(
            Severity.NOTE, "batch-triple", (TRAIN,), rule=rule, fix="check it against your ranks with --ranks"
        )


def _missing(subject: Subject) -> Finding:
    wanted = f"{TRAIN} or {MICRO_BATCH}"
    return subject.find(
        Severity.ERROR,
        "batch-missing",
        (),
        rule=f"neither {TRAIN} nor {MICRO_BATCH} is there; DeepSpeed ends without one",
        fix=f'write "{MICRO_BATCH}": "auto" and the same for the others'
        if subject.is_huggingfaces
        else f"add {wanted}",
    )


def _divisors(number: int) -> set[int]:
    if number > 1_000_000_000_000:  # the search below takes the square root of it
        return {1, number}
    low = {divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0}
    return low | {number // divisor for divisor in low}
