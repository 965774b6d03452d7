"""Reading: every form of a configuration, the lines of its keys, and refusals in words."""

import base64
import json
import logging

import hjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import ds_config
from autotune.ds_config import document, hjson_text, yaml_text
from autotune.ds_config.document import Form
from autotune.errors import ConfigError

ACCELERATE = """\
distributed_type: DEEPSPEED
mixed_precision: bf16
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: nvme
  offload_optimizer_nvme_path: /nvme
  gradient_accumulation_steps: 4
"""


def test_lines_of_keys():
    found = document.of_text('{\r\n\t"a": 1,\r\n\r\n\t"b": {"c": [1,\r\n{"d": 2}],\r\n "e": 3}}', source="a text")
    assert found.data == {"a": 1, "b": {"c": [1, {"d": 2}], "e": 3}}
    assert [
        found.line(path) for path in (("a",), ("b",), ("b", "c"), ("b", "c", 1), ("b", "c", 1, "d"), ("b", "e"))
    ] == [
        2,
        4,
        4,
        5,
        5,
        6,
    ]
    assert found.line(("b", "nowhere")) == 4
    assert found.line(("nowhere",)) == 1


@pytest.mark.parametrize(
    ("text", "form", "why", "line"),
    [
        ('{"a": 1}', Form.JSON, "", 1),
        ('\ufeff{"a": 1}', Form.HJSON, "byte order mark", 1),
        ('{\n"a": 1 // one\n}', Form.HJSON, "expecting ',' delimiter", 2),
        ("a: 1", Form.HJSON, "expecting value", 1),
        ('{"a": NaN\n}', Form.HJSON, "NaN is no number", 1),
    ],
)
def test_what_is_not_strict_json(text, form, why, line):
    found = document.of_text(text, source="a text")
    assert found.form is form
    assert why in found.not_json
    assert found.not_json_line == line


json_texts = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
).map(json.dumps)


@given(json_texts | st.text("{}[]:,\"truefalsn0123456789.eE+-/* \n#'", max_size=40))
def test_it_reads_what_hjson_reads(text):
    try:
        expected = hjson.loads(text, object_pairs_hook=dict)
    except (ValueError, RecursionError, IndexError, OverflowError):
        with pytest.raises(ConfigError):
            hjson_text.parse(text, source="a text")
        return
    parsed = hjson_text.parse(text, source="a text")
    if not parsed.duplicates:
        assert parsed.data == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{\n{", "line 2, column 1"),
        ("[" * 100_000, "neither JSON nor hjson"),
        ('{"a": "' + "x" * 1_000_000 + '"}', "that is no DeepSpeed configuration"),
        ('{"a": [1,', "closing"),
        ('{"\\ud800": 1}', "half a character"),
        ("{} {}", "Extra data"),
    ],
)
def test_what_can_not_be_read_is_refused(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        document.of_text(text, source="a text")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "not valid YAML"),
        ("a: 2024-01-01", "line 1: 2024-01-01 is a date; put it into quotes"),
        ("a: &a [*a]", "not valid YAML"),
        (
            "a: &a [x, x]\nb: &b [*a, *a]\n"
            + "".join(f"{n}: &{n} [*{m}, *{m}]\n" for m, n in zip("bcdefghijklm", "cdefghijklmn", strict=True)),
            "10,000",
        ),
        ("- 1", "holds a list"),
    ],
)
def test_yaml_that_can_not_be_used_is_refused(tmp_path, text, complaint):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        document.load(str(tmp_path / "a.yaml"))


def test_lines_of_yaml():
    parsed = yaml_text.parse("a: 1\nb:\n  c: [1, 2]\n  c: 3\n1: x\n", source="a text")
    assert parsed.data == {"a": 1, "b": {"c": [1, 2]}, "1": "x"}
    assert parsed.lines[("b", "c")] == 3
    assert parsed.duplicates == (hjson_text.Duplicate(path=("b", "c"), line=4, first=[1, 2], again=3),)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_as_deepspeed_takes_it(tmp_path, encode):
    text = encode(b'{"train_batch_size": 8, "note": "???"}').decode()
    if "/" not in text:
        found = document.load(text)
        assert (found.form, found.is_argument, dict(found.data)["train_batch_size"]) == (Form.BASE64, True, 8)
    (tmp_path / "argument.txt").write_text(text + "\n")
    assert document.load(str(tmp_path / "argument.txt")).data == {"train_batch_size": 8, "note": "???"}


@pytest.mark.parametrize("argument", ["nosuch.json", "x" * 5000, "a\0b", "aGVsbG8gd29ybGQhIQ=="])
def test_an_argument_that_is_neither_is_refused(argument):
    with pytest.raises(ConfigError, match="can't read"):
        document.load(argument)


@pytest.mark.parametrize(("raw", "complaint"), [(b"\xff\xfe{\0", "UTF-16"), (b"{\x80}", "UTF-8")])
def test_other_encodings_are_refused_with_what_to_do(tmp_path, raw, complaint):
    (tmp_path / "ds.json").write_bytes(raw)
    with pytest.raises(ConfigError, match=complaint):
        document.load(str(tmp_path / "ds.json"))


def test_a_campaign_reads_quoted_numbers_as_numbers(tmp_path, caplog):
    (tmp_path / "ds.json").write_text('{"train_batch_size": "16", "fp16": {"enabled": "False"}, "note": "16"}')
    with caplog.at_level(logging.WARNING):
        read = ds_config.read(tmp_path / "ds.json")
    assert read == {"train_batch_size": 16, "fp16": {"enabled": False}, "note": "16"}
    assert "train_batch_size: '16' is a text" in caplog.text


def test_a_campaign_takes_a_key_that_stands_twice_with_one_value(tmp_path, caplog):
    (tmp_path / "ds.json").write_text('{"train_batch_size": 16, "train_batch_size": 16}')
    assert ds_config.read(tmp_path / "ds.json") == {"train_batch_size": 16}
    assert "stands twice" in caplog.text


def test_a_campaign_reads_accelerates_configuration(tmp_path):
    (tmp_path / "zero3.yaml").write_text(ACCELERATE)
    assert ds_config.read(tmp_path / "zero3.yaml") == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 4,
        "gradient_clipping": "auto",
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"},
            "offload_param": {"device": "none"},
            "stage3_gather_16bit_weights_on_model_save": False,
        },
        "bf16": {"enabled": True},
    }


def test_a_campaign_follows_accelerates_file(tmp_path):
    (tmp_path / "config.yaml").write_text("deepspeed_config: {deepspeed_config_file: ds.json}\n")
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    assert ds_config.read(tmp_path / "config.yaml") == {"train_batch_size": 8}
    (tmp_path / "config.yaml").write_text("deepspeed_config: {deepspeed_config_file: config.yaml}\n")
    with pytest.raises(ConfigError, match="DeepSpeed's JSON file"):
        ds_config.read(tmp_path / "config.yaml")


def test_a_campaign_refuses_what_json_can_not_hold(tmp_path):
    (tmp_path / "ds.yaml").write_text("gradient_clipping: .inf\n")
    with pytest.raises(ConfigError, match="gradient_clipping: inf is no number"):
        ds_config.read(tmp_path / "ds.yaml")
