"""The report as a page and as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import plotly.graph_objects
import pytest

from autotune import report
from autotune.errors import StudyError
from autotune.report import charts, page, tables
from autotune.trials import FailureKind, TrialState

HOSTILE = '<script>alert("x")</script> </script><img src=x onerror=alert(1)> {{ 7*7 }} | `a` & "quoted" ' + "y" * 5000


class Elements(HTMLParser):
    """Notes the elements of a page, and what they would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loads, self.handlers, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href") and value != "data:,"]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "link", "br", "wbr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a report without plotly's own four megabytes, and return its text."""
    monkeypatch.setattr(page, "_plotly_js", lambda: "")

    def write(summary, validation=None):
        path = tmp_path / "report.html"
        report.write_html(summary, path, validation)
        return path.read_text(encoding="utf-8")

    return write


def figures_of(text):
    found = re.search(r'<script id="charts" type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1]) if found else {}


@pytest.fixture
def variants(summary, altered, as_failed, remeasured):
    """Summaries that a report must be able to show."""

    def unlearnt(trial):
        changed = remeasured(trial, held_out_loss_after=9.0)
        return replace(changed, convergence_ratio=None)

    def timed(trial):
        changed = remeasured(trial, forward_s=0.1, backward_s=0.2, communication_s=0.05, tokens_per_second=1e5)
        return replace(changed, outcome=replace(changed.outcome, stage_s={"launch": 2.0, "run": 10.0, "cleanup": 0.1}))

    running = replace(summary.trials[-1], state=TrialState.RUNNING, outcome=None, score=None, finished_at=None)
    return {
        "whole": summary,
        "none": replace(summary, trials=()),
        "one": replace(summary, trials=summary.trials[:1]),
        "two": replace(summary, trials=summary.trials[:2]),
        "running": replace(summary, trials=(*summary.trials[:-1], running), is_running=True),
        "failed": altered(as_failed),
        "baseline failed": altered(lambda t: as_failed(t) if t.is_baseline else t),
        "unlearnt": altered(unlearnt),
        "timed": altered(timed),
        "equal": altered(lambda t: replace(t, score=t.score and 1.0)),
        "no times": altered(lambda t: replace(t, started_at=None, finished_at=None)),
        "outside the space": altered(lambda t: replace(t, point={}) if t.is_baseline else t),
        "hostile": replace(
            altered(lambda t: as_failed(t, HOSTILE, FailureKind.CRASH) if t.number % 3 == 1 else t),
            name=HOSTILE,
            workload=HOSTILE,
            searcher=HOSTILE,
            hardware=replace(summary.hardware, device_name=HOSTILE),
        ),
    }


VARIANTS = (
    "whole",
    "none",
    "one",
    "two",
    "running",
    "failed",
    "baseline failed",
    "unlearnt",
    "timed",
    "equal",
    "no times",
    "outside the space",
    "hostile",
)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_page_is_whole_and_loads_nothing(name, variants, written):
    elements = Elements(text := written(variants[name]))
    assert elements.open == []
    assert elements.loads == []
    assert elements.handlers == []
    assert elements.tags.count("script") == (3 if figures_of(text) else 1)
    assert "img" not in elements.tags
    assert "49" not in re.findall(r"<h1>.*</h1>", text)
    for chart in figures_of(text):
        assert f'id="{chart}"' in text


@pytest.mark.parametrize("name", VARIANTS)
def test_charts_are_figures_that_plotly_knows(name, variants, written):
    for figure in figures_of(written(variants[name])).values():
        plotly.graph_objects.Figure(figure)


@pytest.mark.parametrize("name", VARIANTS)
def test_markdown_tables_are_well_formed(name, variants):
    text = report.to_markdown(variants[name])
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert blocks
    for block in blocks:
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in block}
        assert len(bars) == 1, block[0]
    assert "<script" not in text.replace("\\<script", "")


def test_a_page_and_a_text_say_the_same(summary, written):
    text, markdown = written(summary), report.to_markdown(summary)
    for words in (report.headline(summary), "simulated (made-up figures)", next(iter(tables.failures(summary)))):
        assert words in text
        assert words in markdown
    assert text.count("<tr") > len(summary.trials)


def test_the_validation_is_shown(summary, written):
    class Ratio:
        name, claimed, words = "R", 1.5, "1.32x (1.21x to 1.44x)"

    class Validation:
        headline, ratios, notes = "The gain holds.", [Ratio], ["A note <of> it."]

    assert "1.32x (1.21x to 1.44x)" in written(summary, Validation)
    assert "A note &lt;of&gt; it." in written(summary, Validation)
    assert "1.32x (1.21x to 1.44x)" in report.to_markdown(summary, Validation)


def test_plotly_is_in_the_page(summary, tmp_path):
    report.write_html(summary, tmp_path / "deep" / "report.html")
    text = (tmp_path / "deep" / "report.html").read_text(encoding="utf-8")
    assert len(text) > 3_000_000
    assert "Plotly.react" in text


def test_a_path_that_cannot_be_written_is_refused(summary, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="choose another path"):
        report.write_html(summary, tmp_path / "file" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StudyError, match="choose another path"):
        report.write_html(summary, tmp_path / "folder")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]


def test_the_best_so_far_never_falls(summary):
    line = next(trace for trace in charts.progress(summary)["data"] if trace["name"] == "best so far")
    assert line["y"] == sorted(line["y"])
    assert line["y"][-1] == summary.best.score


def test_changes_tell_what_has_no_effect_and_what_is_not_set(summary):
    best = next(t for t in summary.completed if t.point.get("zero_optimization.stage") == 3)
    found = {change.name: change for change in report.changed(summary.baseline, best, summary.space)}
    assert found["zero_optimization.stage"].before == "0"
    assert found["zero_optimization.stage"].after == "3"
    assert found["zero_optimization.reduce_bucket_size"].before == "no effect"
    assert not any(name.startswith(("fp16.", "bf16.")) for name in found)
    assert report.changed(best, best, summary.space) == []
