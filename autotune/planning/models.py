"""The model that is asked about: from numbers, a Hugging Face config.json, or a torch module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.errors import WorkloadError
from autotune.performance import ModelShape
from autotune.planning import hugging_face, modules
from autotune.workload import BUILT_IN

TYPICAL_SEQUENCE = 2048
TYPICAL_VOCABULARY = 50257
"""GPT-2's and GPT-3's (Radford et al. 2019; Brown et al. 2020, section 2.1)."""
GPT_3_HIDDEN = {125e6: 768.0, 350e6: 1024.0, 760e6: 1536.0, 1.3e9: 2048.0, 2.7e9: 2560.0, 6.7e9: 4096.0, 13e9: 5120.0}
"""Hidden size by parameters (Brown et al. 2020, Table 2.1; its 13B has 5140)."""
USUAL_LONGEST = 4096
"""Models that could read more are mostly trained on so many tokens per sample; `--sequence` says another."""
_COUNT = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMBT])", re.IGNORECASE)
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_NUMBERS = ("parameters", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "sequence", "vocabulary", "trainable")
_HOW = "give a size (7B), numbers (layers=24,hidden=2048,heads=16), a Hugging Face config.json, or module:function"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model by its name and shape."""

    name: str
    shape: ModelShape
    notes: tuple[str, ...] = ()
    """What was assumed."""

    @property
    def parameters(self) -> float:
        return float(np.asarray(self.shape.parameters))

    @property
    def sequence(self) -> float:
        return float(np.asarray(self.shape.sequence))


def model(text: str, *, sequence: int | None = None) -> Model:
    """Return the model that a text names.

    Args:
        text: `7B`; `layers=24,hidden=2048,heads=16,sequence=2048,vocabulary=50257`; a Hugging Face config.json or its
            folder; `module:function`, or a built-in workload.
        sequence: tokens per sample, instead of what the text implies.

    Raises:
        WorkloadError: when it names none of these, or something is missing.
    """
    if sequence is not None and sequence < 1:
        raise WorkloadError(f"sequence: got {sequence}; it must be at least 1 token")
    size = count(text)
    if size is not None:
        return _of_size(text, size, sequence)
    if Path(text).exists() or text.endswith(".json"):
        return _of_hugging_face(Path(text), sequence)
    if text in BUILT_IN or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
        return _of_module(text, sequence)
    if "=" in text:
        return _of_numbers(text, sequence)
    raise WorkloadError(f"model: got {text!r}, which is no file here and no size; {_HOW}")


def count(text: str) -> float | None:
    """Return a count with its unit, '7B' -> 7e9; None where it isn't one."""
    found = _COUNT.fullmatch(text.strip())
    return float(found["number"]) * _UNITS[found["unit"].upper()] if found else None


def _of_size(text: str, size: float, sequence: int | None) -> Model:
    if size < 1e5:
        raise WorkloadError(f"model: got {text!r}; sizes are from 100K parameters on")
    shape = _gpt(size, float(sequence or TYPICAL_SEQUENCE))
    note = f"shape: a GPT's of that size, {_widths(shape)}, vocabulary {TYPICAL_VOCABULARY:,}"
    return Model(name=text.strip().upper(), shape=shape, notes=(note,))


def _gpt(size: float, sequence: float) -> ModelShape:
    """Return a GPT of so many parameters, its widths as round as real ones are, so that parallelism divides them.

    Between 125M and 13B widths follow GPT-3's table (Brown et al. 2020, Table 2.1), outside `ModelShape`'s aspect.
    """
    plain = ModelShape.from_numbers(parameters=size, sequence=sequence, vocabulary=float(TYPICAL_VOCABULARY))
    hidden = float(np.asarray(plain.hidden))
    if min(GPT_3_HIDDEN) <= size <= max(GPT_3_HIDDEN):
        hidden = float(np.exp(np.interp(np.log(size), np.log(list(GPT_3_HIDDEN)), np.log(list(GPT_3_HIDDEN.values())))))
    step = 1024.0 if hidden >= 3584 else 256.0 if hidden >= 640 else 64.0
    hidden = step * max(round(hidden / step), 1)
    exact = (size - TYPICAL_VOCABULARY * hidden) / (12.0 * hidden**2)
    step = 8.0 if exact >= 28 else 4.0 if exact >= 10 else 1.0
    return ModelShape.from_numbers(
        parameters=size,
        hidden=hidden,
        layers=step * max(round(exact / step), 1),
        sequence=sequence,
        vocabulary=float(TYPICAL_VOCABULARY),
    )


