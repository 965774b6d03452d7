"""Rules about keys that nobody reads: typos, keys in the wrong block, other programs' keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from autotune.ds_config import schema
from autotune.ds_config.document import Form
from autotune.ds_config.findings import Finding, Rename, Severity
from autotune.ds_config.hjson_text import KeyPath
from autotune.ds_config.schema import Block, Kind, Unknown
from autotune.ds_config.subject import Subject

_ALIKE = 0.8
_TYPO = 0.82
"""Above it a long key is a typo and no key of its own: train_micro_batch_size has 0.85, model_parallel_size 0.81."""
_SURE = 0.88
"""Above it there is nothing to guess: `zero_optimisation` has 0.94."""
_AS_GOOD = 0.05
_MOST_SUGGESTIONS = 200
"""To look for what is alike takes a millisecond, and a file with more unknown keys is no DeepSpeed configuration."""
_LONG = 10
"""Characters; short words are alike by chance (`comment` and `comet`)."""


def unknown_keys(subject: Subject) -> Iterator[Finding]:
    """A block that is a model refuses unknown keys; elsewhere, the top level too, nobody looks at them."""
    count = 0
    told = {*schema.data()["removed"]["keys"], *schema.data()["gone"]}
    for path, value, known, block in schema.walk(subject.document.data, subject.schema):
        if known is not None or block.unknown is Unknown.OPEN or ".".join(map(str, path)) in told:
            continue
        if str(path[-1]).strip() in block.keys:
            continue  # spaces_in_keys tells
        count += 1
        yield _finding(subject, path, value, block, may_be_typo=count <= _MOST_SUGGESTIONS)


_STRIPPED = ("autotuning", "arg_mappings")
"""DeepSpeed strips the keys of this block itself (`ResourceManager` in deepspeed/autotuning/scheduler.py)."""


def spaces_in_keys(subject: Subject) -> Iterator[Finding]:
    """A space in the quotes makes another key of it."""
    for path in _paths(subject.document.data, ()):
        key = str(path[-1])
        if key == key.strip() or not key.strip() or path[:-1] == _STRIPPED:
            continue
        yield subject.find(
            Severity.ERROR,
            "space-in-key",
            path,
            rule=f"{key!r} has a space in its quotes, so nobody reads it as {key.strip()}",
            fix=f"did you mean {key.strip()!r}?",
            mend=(Rename(path=path, name=key.strip()),) if _is_free(subject, path, key.strip()) else (),
        )


def _finding(subject: Subject, path: KeyPath, value: Any, block: Block, *, may_be_typo: bool) -> Finding:
    key = str(path[-1])
    refused = block.unknown is Unknown.REFUSED
    near, alike = _near(key, block) if may_be_typo else ([], 0.0)
    is_typo = alike >= _SURE or (alike >= _TYPO and len(key) >= _LONG)
    reader = "accelerate" if subject.document.form is Form.ACCELERATE else "DeepSpeed"
    where = f"in {'.'.join(map(str, path[:-1]))}" if len(path) > 1 else "at the top level"
    rule = f"{reader} {'refuses this key' if refused else 'ignores this key'}: it knows no such one {where}"
    mend: tuple[Rename, ...] = ()
    if near and (is_typo or refused):
        fix = "did you mean " + " or ".join(near) + "?"
        is_certain = alike >= _SURE and len(near) == 1
        if is_certain and _is_free(subject, path, near[0]) and _suits(value, block.keys[near[0]]):
            mend = (Rename(path=path, name=near[0]),)
    else:
        home = _homes().get(key) if subject.document.form is not Form.ACCELERATE else None
        fix, is_typo = (f"move it into {home}", True) if home else ("remove it", False)
    severity = Severity.ERROR if refused or is_typo else Severity.WARNING
    return subject.find(severity, "unknown-key", path, rule=rule, fix=fix, mend=mend)


def _near(key: str, block: Block) -> tuple[list[str], float]:
    """Return the known keys that look most alike (two where they are about as good), and how much (0 to 1)."""
    plain = _plain(key)
    if plain in block.keys:
        return [plain], 1.0
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(plain)
    rated = []
    for name in block.keys:
        matcher.set_seq1(name)
        if matcher.quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE:
            rated.append((matcher.ratio(), name))
    rated.sort(reverse=True)
    best = rated[0][0] if rated else 0.0
    return [name for ratio, name in rated[:2] if ratio >= best - _AS_GOOD], best


def _plain(key: str) -> str:
    return key.strip().lower().replace("-", "_")


def _is_free(subject: Subject, path: KeyPath, name: str) -> bool:
    block: Any = subject.document.data
    for key in path[:-1]:
        block = block[key]
    return name not in block


def _suits(value: Any, known: Kind | Block) -> bool:
    if isinstance(known, Block):
        return isinstance(value, Mapping)
    if isinstance(value, str) and (value == "auto" or known.read(value) is not None):
        return True
    return known.fits(value)


@cache
def _homes() -> dict[str, str]:
    """Keys that only one block knows, by name."""
    found: dict[str, list[str]] = {}

    def collect(block: Block, path: str) -> None:
        for name, known in block.keys.items():
            if path:
                found.setdefault(name, []).append(path)
            if isinstance(known, Block):
                collect(known, f"{path}.{name}".lstrip("."))

    collect(schema.deepspeed(), "")
    return {name: homes[0] for name, homes in found.items() if len(homes) == 1}


def _paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield (*path, key)
            yield from _paths(inner, (*path, key))
