"""The data of known keys against the installed DeepSpeed, transformers and accelerate, in a process that loads them."""

import importlib.metadata
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from autotune.ds_config import schema
from autotune.ds_config.schema import Block, Kind, Unknown

MODELS = {
    "zero_optimization": "deepspeed.runtime.zero.config:DeepSpeedZeroConfig",
    "zero_optimization.offload_param": "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadParamConfig",
    "zero_optimization.offload_optimizer": "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadOptimizerConfig",
    "zero_optimization.zenflow": "deepspeed.runtime.zenflow.zenflow_config:ZenFlowConfig",
    "zero_optimization.leaf_module": "deepspeed.runtime.zero.leaf_module_config:DeepSpeedZeroLeafModuleConfig",
    "fp16": "deepspeed.runtime.precision_config:DeepSpeedFP16Config",
    "bf16": "deepspeed.runtime.precision_config:DeepSpeedBF16Config",
    "bfloat16": "deepspeed.runtime.precision_config:DeepSpeedBF16Config",
    "comms_logger": "deepspeed.comm.config:CommsLoggerConfig",
    "tensorboard": "deepspeed.monitor.config:TensorBoardConfig",
    "csv_monitor": "deepspeed.monitor.config:CSVConfig",
    "wandb": "deepspeed.monitor.config:WandbConfig",
    "comet": "deepspeed.monitor.config:CometConfig",
    "timers.throughput": "deepspeed.utils.config:DeepSpeedThroughputTimerConfig",
    "compile": "deepspeed.compile.config:CompileConfig",
    "hybrid_engine": "deepspeed.runtime.config:HybridEngineConfig",
    "tensor_parallel": "deepspeed.runtime.tensor_parallel.config:TPTrainingConfig",
    "tensor_parallel.tp": "deepspeed.runtime.tensor_parallel.config:TPConfig",
    "weight_quantization": "deepspeed.inference.config:WeightQuantConfig",
}
CONSTANTS = {
    "activation_checkpointing": ("deepspeed.runtime.activation_checkpointing.config", "ACT_CHKPT_"),
    "aio": ("deepspeed.runtime.swap_tensor.constants", "AIO_"),
    "flops_profiler": ("deepspeed.profiling.constants", "FLOPS_PROFILER_"),
}
PROGRAM = """
import enum, importlib, inspect, json, sys, typing
import torch
models, constants = json.loads(sys.argv[1]), json.loads(sys.argv[2])

def kind(annotation):
    inner = [one for one in typing.get_args(annotation) if one is not type(None)]
    if typing.get_origin(annotation) is typing.Union:
        return kind(inner[0]) if len(inner) == 1 else "any"
    if typing.get_origin(annotation) is typing.Literal:
        return "choice"
    plain = typing.get_origin(annotation) or annotation
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        return "choice"
    names = {bool: "boolean", int: "integer", float: "number", str: "text", list: "list", tuple: "list"}
    names[dict] = "mapping"
    if getattr(plain, "model_fields", None):
        return "block"
    return "text" if getattr(plain, "__name__", "") == "Path" else names.get(plain, "any")

def bounds(field):
    found = {}
    for one in field.metadata:
        for name in ("gt", "ge", "lt", "le"):
            if hasattr(one, name):
                found[name] = getattr(one, name)
    return found

def choices(annotation):
    inner = [one for one in typing.get_args(annotation) if one is not type(None)]
    if typing.get_origin(annotation) is typing.Literal:
        return list(inner)
    return [one.value for one in annotation]

def fields(model):
    found = {}
    for name, field in model.model_fields.items():
        what = kind(field.annotation)
        null = type(None) in typing.get_args(field.annotation)
        entry = {"kind": what, "null": null, "bounds": bounds(field)}
        if what == "choice":
            entry["choices"] = choices(field.annotation)
        for key in {name, field.alias or name}:
            found[key] = entry
    return found

def load(path):
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)

from deepspeed.autotuning.config import DeepSpeedAutotuningConfig
from deepspeed.module_inject.auto_ep_presets.base import AutoEPConfig
from deepspeed.runtime import config, lr_schedules
from deepspeed.runtime.zero import utils as zero_utils

print("ANSWER" + json.dumps({
    "models": {key: fields(load(path)) for key, path in models.items()},
    "constants": {
        key: sorted(
            value for name, value in vars(importlib.import_module(module)).items()
            if name.startswith(prefix) and isinstance(value, str) and not name.endswith(("_DEFAULT", "_FORMAT"))
        )
        for key, (module, prefix) in constants.items()
    },
    "removed": sorted([*config._REMOVED_TOP_LEVEL_CONFIG_KEYS,
                       *("zero_optimization." + key for key in config._REMOVED_ZERO_CONFIG_KEYS)]),
    "optimizers": sorted(config.DEEPSPEED_OPTIMIZERS),
    "torch": sorted(name for name, one in vars(torch.optim).items() if inspect.isclass(one) and name != "Optimizer"),
    "torch_schedulers": sorted(set(torch.optim.lr_scheduler.__all__) - {"LRScheduler"}),
    "tested": sorted({one.__name__ for one in zero_utils.ZERO_SUPPORTED_OPTIMIZERS}),
    "schedulers": {
        name: sorted(set(inspect.signature(getattr(lr_schedules, name)).parameters) - {"optimizer"})
        for name in lr_schedules.VALID_LR_SCHEDULES
    },
    "expert_parallel": sorted(name for name in AutoEPConfig.__dataclass_fields__ if not name.startswith("_")),
    "autotuning": sorted(vars(DeepSpeedAutotuningConfig({}))),
    "dtypes": sorted(name for one in config.DtypeEnum for name in one._all_values if isinstance(name, str)),
}))
"""
pytestmark = pytest.mark.skipif(
    importlib.metadata.version("deepspeed") != schema.data()["deepspeed"],
    reason=f"the data are those of DeepSpeed {schema.data()['deepspeed']}; another is installed",
)


