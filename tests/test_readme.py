"""The README tells the truth: its commands exist, its files parse, its code runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune import campaign as campaigns
from autotune import command as commands_of_scripts
from autotune import launchers, scripts
from autotune.hardware import Hardware
from autotune_spaces import SpaceChanges, build
from tests.autotune.test_space import GPU

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
DS_CONFIG = {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


def blocks(language):
    return [text for name, text in BLOCKS if name == language]


def commands():
    shown = re.findall(r"^autotune (\w+)", "\n".join(blocks("")), re.MULTILINE)
    spoken = re.findall(r"`autotune (\w+)", TEXT)
    return sorted({*shown, *spoken})


def test_no_placeholder_was_left():
    assert "@" not in re.sub(r"\w+://\S+", "", TEXT)


@pytest.mark.parametrize("command", commands())
def test_its_commands_exist(command):
    done = subprocess.run([sys.executable, "-m", "autotune", command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_its_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("")), re.MULTILINE)
    assert {"quickstart", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_campaign_and_space_can_be_used(tmp_path):
    campaign, space = (yaml.safe_load(text) for text in blocks("yaml"))
    parsed = campaigns.parse(campaign | {"ds_config": DS_CONFIG}, where="README")
    assert parsed.trials == 32
    changed = build(SpaceChanges.model_validate(space["space"]), GPU, start={})
    assert isinstance(GPU, Hardware)
    assert "zero_optimization.sub_group_size" in changed.names
    assert "precision" not in changed.names


def test_its_environment_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    simulated = {"evaluator": "simulated", "hardware": {"ranks": 2}, "ds_config": DS_CONFIG, "trials": 12}
    (tmp_path / "campaign.yaml").write_text(yaml.safe_dump(simulated))
    (code,) = [text for text in blocks("python") if "gymnasium" in text]
    exec(compile(code, "README.md", "exec"), {})
    from autotune import storage

    opened = storage.connect("sqlite:///autotune.db")
    assert len(opened.open("by-hand").trials()) == 12
    opened.close()


def test_the_placements_of_the_page_on_clusters_can_be_used():
    text = (ROOT / "docs" / "cluster.md").read_text()
    examples = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    assert len(examples) == 2
    said = set()
    for example in examples:
        campaigns.parse(example | {"name": "c", "ds_config": DS_CONFIG}, where="docs/cluster.md")
        said |= example["placement"].keys()
    keys = set(campaigns.PlacementSection.model_fields)
    assert said <= keys
    assert all(f"`placement.{key}`" in text or key in said for key in keys)


def test_its_table_has_every_placeholder():
    rows = dict(re.findall(r"^\| `\{([a-z_0-9]+)\}` \| ([^|]*?) \|$", TEXT, re.MULTILINE))
    for name, meaning in commands_of_scripts.GIVEN.items():
        assert rows[name].startswith(meaning.removeprefix("that "))


def test_its_command_with_placeholders_is_what_init_writes(tmp_path):
    words, template = (
        shlex.split(re.search(pattern, TEXT, re.MULTILINE)[1])
        for pattern in (r"^autotune init -- (.*)$", r"^(torchrun .*\{config\}.*)$")
    )
    made = scripts.template_of(words, DS_CONFIG, directory=str(tmp_path))
    assert launchers.with_free_port(template) == made.words


def test_its_lint_example_is_what_lint_says(tmp_path):
    (config,), (said,) = blocks("json"), blocks("text")
    (command,) = re.findall(r"`autotune (lint [^`]*--fix)` says", TEXT)
    (tmp_path / "ds_config.json").write_text(config)
    program = [sys.executable, "-m", "autotune", *command.split()]
    environment = os.environ | {"COLUMNS": "100"}
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == said.strip()


def test_every_relative_link_leads_somewhere():
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "docs/claims.md",
        "docs/cluster.md",
        "docs/compare.md",
        "docs/ds_configs.md",
        "docs/estimate.md",
        "docs/failures.md",
        "docs/parallel.md",
        "docs/performance_model.md",
        "docs/pruning.md",
        "docs/results.md",
        "docs/scripts.md",
        "docs/searchers.md",
        "tests/data/ds_configs/README.md",
    ):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text()):
            assert (ROOT / name).parent.joinpath(target).exists(), target
