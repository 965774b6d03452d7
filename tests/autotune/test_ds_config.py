"""DeepSpeed configuration files: reading, overlaying, the batch triple, and what comes out untouched."""

import contextlib
import copy
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune import ds_config
from autotune.errors import ConfigError

USER = {
    "train_batch_size": 32,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
    "zero_optimization": {
        "stage": 2,
        "sub_group_size": 1e9,
        "reduce_bucket_size": 5e8,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/local", "pin_memory": True},
    },
    "fp16": {"enabled": True, "loss_scale_window": 100},
    "comms_logger": {"enabled": False},
}


@pytest.mark.parametrize(
    "text",
    [
        '{"train_batch_size": 8, "zero_optimization": {"stage": 2}}',
        '\ufeff{"train_batch_size": 8, "zero_optimization": {"stage": 2}}',
        '{\n  // a comment\n  "train_batch_size": 8\n  zero_optimization: {stage: 2}\n}',
        '{\r\n\t"train_batch_size": 8,\r\n\t"zero_optimization": {"stage": 2},\r\n}',
    ],
)
def test_reads_json_and_hjson(tmp_path, text):
    path = tmp_path / "ds_config.json"
    path.write_text(text, encoding="utf-8")
    assert ds_config.read(path) == {"train_batch_size": 8, "zero_optimization": {"stage": 2}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1, 2]", "holds a list"),
        ("{{{", "neither JSON nor hjson"),
        ("", "holds a "),
        (None, "can't read"),
        ('{"fp16": {"enabled": true, "enabled": false}}', "enabled stands twice in one block, as True and False"),
        ('{"steps_per_print": ' + "9" * 5000 + "}", "neither JSON nor hjson"),
    ],
)
def test_what_is_no_configuration_is_refused(tmp_path, text, complaint):
    path = tmp_path / "ds_config.json"
    if text is not None:
        path.write_text(text)
    if text == "":
        assert ds_config.read(path) == {}
        return
    with pytest.raises(ConfigError, match=complaint):
        ds_config.read(path)


@pytest.mark.parametrize(("name", "complaint"), [("zero3.yaml", "can't read"), ("a\0b.json", "can't read")])
def test_a_path_that_leads_to_no_configuration_is_refused(tmp_path, name, complaint):
    with pytest.raises(ConfigError, match=complaint):
        ds_config.read(tmp_path / name)


@example("/*")
@example("{a: 1e400")
@example("{a: 1 /*")
@given(st.text(max_size=200) | st.text('{}[]:,"truefalsn0123456789.eE+-/* \n#', max_size=60))
def test_reading_never_ends_in_a_traceback(text):
    with contextlib.suppress(ConfigError):
        assert isinstance(ds_config.parse(text, source="a text"), dict)


def test_settings_are_named_as_the_space_names_them():
    settings = ds_config.settings_of(USER)
    assert settings["zero_optimization.stage"] == 2
    assert settings["zero_optimization.reduce_bucket_size"] == 500_000_000
    assert isinstance(settings["zero_optimization.reduce_bucket_size"], int)
    assert settings["optimizer.params.lr"] == 3e-4
    assert settings["precision"] == "fp16"
    assert settings["zero_optimization.offload"] == "optimizer"
    assert settings["zero_optimization.overlap_comm"] is False


def test_overlap_defaults_to_what_deepspeed_takes_at_the_stage():
    assert ds_config.settings_of({"zero_optimization": {"stage": 3}})["zero_optimization.overlap_comm"] is True
    assert ds_config.settings_of({})["zero_optimization.overlap_comm"] is False


def test_keys_that_are_not_searched_come_out_as_they_went_in():
    before = copy.deepcopy(USER)
    built = ds_config.build(
        USER,
        {
            "zero_optimization.stage": 3,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "precision": "bf16",
            "optimizer.params.lr": 1e-3,
            "activation_checkpointing": True,
        },
        world_size=2,
    )
    assert before == USER
    assert built == USER | {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}},
        "zero_optimization": USER["zero_optimization"] | {"stage": 3},
        "fp16": {"enabled": False, "loss_scale_window": 100},
        "bf16": {"enabled": True},
    }
    assert isinstance(built["zero_optimization"]["sub_group_size"], float)


