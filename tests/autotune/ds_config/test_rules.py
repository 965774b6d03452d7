"""Every rule by an example: the key, the line, the severity, and the words that matter."""

import json

import pytest

from autotune.ds_config import Severity, Target, document, linting
from autotune.ds_config.rules import batch

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
SIZES = {"train_micro_batch_size_per_gpu": 1}


def findings(config, *, source="ds_config.json", **given):
    text = config if isinstance(config, str) else json.dumps(SIZES | config, indent=1)
    return linting.check(document.of_text(text, source=source), **given).findings


def zero(**keys):
    return {"zero_optimization": keys}


def adam(**params):
    return {"optimizer": {"type": "AdamW", "params": params}}


CASES = [
    # unknown keys
    (
        {"zero_optimisation": {"stage": 3}},
        ERROR,
        "zero_optimisation",
        "ignores this key",
        "did you mean zero_optimization?",
    ),
    (
        {"gradient_accum_steps": 2},
        ERROR,
        "gradient_accum_steps",
        "ignores",
        "did you mean gradient_accumulation_steps?",
    ),
    ({"offload_optimizer": {}}, ERROR, "offload_optimizer", "ignores", "move it into zero_optimization"),
    ({"comment": "mine"}, WARNING, "comment", "ignores", "remove it"),
    (zero(stage=1, overlap_com=True), ERROR, "zero_optimization.overlap_com", "refuses", "did you mean overlap_comm?"),
    ({"fp16": {"enable": True}}, ERROR, "fp16.enable", "refuses this key", "did you mean enabled?"),
    ({"fp16 ": {"enabled": True}}, ERROR, "'fp16 '", "has a space", "did you mean 'fp16'?"),
    # values
    ({"train_batch_size": "16"}, ERROR, "train_batch_size", "doesn't read it as one", "write 16 without quotes"),
    ({"fp16": {"enabled": "True"}}, WARNING, "fp16.enabled", "reads it all the same", "write true without quotes"),
    (zero(stage=2, reduce_bucket_size="5e8"), ERROR, "zero_optimization.reduce_bucket_size", "doesn't", "500000000"),
    (zero(stage=2, reduce_bucket_size="500"), WARNING, "zero_optimization.reduce_bucket_size", "reads it", "write 500"),
    ({"wall_clock_breakdown": 1}, WARNING, "wall_clock_breakdown", "1 is read as true", "write true"),
    (
        {"gradient_accumulation_steps": 1.5},
        ERROR,
        "gradient_accumulation_steps",
        "a whole number above 0",
        "correct it",
    ),
    ({"gradient_clipping": -1}, ERROR, "gradient_clipping", "a number, 0 or more", "correct it"),
    (zero(stage=[0, 1]), ERROR, "zero_optimization.stage", "search space", "autotune launch"),
    (zero(stage=4), ERROR, "zero_optimization.stage", "one of 0, 1, 2, 3", "correct it"),
    (
        zero(stage=3, offload_optimizer={"device": "CPU"}),
        ERROR,
        "zero_optimization.offload_optimizer.device",
        "one of",
        "cpu?",
    ),
    ({"optimizer": None}, ERROR, "optimizer", "null is not read as missing", "remove the key"),
    ({"fp16": 1}, ERROR, "fp16", "must be a block", "write a block"),
    ({"zero_optimization": True}, WARNING, "zero_optimization", "oldest way", '"stage": 1'),
    # legacy
    ({"amp": False}, ERROR, "amp", "DeepSpeed 0.19.8 refuses this key", "remove it"),
    (zero(stage=3, mics_shard_size=2), ERROR, "zero_optimization.mics_shard_size", "MiCS", "remove it"),
    ({"bfloat16": {"enabled": True}}, WARNING, "bfloat16", "the old name of bf16", "call it bf16"),
    (zero(stage=2, cpu_offload=True), WARNING, "zero_optimization.cpu_offload", "deprecated", '"device": "cpu"'),
    (
        zero(stage=2, cpu_offload_use_pin_memory=True),
        WARNING,
        "zero_optimization.cpu_offload_use_pin_memory",
        "",
        "remove",
    ),
    (
        zero(stage=3, max_reuse_distance=1, stage3_max_reuse_distance=2),
        ERROR,
        "zero_optimization.max_reuse_distance",
        "both together",
        "remove one",
    ),
    ({"bfloat16": {"enabled": True}, "bf16": {"enabled": False}}, ERROR, "bfloat16", "stands there too", "remove it"),
    # "auto"
    (zero(stage="auto"), NOTE, "zero_optimization.stage", "accelerate fill it in", "write a value"),
    (adam(betas="auto"), NOTE, "optimizer.params.betas", "Hugging Face's Trainer fills it in", "nothing"),
    (adam(momentum="auto"), ERROR, "optimizer.params.momentum", "nobody fills it in", "write a value"),
    ({"steps_per_print": "auto"}, ERROR, "steps_per_print", "can't work with it", "write a value"),
    # precision
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ERROR, "bf16.enabled", "both enabled", "one of them"),
    ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, ERROR, "bf16.bf16_optimizer_states", "stage", "set"),
    ({"bf16": {"enabled": True}, "fp16": {"hysteresis": 2}}, WARNING, "fp16", "bf16 is enabled", "remove it"),
    ({"fp16": {"enabled": True, "loss_scale": 8, "hysteresis": 1}}, WARNING, "fp16.hysteresis", "static", "remove it"),
    ({"fp16": {"enabled": True, "min_loss_scale": 0}}, ERROR, "fp16.min_loss_scale", "above 0", "1 or more"),
    # optimizers
    ({"optimizer": {"type": "OnebitAdam"}}, ERROR, "optimizer.type", "no 1-bit optimizers", "use Adam"),
    ({"optimizer": {"type": "Adamw8"}}, ERROR, "optimizer.type", "neither DeepSpeed's nor torch.optim's", "AdamW?"),
    ({"optimizer": {"type": "sgd"}}, ERROR, "optimizer.type", "neither", "did you mean SGD?"),
    (adam(max_grad_norm=1), ERROR, "optimizer.params.max_grad_norm", "refuses it", "gradient_clipping"),
    (zero(stage=1) | {"optimizer": {"type": "SGD"}}, ERROR, "optimizer.type", "not tested SGD", "untested_optimizer"),
    (
        {"optimizer": {"type": "Lamb"}, "fp16": {"enabled": True, "loss_scale": 2}},
        ERROR,
        "fp16.loss_scale",
        "dynamic loss scaling",
        "write 0",
    ),
    ({"scheduler": {"type": "warmuplr"}}, ERROR, "scheduler.type", "schedule", "WarmupLR?"),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 9}}},
        ERROR,
        "scheduler.params.total_num_steps",
        "WarmupLR has no such parameter",
        "it has",
    ),
    ({"scheduler": {"type": "WarmupDecayLR", "params": {}}}, ERROR, "scheduler.params", "needs total_num_steps", "add"),
    # offload
    (
        zero(stage=2, offload_param={"device": "cpu"}),
        WARNING,
        "zero_optimization.offload_param",
        "no effect",
        "stage 3",
    ),
    (zero(offload_optimizer={"device": "cpu"}), WARNING, "zero_optimization.offload_optimizer", "no effect", "stage 1"),
    (
        zero(stage=2, offload_optimizer={"device": "nvme", "nvme_path": "/n"}),
        WARNING,
        "zero_optimization.offload_optimizer.device",
        "offloads to the CPU",
        "write cpu",
    ),
    (
        zero(stage=3, offload_param={"device": "nvme"}),
        ERROR,
        "zero_optimization.offload_param.device",
        "needs nvme_path",
        "nvme_path",
    ),
    (
        zero(stage=2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        ERROR,
        "zero_optimization.offload_optimizer.ratio",
        "stage 3 only",
        "remove it",
    ),
    (
        zero(stage=2, offload_optimizer={"device": "cpu"}) | {"optimizer": {"type": "Lamb"}},
        ERROR,
        "optimizer.type",
        "on the GPU only",
        "use Adam",
    ),
    (
        zero(stage=2, offload_optimizer={"device": "cpu"}),
        NOTE,
        "zero_optimization.offload_optimizer",
        "no optimizer",
        "false",
    ),
    # stages
    (
        zero(stage=2, stage3_max_live_parameters=1),
        WARNING,
        "zero_optimization.stage3_max_live_parameters",
        "for stage 3",
        "",
    ),
    (
        zero(stage=3, round_robin_gradients=True),
        WARNING,
        "zero_optimization.round_robin_gradients",
        "stages 1 and 2",
        "",
    ),
    (zero(stage=0, overlap_comm=True), WARNING, "zero_optimization.overlap_comm", "at stage 0", "remove it"),
    (zero(stage=1, allgather_partitions=True), NOTE, "zero_optimization.allgather_partitions", "nowhere", "remove it"),
    (zero(stage=3) | {"gradient_allreduce_op": "SUM"}, ERROR, "gradient_allreduce_op", "stage 3", "mean"),
    (zero(stage=3, compute_grad_norm=False), ERROR, "zero_optimization.compute_grad_norm", "at stage 3", "remove it"),
    (zero(stage=1, legacy_stage1=True), ERROR, "zero_optimization.legacy_stage1", "gone", "remove it"),
    # placeholders
    ({"train_batch_size": "<BATCH>"}, ERROR, "train_batch_size", "<BATCH> is a placeholder", "write the value"),
    ({"steps_per_print": "${STEPS}"}, ERROR, "steps_per_print", "${STEPS}", "write"),
    ({"steps_per_print": "{{ steps }}"}, ERROR, "steps_per_print", "{{ steps }}", "write"),
    ({"steps_per_print": "CONFIG_STEPS"}, ERROR, "steps_per_print", "CONFIG_STEPS", "write"),
]