@pytest.fixture(scope="module")
def installed():
    arguments = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(MODELS), json.dumps(CONSTANTS)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert "ANSWER" in done.stdout, done.stderr
    return json.loads(done.stdout.split("ANSWER")[1])


def block(dotted):
    found = schema.deepspeed().find(tuple(dotted.split(".")))
    assert isinstance(found, Block), dotted
    return found


@pytest.mark.parametrize("dotted", MODELS)
def test_blocks_that_are_models_have_the_models_fields(installed, dotted):
    fields, known = installed["models"][dotted], block(dotted)
    assert known.unknown is Unknown.REFUSED
    assert set(known.keys) == set(fields)
    for name, field in fields.items():
        kind = known.keys[name]
        if isinstance(kind, Block) or field["kind"] == "block":
            assert isinstance(kind, Block), name
            assert kind.nullable == field["null"], name
            continue
        assert kind.name == field["kind"], name
        assert kind.nullable == field["null"] or field["kind"] == "any", name
        if kind.choices:
            assert set(kind.choices) == set(field["choices"]), name
        bounds = field["bounds"]
        if bounds:
            assert kind.low == bounds.get("ge", bounds.get("gt")), name
            assert kind.high == bounds.get("le", bounds.get("lt", kind.high)), name


def test_every_block_that_refuses_keys_is_checked():
    def refusing(known, path=""):
        for name, inner in known.keys.items():
            if isinstance(inner, Block):
                here = f"{path}.{name}".lstrip(".")
                if inner.unknown is Unknown.REFUSED:
                    yield here
                yield from refusing(inner, here)

    assert set(refusing(schema.deepspeed())) - {"tensor_parallel.tensor_parallel"} == set(MODELS)


@pytest.mark.parametrize("dotted", CONSTANTS)
def test_blocks_that_are_read_by_constants_have_their_names(installed, dotted):
    known = set(block(dotted).keys)
    assert known <= set(installed["constants"][dotted])


def test_lists_are_deepspeeds(installed):
    data = schema.data()
    assert sorted(data["removed"]["keys"]) == installed["removed"]
    assert sorted(name.lower() for name in data["optimizers"]["deepspeed"]) == installed["optimizers"]
    ours = {name.lower() for name in data["optimizers"]["deepspeed"]}
    assert {name for name in installed["torch"] if name.lower() not in ours} == set(data["optimizers"]["torch"])
    for name in data["optimizers"]["tested_with_zero"]:
        assert name == "Muon" or any(name in one for one in installed["tested"]), name
    assert data["torch_schedulers"] == installed["torch_schedulers"]
    assert {name: sorted(known) for name, known in data["schedulers"].items()} == installed["schedulers"]
    assert sorted(block("expert_parallel").keys) == installed["expert_parallel"]
    assert set(block("autotuning").keys) >= set(installed["autotuning"])
    for key in ("grad_accum_dtype", "param_dtype", "buffer_dtype"):
        kind = block("data_types").keys[key]
        assert isinstance(kind, Kind)
        assert sorted(map(str, kind.choices)) == installed["dtypes"]


def source_of(package, *parts):
    folder = find_spec(package).submodule_search_locations[0]
    return Path(folder, *parts).read_text(encoding="utf-8")


def test_every_top_level_key_is_read_somewhere_in_deepspeed():
    folder = Path(find_spec("deepspeed").submodule_search_locations[0])
    places = [*folder.glob("runtime/*.py"), *folder.glob("runtime/*/*.py"), folder / "__init__.py"]
    places += [*folder.glob("*/con*.py"), *folder.glob("utils/*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in places)
    for key in schema.deepspeed().keys:
        assert re.search(rf"[\"']{key}[\"']", text), key


def test_values_auto_are_filled_in_where_it_is_said():
    filled = schema.data()["filled"]
    trainer = source_of("transformers", "integrations", "deepspeed.py")
    by_trainer = set(re.findall(r"fill_(?:match|only)\(\s*\"([\w.]+)\"", trainer))
    assert by_trainer <= {*filled["accelerate"], *filled["trainer"]}
    assert set(filled["trainer"]) <= by_trainer
    accelerate = source_of("accelerate", "accelerator.py") + source_of("accelerate", "utils", "dataclasses.py")
    for key in filled["accelerate"]:
        assert f'"{key}"' in accelerate, key


def test_accelerates_keys_are_accelerates():
    text = source_of("accelerate", "commands", "config", "config_args.py")
    body = text[text.index("class BaseConfig") : text.index("class SageMakerConfig")]
    fields = set(re.findall(r"^    (\w+): ", body, re.MULTILINE))
    assert fields <= set(schema.accelerate().keys)
    assert set(schema.accelerate().keys) - fields <= {"deepspeed_config", "fp16", "dynamo_backend"}
    launch = source_of("accelerate", "commands", "launch.py")
    inner = schema.accelerate().keys["deepspeed_config"]
    assert isinstance(inner, Block)
    for key in inner.keys:
        assert f"--{key}" in launch, key


def test_stages_name_fields_of_the_model(installed):
    fields = set(installed["models"]["zero_optimization"])
    for names in schema.data()["stages"].values():
        assert set(names) <= fields


def test_a_type_that_is_none_is_refused():
    with pytest.raises(ValueError, match="is no type"):
        schema._kind("integer > 0")