def test_offload_is_written_as_deepspeeds_blocks():
    def zero(offload, config=USER):
        return ds_config.build(config, {"zero_optimization.offload": offload}, world_size=1)["zero_optimization"]

    assert zero("none").keys() & {"offload_optimizer", "offload_param"} == set()
    assert zero("optimizer")["offload_optimizer"] == USER["zero_optimization"]["offload_optimizer"]
    both = zero("optimizer_and_parameters", {"zero_optimization": {"stage": 3}})
    assert both["offload_optimizer"] == both["offload_param"] == {"device": "cpu"}


@pytest.mark.parametrize(
    ("stage", "optimizer", "param", "said"),
    [
        (3, "cpu", "cpu", "optimizer_and_parameters"),
        (3, "none", "cpu", "parameters"),
        (3, None, "nvme", "parameters"),
        (3, "cpu", None, "optimizer"),
        (2, "cpu", "cpu", "optimizer"),  # the optimizers of stages 1 and 2 aren't handed offload_param
        (2, None, "cpu", "none"),
        (3, None, "none", "none"),
    ],
)
def test_offload_is_read_as_deepspeed_takes_it(stage, optimizer, param, said):
    blocks = {"offload_optimizer": optimizer, "offload_param": param}
    zero = {"stage": stage, **{key: {"device": device} for key, device in blocks.items() if device is not None}}
    config = {"zero_optimization": zero}
    assert ds_config.settings_of(config)["zero_optimization.offload"] == said
    again = ds_config.overlay(config, {"zero_optimization.offload": said})
    assert ds_config.settings_of(again)["zero_optimization.offload"] == said


def test_the_learning_rate_also_moves_the_peak_of_a_warm_up():
    config = USER | {"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-4}}}
    built = ds_config.build(config, {"optimizer.params.lr": 1e-3}, world_size=1)
    assert built["scheduler"]["params"] == {"warmup_min_lr": 0, "warmup_max_lr": 1e-3}
    without_peak = USER | {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100}}}
    built = ds_config.build(without_peak, {"optimizer.params.lr": 1e-2}, world_size=1)
    assert built["scheduler"]["params"] == {"total_num_steps": 100, "warmup_max_lr": 1e-2}
    with pytest.raises(ConfigError, match="no optimizer block"):
        ds_config.build({}, {"optimizer.params.lr": 1e-3}, world_size=1)


@pytest.mark.parametrize(
    ("given", "triple"),
    [
        ({}, (2, 1, 1)),
        ({"train_batch_size": 16}, (16, 8, 1)),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 4}, (16, 2, 4)),
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4}, (16, 4, 2)),
        ({"train_micro_batch_size_per_gpu": 4}, (8, 4, 1)),
        ({"train_micro_batch_size_per_gpu": 4.0, "gradient_accumulation_steps": 3}, (24, 4, 3)),
    ],
)
def test_the_batch_triple_is_completed(given, triple):
    whole = ds_config.complete(given, world_size=2)
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert tuple(whole[name] for name in names) == triple
    assert all(type(whole[name]) is int for name in names)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"train_batch_size": 7}, "train_batch_size: 7 is not .* = 3 x 1 x 2 = 6"),
        ({"train_batch_size": 1}, "1 is not"),
        (
            {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 3},
            "16 is not .* = 3 x 2 x 2 = 12.* hold: 16 = 4 x 2 x 2, 12 = 3 x 2 x 2",
        ),
        ({"train_batch_size": "16"}, "got '16'; it must be a whole number"),
        ({"train_batch_size": True}, "got True"),
        ({"gradient_accumulation_steps": 0}, "got 0"),
    ],
)
def test_a_triple_that_does_not_go_together_is_refused_with_the_equation(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        ds_config.complete(given, world_size=2)


def test_auto_values_are_taken_out_and_named():
    config = {"train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.9]}}}
    concrete, auto = ds_config.without_auto(config)
    assert concrete == {"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.9]}}}
    assert auto == ("train_batch_size", "optimizer.params.lr")


def test_writing_is_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "ds_config.json"
    ds_config.write(USER, path)
    assert json.loads(path.read_text()) == USER
    assert [file.name for file in path.parent.iterdir()] == ["ds_config.json"]
    with pytest.raises(ConfigError, match="can't write"):
        ds_config.write(USER, path / "below")
    with pytest.raises(ConfigError, match="can't write"):
        ds_config.write(USER, path.parent)
    assert [file.name for file in tmp_path.iterdir()] == ["new"]
