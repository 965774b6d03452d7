"""docs/performance_model.md against the validation. Where they differ: `python docs/make_performance_model.py`."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "performance_model.md").read_text(encoding="utf-8")
PICTURES = re.findall(r"!\[[^\]]+\]\((pictures/[^)]+)\)", PAGE)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
MOST_BYTES = 150_000
make = runpy.run_path(str(DOCS / "make_performance_model.py"))


def differ(one, other, *, by):
    """Whether words differ, or figures do by more than other processors' roundings explain."""
    figures = [[float(number) for number in NUMBER.findall(text)] for text in (one, other)]
    return NUMBER.sub("#", one) != NUMBER.sub("#", other) or figures[0] != pytest.approx(figures[1], abs=by)


def drawn(name):
    return (DOCS / "pictures" / name).read_text(encoding="utf-8")


def test_the_headline_figures_are_those_of_the_shipped_coefficients(published):
    assert make["with_tables"](PAGE, make["light_tables"](published)) == PAGE


def test_a_figure_that_is_no_longer_true_is_found(published):
    lines = make["light_tables"](published)["shipped"]()
    (figure,) = re.findall(r"unweighted mean over \d+ sources \| 10 % \| (\d+\.\d %)", "\n".join(lines))
    wrong = PAGE.replace(figure, "3.1 %")
    assert make["with_tables"](wrong, make["light_tables"](published)) != wrong


def test_the_counts_in_its_sentences(published):
    words = " ".join(PAGE.split())
    told = make["report"].verdicts(published, make["Coefficients"].prior())
    assert f"Of the runs {len(published.timed):,} have a step time" in words
    assert f"{told.failed} ran out of memory, and {len(published.left)} stay out" in words
    assert f"of {len(told.wrong)} wrong verdicts" in words


def test_every_picture_is_there_and_told_of():
    assert sorted(f"pictures/{file.name}" for file in (DOCS / "pictures").iterdir()) == sorted(PICTURES)
    for name in PICTURES:
        file = DOCS / name
        assert file.stat().st_size < MOST_BYTES
        assert ET.fromstring(file.read_text(encoding="utf-8"))[0].text, "a title for who can't see it"


def test_the_pictures_that_take_no_fit_are_up_to_date(published):
    for name in ("predicted_against_measured", "memory_margin"):
        assert not differ(drawn(f"{name}.svg"), make[name](published), by=0.2), name
    assert drawn("speed.svg") == make["speed"](PAGE)


def test_every_run_is_a_mark_in_the_first_picture(published):
    picture = drawn("predicted_against_measured.svg")
    in_the_legend = len(make["FAMILIES"]) + 1
    assert picture.count("h0") + picture.count("l6 6m0-6l-6 6") == len(published.timed) + in_the_legend


def test_its_explained_rows_are_what_the_command_says():
    blocks = [block for block in make["BLOCK"].findall(PAGE) if "--rows" in block[0]]
    assert blocks
    for command, said in blocks:
        assert said.strip() == make["answer"](command).strip()


@pytest.mark.slow
def test_what_takes_a_fit_is_up_to_date(published, findings):
    made = make["with_tables"](PAGE, make["fitted_tables"](findings))
    assert not differ(PAGE, made, by=0.15)
    assert not differ(drawn("error_by_source.svg"), make["error_by_source"](published, findings), by=2)