def _of_numbers(text: str, sequence: int | None) -> Model:
    values: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in _NUMBERS:
            raise WorkloadError(f"model: got {part.strip()!r}; parts are NAME=NUMBER, names {', '.join(_NUMBERS)}")
        try:
            number = count(value) or float(value)
        except ValueError:
            raise WorkloadError(f"model: got {name}={value!r}; it must be a number, or one with K, M, B or T") from None
        if not 0 < number < float("inf"):
            raise WorkloadError(f"model: got {name}={value!r}; it must be above 0")
        values[name] = number
    if sequence is not None:
        values["sequence"] = float(sequence)
    values.setdefault("sequence", float(TYPICAL_SEQUENCE))
    values.setdefault("vocabulary", float(TYPICAL_VOCABULARY))
    shape = ModelShape.from_numbers(**values)
    _check_heads(shape)
    return Model(name="model", shape=shape, notes=(f"shape: {_widths(shape)}",))


def _of_hugging_face(path: Path, sequence: int | None) -> Model:
    found = hugging_face.read(path)
    tokens = sequence or min(found.longest_sequence, USUAL_LONGEST)
    notes: tuple[str, ...] = ()
    if sequence is None and tokens < found.longest_sequence:
        notes = (f"sequence {tokens:,} of {found.longest_sequence:,} that its positions reach (--sequence)",)
    name = path.resolve().name if path.is_dir() else path.stem if path.stem != "config" else path.resolve().parent.name
    return Model(name=name, shape=found.shape(sequence=tokens), notes=notes)


def _of_module(name: str, sequence: int | None) -> Model:
    found = modules.widths(name)
    needed = {"layers": "a stack of equal layers (nn.ModuleList)", "hidden": "a width", "vocabulary": "an nn.Embedding"}
    missing = [what for key, what in needed.items() if not found.get(key)]
    if missing:
        raise WorkloadError(
            f"model: {name} has {found['parameters']:,} parameters, but not {' nor '.join(missing)} that can be told; "
            "the model is one of transformers; give numbers: --model layers=...,hidden=...,vocabulary=..."
        )
    tokens = sequence or found.get("sequence")
    if not tokens:
        raise WorkloadError(f"model: {name} doesn't say how many tokens a sample has; give --sequence")
    tokens = int(tokens) if sequence else min(int(tokens), USUAL_LONGEST)
    given = {key: float(found[key]) for key in ("heads", "kv_heads", "ffn_hidden") if found.get(key)}
    shape = ModelShape.from_numbers(
        parameters=float(found["parameters"]),
        trainable=float(found["trainable"]),
        layers=float(found["layers"]),
        hidden=float(found["hidden"]),
        vocabulary=float(found["vocabulary"]),
        sequence=float(tokens),
        gated=float(bool(found.get("gated"))),
        tied=float(bool(found.get("tied", True))),
        **given,
    )
    derived = [key for key in ("heads", "ffn_hidden") if key not in given]
    notes = [f"read from the module: {_widths(shape)}, vocabulary {found['vocabulary']:,}"]
    if derived:
        notes.append(f"not told by the module, so as in a GPT: {', '.join(derived)}")
    return Model(name=name, shape=shape, notes=tuple(notes))


def _check_heads(shape: ModelShape) -> None:
    hidden, heads = float(np.asarray(shape.hidden)), float(np.asarray(shape.heads))
    if hidden % heads:
        raise WorkloadError(f"model: got hidden={hidden:g} and heads={heads:g}; hidden must be a multiple of heads")


def _widths(shape: ModelShape) -> str:
    layers, hidden, heads = (int(np.asarray(v)) for v in (shape.layers, shape.hidden, shape.heads))
    return f"{layers} {'layer' if layers == 1 else 'layers'}, hidden {hidden:,}, {heads} heads"