@pytest.mark.parametrize(("config", "severity", "key", "rule", "fix"), CASES)
def test_a_rule(config, severity, key, rule, fix):
    found = [one for one in findings(config, deepspeed="0.19.8") if one.key == key and one.severity is severity]
    assert [one for one in found if rule in one.rule and fix in one.fix], found
    lines = json.dumps(SIZES | config, indent=1).splitlines()
    assert all(str(one.path[-1]) in lines[one.line - 1] for one in found)


def test_a_good_configuration_has_no_findings():
    config = {
        "train_batch_size": 32,
        "gradient_clipping": 1.0,
        "communication_data_type": "BF16",
        "scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 10}},
        "zero_optimization": {"stage": 3, "sub_group_size": 1e9, "stage3_prefetch_bucket_size": 5e7},
        "bf16": {"enabled": True},
        "checkpoint": {"tag_validation": "Warn"},
        "autotuning": {"enabled": False, "arg_mappings": {"train_batch_size": "--batch"}},
        "data_types": {"grad_accum_dtype": "fp32", "keep_in_fp32_modules": "auto"},
    } | adam(lr=1e-4, betas=[0.9, 0.95])
    report = linting.check(document.of_text(json.dumps(config), source="zero3.json"), ranks=8)
    assert report.findings == ()
    assert report.verdict is linting.Verdict.ACCEPTED
    assert report.after is None


def test_removed_keys_are_told_by_the_installed_version():
    (old,) = findings({"amp": {"enabled": True}}, deepspeed="0.16.2")
    assert old.severity is WARNING
    assert "0.16.2 takes it, 0.19.8 doesn't" in old.rule
    (newer,) = findings({"amp": {"enabled": True}}, deepspeed="0.19.7")  # nobody has looked which of these took it
    assert "0.19.5 takes it, 0.19.8 doesn't" in newer.rule
    assert findings({"optimizer": {"type": "OneBitAdam"}}, deepspeed="0.16.2") == ()


def test_accelerate_fills_in_no_auto_of_its_own_keys(tmp_path):
    (found,) = yaml_findings(tmp_path, "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: auto}\n")
    assert (found.severity, found.rule) == (ERROR, "must be one of 0, 1, 2, 3")


@pytest.mark.parametrize(
    ("target", "config", "severity"),
    [
        (Target.HF, {"gradient_clipping": "auto"} | zero(stage=1), NOTE),
        (Target.ACCELERATE, adam(betas="auto") | zero(stage=1), ERROR),
        (Target.HF, adam(betas="auto") | zero(stage=1), NOTE),
        (Target.DEEPSPEED, {"gradient_clipping": "auto"}, ERROR),
        (Target.DEEPSPEED, {"fp16": {"enabled": "auto"}}, ERROR),
        (Target.DEEPSPEED, zero(stage=1, reduce_bucket_size="auto"), WARNING),
        (Target.HF, {}, ERROR),
    ],
)
def test_who_reads_it_decides(target, config, severity):
    (found,) = findings(config, target=target)
    assert found.severity is severity


@pytest.mark.parametrize(
    ("target", "severity"), [(None, WARNING), (Target.HF, ERROR), (Target.ACCELERATE, ERROR), (Target.DEEPSPEED, NOTE)]
)
def test_hjson_is_deepspeeds_only(target, severity):
    text = '{"train_batch_size": 8 // samples\n, "zero_optimization": {"stage": 1}}'
    (found,) = findings(text, target=target)
    assert (found.code, found.severity, found.line, found.is_mended) == ("not-json", severity, 1, True)


@pytest.mark.parametrize(
    ("name", "stage", "lies"),
    [
        ("conf/zero3.json", 2, True),
        ("conf/zero3.json", 3, False),
        ("zero2/ds_config.json", 3, False),
        ("ds_z0_config.json", 1, True),
        ("deepspeed_config_s3.json", 2, True),
        ("ds_zero_stage_1_config.json", 0, True),
        ("ds_zero-2.json", 3, True),
        ("bsz64k_seq128.json", 3, False),
        ("zero2_and_zero3.json", 1, False),
    ],
)
def test_a_name_that_lies_about_the_stage(name, stage, lies):
    codes = {one.code for one in findings(zero(stage=stage), source=name)}
    assert ("name" in codes) is lies


def test_keys_that_stand_twice():
    same, other = findings('{"train_batch_size": 8,\n"train_batch_size": 8,\n"fp16": {}, "fp16": {"enabled": true}}')
    assert (same.line, same.is_mended) == (2, True)
    assert (other.line, other.is_mended) == (3, False)
    assert "first on line 3 as {}" in other.rule


def triples(train, micro=None, accumulation=None):
    given = {
        "train_batch_size": train,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
    }
    return json.dumps({name: value for name, value in given.items() if value is not None})


@pytest.mark.parametrize(
    ("sizes", "ranks", "rule", "fix"),
    [
        ((64, 3, 4), 4, "= 3 x 4 x 4 = 48, not 64", "64 = 4 x 4 x 4, 48 = 3 x 4 x 4, 60 = 3 x 5 x 4"),
        ((10, 4), 2, "= 4 x 1 x 2 = 8, not 10", "8 = 4 x 1 x 2"),
        ((7,), 2, "= 3 x 1 x 2 = 6, not 7", "6 = 3 x 1 x 2, 8 = 4 x 1 x 2"),
        ((1,), 4, "not 1", "4 = 1 x 1 x 4"),
        ((10, 4), None, "4 x ranks is 10 for no whole number of ranks", "make it 8 or 12"),
        ((3, 4, 2), None, "4 x 2 x ranks is 3", "make it 8,"),
    ],
)
def test_a_batch_triple_that_does_not_hold(sizes, ranks, rule, fix):
    (found,) = findings(triples(*sizes), ranks=ranks)
    assert found.severity is ERROR
    assert rule in found.rule
    assert fix in found.fix


@pytest.mark.parametrize(
    ("sizes", "ranks"), [((64, 4, 4), 4), ((64, 4), 4), ((64, None, 2), 8), ((64,), 64), ((64,), None)]
)
def test_a_batch_triple_that_holds(sizes, ranks):
    assert findings(triples(*sizes), ranks=ranks) == ()


def test_a_whole_triple_says_on_how_many_ranks_it_holds():
    (found,) = findings(triples(64, 4, 4))
    assert (found.severity, found.rule) == (NOTE, "4 x 4 x ranks is 64 on 4 data-parallel ranks only")


@pytest.mark.parametrize(
    ("train", "micro", "accumulation", "ranks"), [(100, 7, 3, 8), (1, 9, 9, 64), (10**15 + 1, 3, 2, 7)]
)
def test_the_nearest_triples_hold(train, micro, accumulation, ranks):
    for triple in batch.nearest(train, micro, accumulation, ranks):
        assert triple.train == triple.micro * triple.accumulation * ranks
        assert min(triple.train, triple.micro, triple.accumulation) >= 1


def yaml_findings(tmp_path, text, name="config.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return linting.lint(str(path)).findings


def test_accelerates_own_file(tmp_path):
    found = yaml_findings(
        tmp_path,
        "distributed_type: DEEPSPEED\nnum_procs: 8\ndeepspeed_config:\n  zero_stage: 2\n  zero3_init_flag: true\n"
        "  offload_param_device: cpu\n",
    )
    assert [(one.line, one.key, one.severity) for one in found] == [
        (2, "num_procs", ERROR),
        (5, "deepspeed_config.zero3_init_flag", WARNING),
        (6, "deepspeed_config.offload_param_device", WARNING),
    ]


def test_accelerate_reads_its_blocks_keys_as_texts(tmp_path):
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: '3', offload_param_device: CPU}\n"
    (found,) = yaml_findings(tmp_path, text)
    assert (found.severity, found.key, found.is_mended) == (WARNING, "deepspeed_config.zero_stage", True)
    (found,) = yaml_findings(tmp_path, "distributed_type: DEEPSPEED\nnum_processes: '8'\n")
    assert found.severity is ERROR


def test_accelerates_keys_beside_a_file(tmp_path):
    text = "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    found = yaml_findings(tmp_path, text + "  zero_stage: 3\n")
    assert [(one.key, one.severity) for one in found] == [
        ("mixed_precision", ERROR),
        ("deepspeed_config.deepspeed_config_file", NOTE),
        ("deepspeed_config.zero_stage", ERROR),
    ]


def test_deepspeeds_keys_in_yaml(tmp_path):
    (found,) = yaml_findings(tmp_path, "train_batch_size: 8\nzero_optimization: {stage: 3}\n")
    assert (found.code, found.severity, found.is_mended) == ("not-json", ERROR, True)
