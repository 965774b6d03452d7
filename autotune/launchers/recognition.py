"""From a command's words to what it launches: wrappers, the launcher, its options, the script and its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.launchers import arguments, options
from autotune.launchers.launch import Argument, ConfigArgument, Launch, LaunchKind
from autotune.launchers.options import FLAGS, Options

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)
_PYTHON = re.compile(r"python[0-9.]*")
_PROGRAMS: Mapping[str, LaunchKind] = {
    "deepspeed": LaunchKind.DEEPSPEED,
    "deepspeed.pt": LaunchKind.DEEPSPEED,
    "ds": LaunchKind.DEEPSPEED,
    "torchrun": LaunchKind.TORCHRUN,
    "accelerate-launch": LaunchKind.ACCELERATE,
}
_MODULES: Mapping[str, LaunchKind] = {
    "deepspeed.launcher.runner": LaunchKind.DEEPSPEED,
    "torch.distributed.run": LaunchKind.TORCHRUN,
    "torch.distributed.launch": LaunchKind.TORCHRUN,
    "accelerate.commands.launch": LaunchKind.ACCELERATE,
}
_ONE_PROCESS_WRAPPERS = frozenset({"env", "exec", "nice", "nohup", "numactl", "stdbuf", "taskset", "time", "timeout"})
_RUN_WRAPPERS = frozenset({"conda", "micromamba", "pdm", "pipenv", "poetry", "uv"})
"""`uv run python train.py`: they start what follows, once."""
_MANY_PROCESS_WRAPPERS = frozenset({"mpiexec", "mpirun", "srun"})
"""They start what follows several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """The launcher's name in a command."""

    kind: LaunchKind
    index: int
    end: int
    """Index of the first word behind its name."""


def recognise(words: Sequence[str], *, directory: Path | str = ".") -> Launch:
    """Return what a command launches, from its words alone.

    Args:
        words: the command, word by word, as a shell would hand it over.
        directory: where it runs; the configuration file that `accelerate launch` names is read there.
    """
    environment, start, wrapper = _prefix(words)
    program = _program(words, start)
    if program is None:
        return Launch(kind=LaunchKind.OTHER, program_index=start, options_index=start, environment=environment)
    if program.kind is LaunchKind.PYTHON:
        launch = _python(words, program)
    else:
        launch = _launcher(words, program, Path(directory))
    if wrapper in _MANY_PROCESS_WRAPPERS:
        launch = _multiplied(words, start, launch)
    return replace(launch, environment=environment)


def _prefix(words: Sequence[str]) -> tuple[dict[str, str], int, str | None]:
    """Return the variables in front of the launcher, the launcher's index, and the last wrapper's name."""
    environment: dict[str, str] = {}
    wrapper: str | None = None
    index = 0
    while index < len(words):
        assignment = _ASSIGNMENT.fullmatch(words[index])
        name = Path(words[index]).name
        if assignment:
            environment[assignment["name"]] = assignment["value"]
            index += 1
        elif name in _ONE_PROCESS_WRAPPERS | _RUN_WRAPPERS | _MANY_PROCESS_WRAPPERS:
            launcher = next((i for i in range(index + 1, len(words)) if _starts_launch(words, i)), None)
            if launcher is None:
                return environment, index, None
            between = (_ASSIGNMENT.fullmatch(word) for word in words[index + 1 : launcher] if name == "env")
            environment |= {match["name"]: match["value"] for match in between if match}
            if wrapper not in _MANY_PROCESS_WRAPPERS:
                wrapper = name
            index = launcher
        else:
            return environment, index, wrapper
    return environment, 0, None


def _starts_launch(words: Sequence[str], index: int) -> bool:
    name = Path(words[index]).name
    wrappers = _ONE_PROCESS_WRAPPERS | _RUN_WRAPPERS | _MANY_PROCESS_WRAPPERS
    return name in wrappers or _program(words, index) is not None


def _program(words: Sequence[str], index: int) -> _Program | None:
    if index >= len(words):
        return None
    name = Path(words[index]).name
    if name in _PROGRAMS:
        return _Program(kind=_PROGRAMS[name], index=index, end=index + 1)
    if name == "accelerate" and list(words[index + 1 : index + 2]) == ["launch"]:
        return _Program(kind=LaunchKind.ACCELERATE, index=index, end=index + 2)
    if not _PYTHON.fullmatch(name):
        return None
    script, is_module = options.python_script(words, index + 1)
    if script is not None and is_module and words[script] in _MODULES:
        return _Program(kind=_MODULES[words[script]], index=index, end=script + 1)
    if script is not None and not is_module:  # python $(which torchrun)
        inner = _program(words, script)
        if inner is not None and inner.kind is not LaunchKind.PYTHON:
            return replace(inner, index=index)
    return _Program(kind=LaunchKind.PYTHON, index=index, end=index + 1)


