"""Campaign files: defaults, overrides, messages, and the studies made from them."""

import json
from dataclasses import replace

import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.campaign import studies
from autotune.errors import (
    AutotuneError,
    CampaignError,
    ConfigError,
    ResourceError,
    SpaceError,
    StudyError,
    WorkloadError,
)

TEXT = """
ds_config: ds.json
evaluator: simulated
hardware: {ranks: 2, accelerator: cpu}
budget: {seconds: 5}
"""
DS = {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


SHORT = {"name": "short", "ds_config": DS}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a campaign file and its configuration."""

    def written(text=TEXT, ds=DS):
        (tmp_path / "ds.json").write_text(json.dumps(ds))
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return written


def test_a_short_file_is_enough(write, tmp_path):
    campaign = campaigns.load(write())
    assert campaign.name == "mine"
    assert campaign.folder == str(tmp_path)
    assert campaign.ds_config == DS
    assert (campaign.searcher, campaign.trials, campaign.objective.alpha) == ("tpe", 32, 0.5)


def test_overrides_are_laid_over(write):
    campaign = campaigns.load(write(), ["trials=5", "objective.alpha=0.9", "space.fix={zero_optimization.stage: 2}"])
    assert (campaign.trials, campaign.objective.alpha) == (5, 0.9)
    assert campaign.space.fix == {"zero_optimization.stage": 2}


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("trials", "write KEY=VALUE"),
        ("trials=many", "trials: got 'many'"),
        ("trials=0", "trials: got 0; input should be greater than or equal to 1"),
        ("trails=5", r"trails: unknown key; did you mean trials\?"),
        ("budget.second=5", r"budget.second: unknown key; did you mean seconds\?"),
        ("trials.x=5", None),
        ("ds_config.a.b=1", "holds 'ds.json'"),
        ("evaluator=real", "evaluator: got 'real'"),
        ("cold_check_every=8", "cold_check_every: got 8; it runs trials again cold that ran warm, and none of this"),
        ("name=a/b", "name: got 'a/b'"),
        ("trials=[1", "not valid YAML"),
        ("hardware=3", "hardware: got 3; it must be a mapping"),
        ("seed=4294967296", "seed: got 4294967296; input should be less than 4294967296"),
        ("simulated.noise=.inf", "simulated.noise: got inf"),
    ],
)
def test_a_wrong_override_is_named(write, override, complaint):
    with pytest.raises(CampaignError, match=complaint):
        campaigns.load(write(), [override])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n- b\n", "got list; a campaign file is a mapping"),
        ("a: [", "not valid YAML"),
        ("evaluator: simulated\n", "ds_config: missing; it is required"),
        ("", "got NoneType"),
        ("ds_config: x\nworkload: {arguments: &a {x: *a}}\n", "let no anchor refer to itself"),
        ("ds_config: x\nworkload: {arguments: {since: 2026-01-01}}\n", "put a date into quotes"),
        ("ds_config: a.json\ntrials: 2\ntrials: 4\n", "trials stands 2 times"),
        ("[" * 3000, "not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused(write, text, complaint):
    with pytest.raises(CampaignError, match=complaint):
        campaigns.load(write(text))


def test_a_rate_in_scientific_notation_is_a_number(write):
    text = TEXT.replace("ds.json", "{optimizer: {type: AdamW, params: {lr: 1e-3}}}")
    assert campaigns.load(write(text)).ds_config["optimizer"]["params"]["lr"] == 1e-3


def test_a_block_may_be_merged_into_another(write):
    text = TEXT + "workload: {arguments: {a: &a {x: 1, y: 2}, b: {<<: *a, x: 3}}}\n"
    assert campaigns.load(write(text)).workload.arguments["b"] == {"x": 3, "y": 2}


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a\0b", "-x", "x" * 201, "two\nlines", "line\n"])
def test_a_study_needs_a_name_that_a_folder_can_have(write, tmp_path, name):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    with pytest.raises(CampaignError, match="study: got"):
        campaigns.create(campaigns.load(write()), storage, name=name)
    assert storage.names() == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CampaignError, match=r"there is no campaign file .*none.yaml; `autotune init"):
        campaigns.load(tmp_path / "none.yaml")
    (tmp_path / "c.yaml").write_text("ds_config: gone.json")
    with pytest.raises(ConfigError, match=r"can't read .*gone.json"):
        campaigns.load(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("overrides", "ds", "error", "complaint"),
    [
        ([], {"train_batch_size": 7}, ConfigError, "7 is not"),
        ([], {"train_batch_size": 16}, ConfigError, "has no optimizer block"),
        ([], DS | {"zero_optimization": {"stage": 4}}, ConfigError, "zero_optimization.stage: got 4; it must be 0, 1"),
        ([], DS | {"zero_optimization": {"stage": "three"}}, ConfigError, "zero_optimization.stage: got 'three'"),
        ([], DS | {"zero_optimization": {"stage": [3]}}, ConfigError, "got \\[3\\]"),
        (["space.remove=[stages]"], DS, SpaceError, "stages is no dimension"),
        (["budget={}"], DS, CampaignError, "give exactly one"),
        (["objective={alpha: -1}"], DS, CampaignError, "objective.alpha: got -1"),
        (["ray_address=head:6379"], DS, CampaignError, "got 'head:6379', but trials run inline"),
        (["ray_address=h:1", "evaluator=deepspeed", "runner=local"], DS, CampaignError, "but trials run local"),
        (["placement.strategy=SPREAD"], DS, CampaignError, "but trials run inline, on this machine; leave all but"),
        (
            ["placement.ship_code=true", "evaluator=deepspeed", "runner=local"],
            DS,
            CampaignError,
            "but trials run local, on this machine; leave it out, or set runner: ray",
        ),
        (
            ["placement.labels={zone: a b}", "evaluator=deepspeed"],
            DS,
            ResourceError,
            "labels.zone: got 'a b'; a condition is",
        ),
        (["evaluator=recorded"], DS, CampaignError, "recorded.path: missing"),
        (
            ["evaluator=deepspeed", "run_directory=/proc/none/runs"],
            DS,
            CampaignError,
            r"run_directory: /proc/none/runs can't be written to: .*; make room there, or set run_directory to another",
        ),
        (
            ["evaluator=deepspeed", "workload.function=nowhere"],
            DS,
            WorkloadError,
            "got 'nowhere'; give 'module:function'",
        ),
        (["deadlines.launch_s=0", "evaluator=deepspeed"], DS, CampaignError, "deadlines.launch_s: got 0"),
    ],
)
def test_nothing_is_made_of_a_campaign_that_cannot_run(write, tmp_path, overrides, ds, error, complaint):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    campaign = campaigns.load(write(ds=ds), overrides)
    with pytest.raises(error, match=complaint):
        campaigns.create(campaign, storage, name="s")
    assert storage.names() == []
    storage.close()


def test_a_learning_rate_may_stay_out_where_there_is_no_optimizer(write, tmp_path):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    campaign = campaigns.load(write(ds={"train_batch_size": 16}), ["space.remove=[optimizer.params.lr]"])
    assert campaigns.create(campaign, storage, name="s").trials() == []
    storage.close()


def test_a_study_keeps_its_campaign_and_hardware(write, tmp_path):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    campaign = campaigns.load(write(), ["trials=5"])
    stored = campaigns.create(campaign, storage, name="s")
    (tmp_path / "ds.json").unlink()
    assert campaigns.campaign_of(storage.open("s")) == campaign
    assert campaigns.recorded_hardware(stored).ranks == 2
    summary = campaigns.summary(stored)
    assert (summary.name, summary.trial_budget, summary.is_running, summary.best) == ("s", 5, False, None)
    storage.close()


def test_real_trials_are_not_mixed_with_those_of_other_hardware(write, tmp_path):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    stored = campaigns.create(campaigns.load(write(), ["evaluator=deepspeed"]), storage, name="s")
    hardware = stored.attribute("hardware")
    stored.set_attribute("hardware", hardware | {"device_name": "Another Processor"})
    with pytest.raises(StudyError, match="was measured with device_name 'Another Processor', and here it is"):
        campaigns.study(stored)
    storage.close()


def test_every_auto_is_made_concrete_for_trials(write):
    ds = DS | {"train_batch_size": "auto", "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}
    campaign = campaigns.load(write(ds=ds))
    config, auto = campaigns.start_config(campaign, campaigns.hardware_of(campaign))
    assert auto == ("train_batch_size", "zero_optimization.reduce_bucket_size")
    assert config["train_batch_size"] == 2
    assert "reduce_bucket_size" not in config["zero_optimization"]


def test_every_error_is_one_tree():
    assert issubclass(StudyError, AutotuneError)
    assert issubclass(ConfigError, AutotuneError)


def test_a_study_moves_to_another_cluster(write, tmp_path):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    stored = campaigns.create(campaigns.load(write(), ["evaluator=deepspeed"]), storage, name="s")
    campaigns.move_to(stored, "head:6379")
    assert campaigns.campaign_of(stored).ray_address == "head:6379"
    simulated = campaigns.create(campaigns.load(write()), storage, name="simulated")
    with pytest.raises(CampaignError, match="trials run inline"):
        campaigns.move_to(simulated, "head:6379")
    storage.close()


def test_a_strategy_may_be_written_small(write):
    assert campaigns.load(write(), ["placement.strategy=strict_spread"]).placement.strategy == "STRICT_SPREAD"
    with pytest.raises(CampaignError, match=r"placement.strategy: got 'tight'|got 'TIGHT'"):
        campaigns.load(write(), ["placement.strategy=tight"])
    with pytest.raises(CampaignError, match=r"placement.slots: got 0; .* greater than or equal to 1"):
        campaigns.load(write(), ["placement.slots=0"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "1 trial"),
        (["evaluator=deepspeed", "runner=local"], "1 trial"),
        (["evaluator=deepspeed", "placement.slots=1"], "1 trial"),
        (["evaluator=deepspeed", "placement.slots=3"], "3 trials, each on processors of its own (placement.slots)"),
        (["evaluator=deepspeed"], "1 trial on each machine: on one they would share caches and memory"),
    ],
)
def test_how_many_trials_run_at_once_is_said_with_the_reason(write, overrides, words):
    campaign = campaigns.load(write(), overrides)
    hardware = campaigns.hardware_of(campaign)
    assert campaigns.at_once(campaign, hardware).startswith(words)
    gpus = replace(hardware, accelerator="cuda", device_count=8)
    if overrides == ["evaluator=deepspeed"]:
        assert campaigns.at_once(campaign, gpus).startswith("as many trials as there are GPUs for, 2 each")


def test_what_is_shipped_leaves_out_logs_and_storages(write, tmp_path):
    campaign = campaigns.load(write(), ["evaluator=deepspeed", f"run_directory={tmp_path}/runs"])
    assert studies.not_shipped(campaign, tmp_path) == ["*.db", "*.db-*", "/runs"]
    assert studies.not_shipped(campaign, tmp_path / "elsewhere") == ["*.db", "*.db-*"]


SCRIPT = ["torchrun", "--nproc_per_node", "4", "train.py", "--ds", "{config}"]


def test_a_command_line_names_the_ranks_whatever_the_file_says(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    campaign = campaigns.load(write(), command=SCRIPT)
    assert campaigns.hardware_of(campaign).ranks == 4
    assert campaign.workload.directory == str(tmp_path)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{train_batch_sise=16}"], "{train_batch_sise} is no placeholder here; did you mean {train_batch_size}"),
        (["{train_micro_batch_size_per_gpus=4}"], "did you mean {train_micro_batch_size_per_gpu}"),
        ([], r"got train.py; there is no such file in .*, where the command runs"),
    ],
)
def test_a_command_that_can_not_run_is_refused_before_the_first_trial(write, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    campaign = campaigns.load(write(TEXT.replace("simulated", "deepspeed")), command=[*SCRIPT, *words])
    storage = storages.connect(f"sqlite:///{tmp_path}/c.db")
    with pytest.raises(CampaignError, match=complaint):
        campaigns.create(campaign, storage, name="c")
    assert storage.names() == []
    storage.close()


@pytest.mark.parametrize("levels", [[1], [1, 2], [0]])
def test_a_narrowed_stage_is_prepared_for(write, tmp_path, levels):
    campaign = campaigns.load(write(f"{TEXT}space: {{narrow: {{zero_optimization.stage: {levels}}}}}\n"))
    storage = storages.connect(f"sqlite:///{tmp_path}/c.db")
    with campaigns.study(campaigns.create(campaign, storage, name="c")) as study:
        assert study.measure_baseline() is not None
    storage.close()


@pytest.mark.parametrize(("given", "wanted"), [({}, 0.03), ({"precision": 0.1}, 0.1), ({"precision": 0}, None)])
def test_the_precision_of_a_budget_can_be_switched_off(given, wanted):
    campaign = campaigns.parse(SHORT | {"budget": {"seconds": 5, **given}}, where="test")
    assert campaign.budget.precision == wanted
    assert campaigns.parse(campaign.model_dump(), where="again").budget.precision == wanted


def test_a_pruner_that_is_none_is_refused():
    assert campaigns.parse(SHORT, where="test").pruner == "percentile"
    assert campaigns.parse(SHORT | {"pruner": "none"}, where="test").pruner == "none"
    with pytest.raises(CampaignError, match="pruner: got 'median'; input should be 'none' or 'percentile'"):
        campaigns.parse(SHORT | {"pruner": "median"}, where="test")
    with pytest.raises(CampaignError, match=r"budget.precision: got 1.5; .*less than 1"):
        campaigns.parse(SHORT | {"budget": {"seconds": 5, "precision": 1.5}}, where="test")
