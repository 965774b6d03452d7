"""Command templates: placeholders, their starts, and the command that a trial gets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.command import CommandTemplate, as_argument, words_of
from autotune.errors import CampaignError

RATE = "optimizer.params.lr"


def test_placeholders_and_their_starts():
    words = ("t.py", "--lr={optimizer.params.lr=1e-3}", "--bf16", "{bf16.enabled=True}", "{config}", "{name=adam}")
    template = CommandTemplate(words)
    assert template.names == {RATE, "bf16.enabled", "config", "name"}
    assert template.starts == {RATE: 1e-3, "bf16.enabled": True, "name": "adam"}
    assert [placeholder.name for placeholder in template.placeholders] == [RATE, "bf16.enabled", "config", "name"]


def test_a_placeholder_may_stand_twice_with_one_start():
    template = CommandTemplate(("a", "{micro}", "{micro=4}"))
    assert template.starts == {"micro": 4}
    with pytest.raises(CampaignError, match=r"\{micro\} starts at 4 in one place and at 8 in another"):
        CommandTemplate(("a", "{micro=4}", "{micro=8}"))


@pytest.mark.parametrize("words", [(), ("",), (" ", "x")])
def test_an_empty_command_is_refused(words):
    with pytest.raises(CampaignError, match="it is empty"):
        CommandTemplate(words)


def test_a_placeholder_without_a_value_names_the_nearest():
    with pytest.raises(CampaignError, match=r"\{confg\} is no placeholder here; did you mean \{config\}\?"):
        CommandTemplate(("a", "{confg}")).render({"config": "x", "seed": 1})
    with pytest.raises(CampaignError, match="there are config, seed"):
        CommandTemplate(("a", "{zzz}")).render({"config": "x", "seed": 1})


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (3, "3"), (3.0, "3"), (5e8, "500000000"), (1e-5, "1e-05"), ("bf16", "bf16")],
)
def test_a_value_as_an_argument(value, text):
    assert as_argument(value) == text


def test_a_text_is_split_as_a_shell_does():
    assert words_of("python 'my script.py' --x \"a b\"") == ("python", "my script.py", "--x", "a b")
    assert words_of(["python", "my script.py"]) == ("python", "my script.py")
    with pytest.raises(CampaignError, match="can't be split into words"):
        words_of("python 'train.py")


_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,20}", fullmatch=True)
_STARTS = st.one_of(
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer()),
    st.from_regex(r"[a-z_/.-]{1,12}", fullmatch=True).filter(
        lambda text: text.strip("-+.") not in ("true", "false", "nan", "inf", "infinity")
    ),
)


@given(starts=st.dictionaries(_NAMES, _STARTS, max_size=5), names=st.lists(_NAMES, max_size=3))
def test_a_template_rendered_with_its_starts_says_them(starts, names):
    placeholders = [f"--x={{{name}={as_argument(value)}}}" for name, value in starts.items()]
    template = CommandTemplate(("train.py", *placeholders, *(f"{{{{{name}}}}}" for name in names)))
    assert template.starts == starts
    said = [f"--x={as_argument(value)}" for value in starts.values()]
    assert template.render(template.starts) == ("train.py", *said, *(f"{{{name}}}" for name in names))


@given(st.recursive(st.integers() | st.text(max_size=5), lambda inner: st.dictionaries(st.text(max_size=5), inner)))
def test_json_in_an_argument_comes_out_as_it_went_in(value):
    words = ("t.py", json.dumps(value))
    assert CommandTemplate(words).render({}) == words
