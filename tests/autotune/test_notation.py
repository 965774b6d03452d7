"""Notation: numbers, keys and their order come out of a configuration as they went in."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune import campaign as campaigns
from autotune import ds_config
from autotune.campaign import files as campaign_files
from autotune.ds_config import notation
from autotune.errors import ConfigError

SAMPLES = (
    '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "sub_group_size": 1E+14}}',
    '{"optimizer": {"params": {"betas": [0.9, 0.950], "eps": 1.0e-8, "lr": 1e-5}}, "gradient_clipping": 1.0}',
    '{"fp16": {"loss_scale": 0, "min_loss_scale": -0, "loss_scale_window": 1e3}, "steps_per_print": 1e100}',
    '{"scheduler": {"params": {"total": [[5e8, 1], {"a": 2.50}]}}, "a/b": {"~": 1e1}, "a.b": 1e0, "": {"": 2e0}}',
)
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?([eE][-+]?[0-9]{1,2})?", fullmatch=True)
_NUMBER = re.compile(r'("(?:[^"\\]|\\.)*")|(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)')


class Literal(str):
    """A number's text, in a document."""

    __slots__ = ()


def as_text(value) -> str:
    if isinstance(value, Literal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {as_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_text, value)) + "]"
    return json.dumps(value)


def written(text):
    """The number literals of a JSON text, in order."""
    return [number for _, number in _NUMBER.findall(text) if number]


documents = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        NUMBERS.map(Literal) | st.booleans() | st.none() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
).map(as_text)


@given(documents | st.sampled_from(SAMPLES))
def test_reading_and_writing_changes_neither_values_nor_notation_nor_order(text):
    config = ds_config.parse(text, source="a text")
    again = ds_config.render(config, ds_config.notation_of(text))
    assert json.dumps(json.loads(again)) == json.dumps(json.loads(text))
    assert written(again) == written(text)


def test_only_what_python_writes_otherwise_is_noted():
    assert ds_config.notation_of(SAMPLES[1]) == {
        "/optimizer/params/betas/1": "0.950",
        "/optimizer/params/eps": "1.0e-8",
        "/optimizer/params/lr": "1e-5",
        "/gradient_clipping": "1.0",
    }


def test_a_changed_value_is_written_plainly():
    noted = ds_config.notation_of(SAMPLES[0])
    config = {"zero_optimization": {"reduce_bucket_size": 200_000_000, "sub_group_size": 10**14}}
    assert written(ds_config.render(config, noted)) == ["200000000", "1E+14"]
    assert written(ds_config.render(config, notation.without(noted, {"zero_optimization.sub_group_size"}))) == [
        "200000000",
        "100000000000000",
    ]
    truth = {"zero_optimization": {"sub_group_size": True}}
    assert "true" in ds_config.render(truth, {"/zero_optimization/sub_group_size": "1.0"})


@pytest.mark.parametrize("text", ["{a: 5e8 # a comment\n b: 1.50}", "// a comment\n{a: 5e8, b: 1.50}"])
def test_hjson_has_the_same_numbers(text):
    assert ds_config.notation_of(text) == {"/a": "5e8", "/b": "1.50"}


@pytest.mark.parametrize("text", ["{a: 1e400", "{{{", "/*", '{"a": ' + "9" * 5000 + "}", '{"a": .5}'])
def test_what_has_no_notation_has_none(text):
    assert ds_config.notation_of(text) == {}


def test_yaml_numbers_that_json_does_not_have_are_written_plainly():
    node = yaml.compose("{a: 5e8, b: [1_000, 0x10, +5, .5, 1.50], c: '5e8'}", campaign_files._Loader)
    assert ds_config.notation_of_yaml(node) == {"/a": "5e8", "/b/4": "1.50"}
    assert ds_config.notation_of_yaml(None) == {}


def test_new_keys_come_after_the_users():
    config = {"new": 1, "zero": {"b": 1, "new": 2, "a": 3}, "first": 4}
    template = {"first": 0, "gone": 0, "zero": {"a": 0, "b": 0}}
    assert (
        json.dumps(notation.ordered_like(config, template))
        == '{"first": 4, "zero": {"a": 3, "b": 1, "new": 2}, "new": 1}'
    )


def test_a_long_list_takes_a_line_for_each():
    assert ds_config.render({"a": [1, 2]}) == '{\n  "a": [1, 2]\n}\n'
    assert ds_config.render({"a": ["x" * 80, "y" * 80]}).count("\n") == 6


class TestCampaign:
    """What a campaign keeps of it."""

    def test_of_the_configurations_file(self, tmp_path):
        (tmp_path / "mine.json").write_text("\ufeff" + SAMPLES[0], encoding="utf-8")
        (tmp_path / "c.yaml").write_text("ds_config: mine.json\n")
        assert campaigns.load(tmp_path / "c.yaml").ds_config_notation == {
            "/zero_optimization/reduce_bucket_size": "5e8",
            "/zero_optimization/sub_group_size": "1E+14",
        }

    def test_of_a_configuration_in_the_campaign(self, tmp_path):
        (tmp_path / "c.yaml").write_text("ds_config:\n  zero_optimization: {reduce_bucket_size: 5e8}\n")
        campaign = campaigns.load(tmp_path / "c.yaml", ["ds_config.zero_optimization.stage=2"])
        assert campaign.ds_config == {"zero_optimization": {"reduce_bucket_size": 5e8, "stage": 2}}
        assert campaign.ds_config_notation == {"/zero_optimization/reduce_bucket_size": "5e8"}

    def test_a_campaign_from_before_has_none(self):
        kept = campaigns.parse({"name": "old", "ds_config": {}}, where="test").model_dump(mode="json")
        del kept["ds_config_notation"]
        assert campaigns.parse(kept, where="test").ds_config_notation == {}

    def test_a_file_that_cannot_be_read_is_still_refused_in_words(self, tmp_path):
        (tmp_path / "c.yaml").write_text("ds_config: missing.json\n")
        with pytest.raises(ConfigError, match="can't read"):
            campaigns.load(tmp_path / "c.yaml")
