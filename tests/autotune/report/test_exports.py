"""Exports."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from autotune import ds_config, report
from autotune.errors import ConfigError, StudyError
from autotune.report.exports import DEFAULT_NAME, ZERO3_NAME


def test_the_best_as_it_was_measured(summary, tmp_path):
    exported = report.export(summary, tmp_path / "tuned" / "best.json")
    assert exported.config_path == tmp_path / "tuned" / "best.json"
    assert exported.provenance_path == tmp_path / "tuned" / "best.provenance.json"
    config = json.loads(exported.config_path.read_text())
    assert "train_batch_size" not in config, "the user's file has none"
    assert ds_config.complete(config, world_size=2) == summary.best.ds_config
    assert config["steps"] == 7, "keys that are not searched stay"
    assert isinstance(config["gradient_accumulation_steps"], int)
    origin = json.loads(exported.provenance_path.read_text())
    assert origin["study"] == "sim"
    assert origin["trial"] == summary.best.number
    assert origin["evaluator"] == "simulated"
    assert origin["objective"]["R"] == summary.best.score
    assert origin["objective"]["relative_to_trial"] == 0
    assert origin["figures"]["samples_per_second"] == summary.best.measurement.samples_per_second
    assert origin["baseline"]["samples_per_second"] == summary.baseline.measurement.samples_per_second
    assert origin["script_side"] == {"activation_checkpointing": summary.best.activation_checkpointing}
    assert origin["hardware"]["ranks"] == 2
    assert origin["notes"] == list(exported.notes)
    assert not [path for path in exported.config_path.parent.iterdir() if path.suffix != ".json"]


def test_names_by_stage(summary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_stage = {
        stage: next(t for t in summary.completed if t.point.get("zero_optimization.stage") == stage) for stage in (1, 3)
    }
    assert report.export(summary, None, trial_number=with_stage[1].number).config_path.name == DEFAULT_NAME
    assert report.export(summary, tmp_path, trial_number=with_stage[3].number).config_path == tmp_path / ZERO3_NAME
    assert (tmp_path / "ds_config_zero3.provenance.json").exists()


def test_a_file_that_no_export_wrote_is_not_overwritten(summary, tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="no export wrote it"):
        report.export(summary, path)
    assert path.read_text() == "{}"
    report.export(summary, tmp_path / "best.json")
    report.export(summary, tmp_path / "best.json", trial_number=0)
    assert json.loads((tmp_path / "best.provenance.json").read_text())["trial"] == 0


def test_the_baseline_says_that_it_is_one(summary, tmp_path):
    notes = report.export(summary, tmp_path / "a.json", trial_number=0).notes
    assert any("your own starting configuration" in note for note in notes)
    assert any("simulated" in note for note in notes)


def test_activation_checkpointing_is_told_of(summary, altered, tmp_path):
    number = next(t.number for t in summary.completed if t.activation_checkpointing)
    notes = report.export(summary, tmp_path / "a.json", trial_number=number).notes
    assert any("`gradient_checkpointing: true`" in note for note in notes)
    on_before = altered(lambda trial: replace(trial, activation_checkpointing=trial.is_baseline))
    other = next(t.number for t in summary.completed if not t.is_baseline)
    notes = report.export(on_before, tmp_path / "b.json", trial_number=other).notes
    assert any("`gradient_checkpointing: false`" in note for note in notes)


def test_a_missing_optimizer_is_told_of(altered, tmp_path):
    def without(trial):
        config = copy.deepcopy(dict(trial.ds_config))
        del config["optimizer"]
        return replace(trial, ds_config=config)

    assert any("no optimizer block" in note for note in report.export(altered(without), tmp_path / "a.json").notes)


def test_what_cannot_be_exported_is_refused(summary, altered, as_failed, tmp_path):
    with pytest.raises(StudyError, match="trials 0 to 23"):
        report.export(summary, tmp_path / "a.json", trial_number=99)
    with pytest.raises(StudyError, match="choose one that completed"):
        report.export(summary, tmp_path / "a.json", trial_number=summary.failed[0].number)
    with pytest.raises(StudyError, match="none of its 24 trials completed"):
        report.export(altered(as_failed), tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []
