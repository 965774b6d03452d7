"""The script evaluator: one configuration measured by running the user's own training command, unchanged."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from autotune import command as commands
from autotune import ds_config as config_file
from autotune import launchers
from autotune.command import CommandTemplate
from autotune.errors import CampaignError
from autotune.evaluators import op_cache
from autotune.evaluators.attempts import Attempts
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.protocol import RankCommand, RankHost, ShouldPrune, never_prune
from autotune.evaluators.rank_files import folder_name
from autotune.evaluators.script_files import (
    ASSIGNMENT_FILE,
    CONFIG_FILE,
    OUTPUT_FOLDER,
    ZERO3_CONFIG_FILE,
    ScriptAssignment,
)
from autotune.trials import Outcome, Stage, TrialRequest

LOG = "output"
"""Name of a script's one log: its launcher mixes what the ranks print."""
PRECISION_NAMES = frozenset({config_file.PRECISION, commands.MIXED_PRECISION, "bf16.enabled", "fp16.enabled"})
"""Placeholders that say the precision, each in its own way."""
AUTOTUNING_IS_OFF = (
    "autotuning.enabled is true in your configuration, and was sent as false: DeepSpeed's own autotuner would end the "
    "run after a few steps"
)
THREADS_VARIABLE = "OMP_NUM_THREADS"
"""The guard sets it where the user doesn't: only on the trial's own node can processors be counted."""
ENVIRONMENT: Mapping[str, str] = {"PYTHONUNBUFFERED": "1", "WANDB_MODE": "disabled"}
"""What a trial's script gets unless the user says otherwise: trials are not runs to be tracked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEvaluator:
    """Measures configurations by a user's script. An `autotune.evaluators.protocol.Evaluator`.

    The command runs on one host, which starts all ranks; `autotune.evaluators.script_worker` is beside it there.

    Raises:
        CampaignError: when the command has no place for the configuration, or `world_size` is not above 0.
    """

    command: CommandTemplate
    directory: str
    """Where the command runs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    world_size: int
    """Ranks that the command starts."""
    device: Literal["cpu", "cuda"] = "cpu"
    own_config: Mapping[str, Any]
    """The user's configuration as it is, with what it leaves to the script ("auto")."""
    searched: tuple[str, ...]
    """Names of what the campaign decides: searched, fixed or derived."""
    counts_samples: bool = True
    """Whether the first dimension of the model's first tensor input counts samples."""
    run_directory: str
    """A trial's files and log go to `<run_directory>/trial-<number>`, on the node where it runs."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    memory_limit_bytes: int | None = None
    """Resident size per rank; above it the trial is OUT_OF_MEMORY. None: only the machine's own limit."""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise CampaignError(f"ranks: got {self.world_size}; a DeepSpeed trial needs at least 1")
        if not self.command.names & {commands.CONFIG, commands.CONFIG_BASE64}:
            raise CampaignError(
                f"workload.command: got {self.command}; the trial's configuration has no place in it. Put {{config}} "
                "where your script takes the path of its DeepSpeed configuration"
            )

    @property
    def ranks(self) -> int:
        """One host runs the command."""
        return 1

    def prepare(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        if is_own_environment(self.command.words):
            op_cache.prepare(ds_configs, device=self.device, progress=progress)

    def evaluate(
        self,
        request: TrialRequest,
        *,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
        should_prune: ShouldPrune = never_prune,
    ) -> Outcome:
        if len(hosts) != 1:
            raise CampaignError(f"hosts: got {len(hosts)}; a script's command runs on one, and starts its ranks itself")
        attempts = Attempts(
            request=request,
            commands=lambda address, port: [self._guard(request, address=address, port=port)],
            deadlines=self.deadlines,
            supervised_there=True,
        )
        outcome = attempts.run(hosts=hosts, progress=progress, cancelled=cancelled, should_prune=should_prune)
        logs, nodes = (dict(zip([LOG], each.values(), strict=False)) for each in (outcome.logs, outcome.nodes))
        outcome = replace(outcome, logs=logs, nodes=nodes)
        if outcome.measurement is None or not config_file.get(self.own_config, config_file.AUTOTUNING):
            return outcome
        remarks = (*outcome.measurement.remarks, AUTOTUNING_IS_OFF)
        return replace(outcome, measurement=replace(outcome.measurement, remarks=remarks))

    def render(self, request: TrialRequest, *, folder: Path, port: int) -> tuple[str, ...]:
        """Return the trial's command.

        Raises:
            CampaignError: when it has a placeholder that is none.
        """
        given = {
            commands.CONFIG: str(folder / config_name(request.ds_config)),
            commands.CONFIG_BASE64: config_file.as_base64(self.sent(request)),
            commands.OUTPUT: str(folder / OUTPUT_FOLDER),
            commands.PORT: port,
            commands.SEED: request.seed,
            commands.TRIAL: request.number,
        }
        return self.command.render({**values_of(request), **given})

    def sent(self, request: TrialRequest) -> dict[str, Any]:
        """Return the configuration that the script reads: what it fills in itself is left "auto"."""
        return config_file.as_sent(
            request.ds_config, self.own_config, searched=self._searched_keys(), passed=passed_keys(self.command)
        )

    def wanted(self, request: TrialRequest) -> dict[str, Any]:
        """Return what the engine should run, by dotted keys; of what the script fills in ("auto"), what is searched."""
        sent, concrete = config_file.leaves(self.sent(request)), config_file.leaves(request.ds_config)
        searched = {key: concrete[key] for key in self._searched_keys() if key in concrete}
        return {key: value for key, value in {**sent, **searched}.items() if key in sent and value != config_file.AUTO}

    def _searched_keys(self) -> tuple[str, ...]:
        return tuple(key for name in self.searched for key in config_file.keys_of(name))

    def _guard(self, request: TrialRequest, *, address: str, port: int) -> RankCommand:
        folder = Path(self.run_directory).absolute() / folder_name(request)
        launch = launchers.recognise(self.command.words, directory=self.directory)
        fixed_port = launch.port.text if launch.port is not None else ""
        assignment = ScriptAssignment(
            request=request,
            command=self.render(request, folder=folder, port=port),
            directory=self.directory,
            environment=self._environment(launch, address=address, port=port),
            ranks=self.world_size,
            device=self.device,
            wanted=self.wanted(request),
            searched=self._searched_keys(),
            counts_samples=self.counts_samples,
            fixed_port=int(fixed_port) if fixed_port.isdigit() and fixed_port != "0" else None,
            reserved_port=port,
            deadlines=self.deadlines,
            memory_limit_bytes=self.memory_limit_bytes,
        )
        return RankCommand(
            rank=0,
            argv=("-P", "-m", "autotune.evaluators.script_worker"),
            environment={},
            directory=str(folder),
            files={
                ASSIGNMENT_FILE: assignment.to_text(),
                config_name(request.ds_config): config_file.render(self.sent(request)),
            },
        )

    def _environment(self, launch: launchers.Launch, *, address: str, port: int) -> dict[str, str]:
        environment = {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
        if THREADS_VARIABLE in os.environ:
            environment[THREADS_VARIABLE] = os.environ[THREADS_VARIABLE]
        if self.device == "cpu":
            environment |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        if address.startswith("127."):
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        if op_cache.ROOT_VARIABLE in os.environ:
            environment[op_cache.ROOT_VARIABLE] = os.environ[op_cache.ROOT_VARIABLE]
        if launch.kind is launchers.LaunchKind.PYTHON:  # no launcher says who it is, so we do
            environment |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return {**environment, **self.environment}


def values_of(request: TrialRequest) -> dict[str, Any]:
    """Return the value of every setting of a trial that a placeholder can name."""
    return {
        **settings_of(request.ds_config),
        **request.point,
        config_file.ACTIVATION_CHECKPOINTING: request.activation_checkpointing,
    }


def settings_of(ds_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration says, by every name that a placeholder can have."""
    precision = config_file.precision_of(ds_config)
    return {
        **config_file.settings_of(ds_config),
        config_file.PRECISION: precision,
        "bf16.enabled": precision == "bf16",
        "fp16.enabled": precision == "fp16",
        commands.MIXED_PRECISION: "no" if precision == "fp32" else precision,
    }


def passed_keys(command: CommandTemplate) -> frozenset[str]:
    """Return the DeepSpeed keys whose values a command passes to the script."""
    names = set(command.names)
    if names & PRECISION_NAMES:
        names |= {*config_file.keys_of(config_file.PRECISION), config_file.PRECISION}
    return frozenset(names)


def config_name(ds_config: Mapping[str, Any]) -> str:
    """Return the name of a trial's configuration file."""
    return ZERO3_CONFIG_FILE if config_file.get(ds_config, config_file.STAGE) == 3 else CONFIG_FILE


def resolved(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command with its program found: as the shell does, else beside this Python."""
    beside = Path(sys.executable).parent / words[0]
    if shutil.which(words[0]) is None and beside.exists():
        return (str(beside), *words[1:])
    return tuple(words)


def is_own_environment(words: Sequence[str]) -> bool:
    """Say whether a command runs in the environment of this Python, so that its compiled ops fit."""
    launch = launchers.recognise(words)
    program = resolved(words[launch.program_index :])[0]
    found = shutil.which(program)
    return found is not None and Path(found).parent == Path(sys.executable).parent