def _python(words: Sequence[str], program: _Program) -> Launch:
    script, _ = options.python_script(words, program.end)
    launch = Launch(
        kind=LaunchKind.PYTHON,
        program_index=program.index,
        options_index=program.end,
        ranks=1,
        nodes=1,
        script_index=script,
    )
    return _with_script_arguments(words, launch)


def _launcher(words: Sequence[str], program: _Program, directory: Path) -> Launch:
    given = options.read(words, program.end, FLAGS[program.kind])
    path = given.text("config_file") if program.kind is LaunchKind.ACCELERATE else None
    file = _accelerate_config(directory / path) if path is not None else {}
    ranks, nodes = _size(program.kind, given, file)
    launch = Launch(
        kind=program.kind,
        program_index=program.index,
        options_index=program.end,
        ranks=ranks,
        nodes=nodes,
        port=_port(given),
        autotuning=given.argument("autotuning") if program.kind is LaunchKind.DEEPSPEED else None,
        accelerate_config=path,
        script_index=given.end if given.end < len(words) else None,
    )
    launch = _with_script_arguments(words, launch)
    if program.kind is LaunchKind.ACCELERATE and launch.config is None:
        return replace(launch, config=_config_of_accelerate(given, file))
    return launch


def _with_script_arguments(words: Sequence[str], launch: Launch) -> Launch:
    if launch.script_index is None:
        return launch
    start = launch.script_index + 1
    return replace(
        launch,
        config=arguments.config(words, start),
        settings=arguments.settings(words, start),
        is_hugging_face=arguments.is_hugging_face(words, start),
    )


def _port(given: Options) -> Argument | None:
    port = given.argument("master_port", "main_process_port")
    if port is not None:
        return port if port.text.isdecimal() else None
    endpoint = given.argument("rdzv_endpoint")
    if endpoint is None:
        return None
    host, colon, text = endpoint.text.rpartition(":")
    if not colon or not text.isdecimal() or text == "0":  # 0 is any free port
        return None
    return replace(endpoint, offset=endpoint.offset + len(host) + 1, text=text)


def _size(kind: LaunchKind, given: Options, file: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the world size and the machines, each None where it isn't said."""
    if kind is LaunchKind.DEEPSPEED:
        return _deepspeed_size(given)
    return _torchrun_size(given) if kind is LaunchKind.TORCHRUN else _accelerate_size(given, file)


def _deepspeed_size(given: Options) -> tuple[int | None, int | None]:
    """As deepspeed/launcher/runner.py: --num_gpus on each of --num_nodes, or the slots that --include lists."""
    include = given.text("include", "i")
    if include:
        hosts = [host.partition(":") for host in include.split("@")]
        slots = [len(listed.split(",")) if colon else None for _, colon, listed in hosts]
        return (None if None in slots else sum(slot for slot in slots if slot)), len(hosts)
    has_hosts = given.argument("hostfile", "H") is not None
    nodes = given.number("num_nodes") or (None if has_hosts else 1)
    return _product(given.number("num_gpus", "num_accelerators"), nodes), nodes


def _torchrun_size(given: Options) -> tuple[int | None, int | None]:
    """As torch/distributed/run.py: both default to 1; MIN:MAX is elastic; gpu, cpu and auto are the machine's."""
    nodes = given.number("nnodes") if "nnodes" in given.found else 1
    per_node = given.number("nproc_per_node") if "nproc_per_node" in given.found else 1
    return _product(per_node, nodes), nodes


def _accelerate_size(given: Options, file: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """As accelerate/commands/launch.py: --num_processes counts all machines; its file fills in what is not given."""
    return (
        given.number("num_processes") or _whole(file.get("num_processes")),
        given.number("num_machines") or _whole(file.get("num_machines")) or 1,
    )


def _config_of_accelerate(given: Options, file: Mapping[str, Any]) -> ConfigArgument | None:
    argument = given.argument("deepspeed_config_file")
    if argument is not None:
        return ConfigArgument(path=argument.text, flag=argument.flag, index=argument.index, offset=argument.offset)
    block = file.get("deepspeed_config")
    named = block.get("deepspeed_config_file") if isinstance(block, Mapping) else None
    return ConfigArgument(path=named, flag="deepspeed_config_file") if isinstance(named, str) else None


def _accelerate_config(path: Path) -> Mapping[str, Any]:
    """Read accelerate's configuration file; one that can't be read says nothing, and accelerate itself tells why."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return data if isinstance(data, Mapping) else {}


def _multiplied(words: Sequence[str], launcher: int, launch: Launch) -> Launch:
    """Under srun or mpirun a Python script is one rank of several; a launcher's own numbers stand."""
    if launch.kind is not LaunchKind.PYTHON:
        return launch
    before = options.read_anywhere(words, launcher)
    return replace(launch, ranks=before.number("ntasks", "n", "np"), nodes=before.number("nodes", "N"))


def _product(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first * second


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None
