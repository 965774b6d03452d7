"""`autotune lint`: what it prints, what it writes, how it ends."""

import base64
import csv
import io
import json

import pytest

GOOD = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
BAD = """{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 3,
  "gradient_accumulation_steps": 4,
  "zero_optimisation": {"stage": 3, "stage3_prefetch_bucket": 5e7}
}
"""


@pytest.fixture
def files(folder):
    (folder / "good.json").write_text(json.dumps(GOOD))
    (folder / "bad.json").write_text(BAD)
    return folder


def test_a_good_file(cli, files):
    answer = cli("lint", "good.json", "--ranks", "2")
    assert answer.code == 0
    assert answer.out == "good.json\n  accepted\n\n"


def test_each_problem_has_its_line_key_value_rule_and_fix(cli, files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    answer = cli("lint", "bad.json", "--ranks", "4")
    assert answer.code == 1
    assert answer.out == (
        "bad.json\n"
        "    2  error    train_batch_size = 64\n"
        "                micro-batch x accumulation x ranks = 3 x 4 x 4 = 48, not 64\n"
        "                fix: the nearest that hold: 64 = 4 x 4 x 4, 48 = 3 x 4 x 4, 60 =\n"
        "                3 x 5 x 4; or leave one of the three out\n"
        '    5  error    zero_optimisation = {"stage": 3, "stage3_prefetch_bucket"...\n'
        "                DeepSpeed ignores this key: it knows no such one at the top\n"
        "                level\n"
        "                fix: did you mean zero_optimization?  (--fix does it)\n"
        "  refused: 2 errors\n\n"
    )


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(cli, files, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(len(line) for line in cli("lint", "good.json", "bad.json").out.splitlines()) <= width


def test_a_mended_copy(cli, files):
    answer = cli("lint", "bad.json", "--fix")
    assert answer.code == 1
    assert "wrote bad.fixed.json; mended: zero_optimisation, zero_optimization.stage3_prefetch_bucket\n" in answer.out
    assert "left: error train_batch_size" in answer.out
    assert json.loads((files / "bad.fixed.json").read_text())["zero_optimization"] == {
        "stage": 3,
        "stage3_prefetch_bucket_size": 50_000_000,
    }
    assert (files / "bad.json").read_text() == BAD
    quiet = cli("lint", "bad.fixed.json", "--fix")
    assert "nothing that could be mended without guessing" in quiet.out
    assert not (files / "bad.fixed.fixed.json").exists()


def test_what_is_mended_whole_ends_well(cli, files):
    (files / "typo.json").write_text('{"train_batch_size": "8", "zero_optimization": {"stage": 1}}')
    assert cli("lint", "typo.json").code == 1
    answer = cli("lint", "typo.json", "-o", "new/ds.json")
    assert answer.code == 0
    assert "  mended: 1 error\n" in answer.out
    assert json.loads((files / "new" / "ds.json").read_text())["train_batch_size"] == 8


def test_several_files_have_a_total(cli, files):
    answer = cli("lint", "good.json", "bad.json", "nosuch.json")
    assert answer.code == 1
    assert answer.out.endswith("3 files: 1 accepted, 2 refused\n")
    assert "can't read nosuch.json" in answer.out
    assert cli("lint", "good.json", "bad.json", "-o", "x.json").code == 2


def test_base64_is_read(cli, files):
    text = base64.urlsafe_b64encode(BAD.encode()).decode()
    answer = cli("lint", text, "--fix")
    assert answer.out.startswith(f"base64:{text[:12]}...\n")
    assert (files / "ds_config.fixed.json").exists()


def test_json_and_csv(cli, files):
    (good, bad) = json.loads(cli("lint", "good.json", "bad.json", "--format", "json").out)
    assert good == {"file": "good.json", "verdict": "accepted", "unreadable": "", "written": None, "findings": []}
    assert bad["findings"][1] == {
        "line": 5,
        "severity": "error",
        "code": "unknown-key",
        "key": "zero_optimisation",
        "value": {"stage": 3, "stage3_prefetch_bucket": 50_000_000},
        "rule": "DeepSpeed ignores this key: it knows no such one at the top level",
        "fix": "did you mean zero_optimization?",
        "mended": True,
    }
    rows = list(csv.DictReader(io.StringIO(cli("lint", "good.json", "bad.json", "--format", "csv").out)))
    assert [(row["file"], row["key"]) for row in rows[:2]] == [("good.json", ""), ("bad.json", "train_batch_size")]


def test_who_reads_it(cli, files):
    (files / "hf.json").write_text('{"train_batch_size": "auto", "zero_optimization": {"stage": 1}}')
    assert cli("lint", "hf.json", "--for", "hf").code == 0
    assert cli("lint", "hf.json", "--for", "deepspeed").code == 1
    assert cli("lint", "hf.json", "--for", "nobody").code == 2


def test_what_a_terminal_would_obey_is_not_printed(cli, files):
    (files / "odd.json").write_text('{"train_batch_size": 8, "\\u001b[31mx": "\\u001b[0m", "\\u202e": 1}')
    out = cli("lint", "odd.json").out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "\\x1b[31mx" in out


def test_what_holds_of_many_keys_is_said_once(cli, files):
    zero = {"stage": 0, "overlap_comm": True, "reduce_scatter": True, "contiguous_gradients": True}
    foreign = {"train-iters": 1, "seq-length": 2, "hidden-size": 3, "gradient_clipping": "auto"}
    sizes = {"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}
    (files / "many.json").write_text(json.dumps({"zero_optimization": zero, **foreign, **sizes}, indent=1))
    answer = cli("lint", "many.json")
    assert answer.code == 0
    assert answer.out == (
        "many.json\n"
        "    4  warning  3 keys of zero_optimization = true\n"
        "                has no effect: at stage 0 there is no ZeRO\n"
        "                overlap_comm (4), reduce_scatter (5), contiguous_gradients (6)\n"
        "                fix: remove it\n"
        "    8  warning  3 keys\n"
        "                DeepSpeed ignores this key: it knows no such one at the top level\n"
        "                train-iters (8), seq-length (9), hidden-size (10)\n"
        "                fix: remove it\n"
        '   11  note     3 keys = "auto"\n'
        "                Hugging Face's Trainer and accelerate fill it in\n"
        "                gradient_clipping (11), train_batch_size (12), gradient_accumulation_steps (13)\n"
        "  accepted: 6 warnings, 3 notes\n\n"
    )
