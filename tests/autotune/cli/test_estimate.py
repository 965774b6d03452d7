"""`autotune estimate` and `autotune plan`: what they print, write, and end with."""

import csv
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.autotune.planning.test_hugging_face import LLAMA

ROOT = Path(__file__).parents[3]
make_estimate = runpy.run_path(str(ROOT / "docs" / "make_estimate.py"))
ESTIMATE = ("estimate", "--model", "7B", "--hardware", "8 x A100-80GB")
PLAN = ("plan", "--model", "7B", "--tokens", "140B", "--days", "20")
ONE = ("plan", "--model", "175B", "--tokens", "300B", "--hardware", "2048 x A100")


def test_an_estimate(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = cli(*ESTIMATE)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "7B parameters, 2,048 tokens a sample, on 8 x A100-SXM-80GB"
    assert "Memory of a device at the peak, GiB of 79.2" in lines
    assert re.search(r"^0 +none +13\.0 +13\.0 +78\.2 .* no, \d+ short$", said.out, re.MULTILINE)  # 2 P, 2 P, 12 P
    assert re.search(r"^3 +both +– +– +– .* yes, \d+ left$", said.out, re.MULTILINE)  # noqa: RUF001
    assert "Fastest that fits: stage" in said.out
    assert "Its step of" in said.out
    assert "docs/estimate.md" in said.out


@pytest.mark.parametrize("width", [80, 100, 120, 160])
@pytest.mark.parametrize("command", [ESTIMATE, (*ESTIMATE, "--checkpointing", "full"), PLAN, ONE])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(cli, monkeypatch, width, command):
    monkeypatch.setenv("COLUMNS", str(width))
    said = cli(*command)
    assert said.code == 0
    assert max(len(line) for line in said.out.splitlines()) <= width
    assert "…" not in said.out


def test_json_and_csv_have_all_rows_with_units(cli):
    found = json.loads(cli(*ESTIMATE, "--format", "json").out)
    assert found["model"]["parameters"] == 7_000_000_000
    assert found["hardware"] == {
        "device": "A100-SXM-80GB", "devices": 8, "devices_per_node": 8, "network_gbps": 1600.0,
    }  # fmt: skip
    assert found["training"]["precision"] == "bf16"
    assert [(row["stage"], row["offload"]) for row in found["rows"]][:2] == [(0, "none"), (1, "none")]
    rows = list(csv.DictReader(io.StringIO(cli(*ESTIMATE, "--format", "csv").out)))
    assert len(rows) == len(found["rows"]) == 8
    assert rows[0]["fits"] == "false"
    assert float(rows[1]["step_time_s"]) == pytest.approx(found["rows"][1]["step_time_s"])


def test_a_file_marks_its_own_row(cli, folder):
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}))
    said = cli("estimate", "--model", ".", "--hardware", "A100-80GB:16", "--config", "ds.json")
    assert said.code == 0
    assert f"{folder.name}, 6.74B parameters, 4,096 tokens a sample" in said.out
    assert re.search(r"^2\* +none", said.out, re.MULTILINE)
    assert "* your configuration, ds.json" in said.out


@pytest.mark.parametrize("command", [ESTIMATE, PLAN, ONE])
def test_a_page(cli, folder, command):
    said = cli(*command, "-o", "page.html")
    assert said.code == 0
    assert said.out.endswith("\nwritten  page.html\n")
    page = (folder / "page.html").read_text()
    assert "<h1>" in page
    assert not re.search(r'(src|href)="https?://', page.partition("<script")[0])
    (charts,) = re.findall(r'<script id="charts" type="application/json">(.*?)</script>', page) or ["{}"]
    expected = {ESTIMATE: {"memory_parts", "time_parts"}, PLAN: {"offers"}, ONE: set()}[command]
    assert set(json.loads(charts)) == expected
    for name in expected:
        assert f'id="{name}"' in page


def test_nothing_fits(cli):
    said = cli("estimate", "--model", "70B", "--hardware", "A100-80GB")
    assert said.code == 1
    assert "Nothing fits" in said.out
    assert "One optimizer step" not in said.out
    assert cli("plan", "--model", "1T", "--tokens", "20T", "--days", "1", "--hardware", "V100-32GB").code == 1


def test_a_plan(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    said = cli(*PLAN)
    assert said.out.splitlines()[0].startswith("7B parameters, on 140B tokens: 6.3e+21 operations")
    assert re.search(r"^ +\d+\* +\S+ .* ZeRO-\d, batch \d+ x \d+$", said.out, re.MULTILINE)
    records = json.loads(cli(*PLAN, "--format", "json").out)
    assert all(record["days"] <= 20 for record in records)
    assert len(list(csv.DictReader(io.StringIO(cli(*PLAN, "--format", "csv").out)))) == len(records)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("estimate", "--model", "big", "--hardware", "A100"), 2, "got 'big'"),
        (("estimate", "--model", "7B", "--hardware", "V100"), 4, "V100-SXM2-16GB, V100-SXM2/3-32GB; say which"),
        (("estimate", "--model", "7B", "--hardware", "A100:8", "--config", "no.json"), 2, "no.json"),
        (("estimate", "--model", "7B", "--hardware", "A100:8", "--tensor-parallel", "3"), 2, "doesn't divide"),
        (("estimate", "--model", "7B"), 2, "--hardware"),
        (("plan", "--model", "7B", "--tokens", "many"), 2, "tokens: got 'many'"),
        (("plan", "--model", "7B", "--tokens", "1B", "--hardware", "cpu"), 4, "got cpu"),
        (("plan", "--model", "7B", "--tokens", "1B", "--days", "0"), 2, "days: got 0"),
    ],
)
def test_mistakes_are_one_message(cli, arguments, code, words):
    said = cli(*arguments)
    assert said.code == code
    assert words in said.err
    assert "Traceback" not in said.err


def test_torch_stays_out_of_the_command():
    program = (
        "import sys; sys.argv = ['autotune', *sys.argv[1:]]\nfrom autotune.cli import main\n"
        "try: main()\nfinally: sys.stderr.write(str('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program, *ESTIMATE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == "False"


@pytest.mark.real
def test_a_workload_on_this_machine(cli, folder):
    said = cli("estimate", "--model", "byte-gpt", "--hardware", "cpu:1", "--micro-batch", "4", "--format", "json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["model"]["parameters"] == 867_072
    assert found["training"]["precision"] == "fp32"
    assert all(0 < row["step_time_s"] < 60 for row in found["rows"])


def test_the_page_on_estimates_shows_what_the_commands_say():
    """Where coefficients change: `python docs/make_estimate.py`."""
    blocks = make_estimate["BLOCK"].findall((ROOT / "docs" / "estimate.md").read_text(encoding="utf-8"))
    assert len(blocks) == 5
    for command, said in blocks:
        if "cpu" not in command:
            assert said.strip() == make_estimate["answer"](command).strip(), command
