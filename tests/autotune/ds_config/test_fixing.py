"""Files mutated at random: nothing but a refusal in words comes out, and mending keeps its promises."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autotune import ds_config
from autotune.ds_config import Severity, Target, document, fixing, lint, linting
from autotune.errors import ConfigError

FILES = sorted((Path(__file__).parents[2] / "data" / "ds_configs").glob("*.[jy]*"))
VALUES = [
    "null",
    '"auto"',
    '"16"',
    '"1e9"',
    "true",
    "0",
    "-1",
    "1e400",
    "[1, 2]",
    "{}",
    '"<N>"',
    "NaN",
    ".inf",
    '"cpu"',
]
KEYS = ["stage", "train_batch_size", "bf16", "enabled", "offload_param", "type", "params", "cpu_offload", "a b ", "lr"]
mutations = st.lists(
    st.one_of(
        st.tuples(st.just("delete"), st.integers(0, 3000), st.integers(1, 30)),
        st.tuples(st.just("insert"), st.integers(0, 3000), st.binary(min_size=1, max_size=6)),
        st.tuples(
            st.just("insert"), st.integers(0, 3000), st.sampled_from([b'"', b"}", b"{", b",", b"\n", b"//", b"'"])
        ),
        st.tuples(st.just("swap"), st.integers(0, 3000), st.integers(0, 3000)),
        st.tuples(st.just("cut"), st.integers(0, 3000), st.none()),
        st.tuples(st.just("value"), st.integers(0, 60), st.sampled_from(VALUES)),
        st.tuples(st.just("key"), st.integers(0, 60), st.sampled_from(KEYS)),
    ),
    max_size=4,
)


def mutated(raw, changes):
    for kind, place, more in changes:
        at = place % (len(raw) + 1)
        if kind == "delete":
            raw = raw[:at] + raw[at + more :]
        elif kind == "insert":
            raw = raw[:at] + more + raw[at:]
        elif kind == "swap" and raw:
            one, other = sorted((place % len(raw), more % len(raw)))
            swapped = bytearray(raw)
            swapped[one], swapped[other] = raw[other], raw[one]
            raw = bytes(swapped)
        elif kind == "cut":
            raw = raw[:at]
        elif kind in ("value", "key"):
            raw = replaced(raw, place, more.encode(), after=kind == "value")
    return raw


def replaced(raw, line_number, new, *, after):
    """A line with another value, or another key."""
    lines = raw.split(b"\n")
    line = lines[line_number % len(lines)]
    head, colon, rest = line.partition(b":")
    if colon:
        comma = b"," if rest.rstrip().endswith(b",") else b""
        lines[line_number % len(lines)] = head + b": " + new + comma if after else b'"' + new + b'":' + rest
    return b"\n".join(lines)


def leaves(value, path=()):
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, json.dumps(value, sort_keys=True)


def check_laws(path, target, ranks):
    report = lint(str(path), target=target, ranks=ranks)
    for finding in report.findings:
        assert finding.rule
        assert finding.fix
        assert finding.line >= 1
    with contextlib.suppress(ConfigError):
        assert isinstance(ds_config.read(path), dict)
    if report.after is None:
        return
    before = dict(leaves(document.load(str(path)).data))
    after = dict(leaves(report.after.data))
    touched = [step.path for finding in report.mended for step in finding.mend if hasattr(step, "path")]
    renamed = [(*step.path[:-1], step.name) for f in report.mended for step in f.mend if hasattr(step, "name")]
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            assert any(key[: len(one)] == one or one[: len(key)] == key for one in (*touched, *renamed)), key
    copy = fixing.default_path(report.after).with_name("copy" + fixing.default_path(report.after).suffix)
    fixing.write(report.after, copy)
    again = lint(str(copy), target=target, ranks=ranks)
    assert not again.unreadable
    assert dict(document.load(str(copy)).data) == dict(report.after.data)
    assert [finding for finding in again.findings if finding.is_mended] == []
    assert again.after is None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(FILES[0], [("insert", 0, b"\xef\xbb\xbf")], None, None)
@example(FILES[-1].with_name("huggingface__trl__deepspeed_zero3.yaml"), [("cut", 20, None)], None, None)
@example(FILES[0], [("insert", 0, b"\xff\xfe")], None, None)
@example(FILES[0], [("insert", 2, b'"\\ud800": 1, ')], None, None)
@given(
    st.sampled_from(FILES),
    mutations,
    st.sampled_from([None, *Target]),
    st.sampled_from([None, 1, 6]),
)
def test_mutated_files_are_accepted_or_refused_in_words(tmp_path, file, changes, target, ranks):
    path = tmp_path / file.name
    path.write_bytes(mutated(file.read_bytes(), changes))
    check_laws(path, target, ranks)


NAMES = """zero_optimization stage train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps optimizer
scheduler type params lr max_grad_norm fp16 bf16 bfloat16 enabled loss_scale offload_optimizer offload_param device
ratio cpu_offload gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save zero_optimisation
amp deepspeed_config zero_stage mixed_precision autotuning"""
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(), st.sampled_from(["auto", "16", "true", "x", "cpu"])
)
blocks = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["zero_optimization", "fp16", "bf16", "optimizer", "train_batch_size"]), blocks))
def test_blocks_at_random_are_accepted_or_refused_in_words(tmp_path, config):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config))
    check_laws(path, None, 2)


def test_what_is_not_reported_stays(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(
        """{
  // from the cluster
  "train_batch_size": "16",
  "train_micro_batch_size_per_gpu": 4
  "zero_optimisation": {"stage": 2, "cpu_offload": true, "reduce_bucket_size": 5e8},
  "note": {"kept": [1, 2.5, "auto"]}
}"""
    )
    report = lint(str(path))
    assert report.verdict is ds_config.Verdict.MENDED
    assert json.loads(fixing.text_of(report.after)) == {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 500_000_000, "offload_optimizer": {"device": "cpu"}},
        "note": {"kept": [1, 2.5, "auto"]},
    }
    assert [finding.key for finding in report.mended] == [
        "",
        "train_batch_size",
        "zero_optimisation",
        "zero_optimization.cpu_offload",
    ]
    assert {finding.severity for finding in report.left} == {Severity.WARNING, Severity.NOTE}


def test_two_values_of_one_key_are_not_chosen_between(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text('{"train_batch_size": "16", "train_batch_size": 8}')
    report = lint(str(path))
    assert report.verdict is ds_config.Verdict.REFUSED
    assert report.after is None
    path.write_text('{"train_batch_size": 8,\n"train_batch_size": 8}')
    assert lint(str(path)).verdict is ds_config.Verdict.MENDED


def test_accelerates_file_stays_yaml(tmp_path):
    path = tmp_path / "zero3.yaml"
    path.write_text("distributed_type: DEEPSPEED\nmixed_precision: no\ndeepspeed_config:\n  zero_stage: '3'\n")
    report = lint(str(path))
    assert report.verdict is ds_config.Verdict.MENDED
    assert fixing.default_path(report.after) == tmp_path / "zero3.fixed.yaml"
    assert fixing.text_of(report.after).splitlines()[1:] == [
        "mixed_precision: 'no'",
        "deepspeed_config:",
        "  zero_stage: 3",
    ]


def test_a_copy_that_cannot_be_written_is_refused(tmp_path):
    found = document.of_text("{a: 1}", source="a text")
    assert linting.check(found).verdict is ds_config.Verdict.REFUSED
    with pytest.raises(ConfigError, match="can't write"):
        fixing.write(found, tmp_path)
