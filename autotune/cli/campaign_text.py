"""The campaign file that `autotune init` writes: a line of comment for each key, and QUESTION where it can't tell."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from autotune.cli.drafting import Draft, about
from autotune.command import CommandTemplate

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./{}=-]+")
"""Words that need no quotes, placeholders among them."""
_PLAIN_YAML = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_WIDTH = 100
_SMALL_CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 1},
}
QUESTION = "QUESTION"


def text(draft: Draft, *, name: str, directory: str, ds_config: str | None, ranks: int) -> str:
    """Return the file.

    Args:
        draft: what was found.
        name: of the study.
        directory: where the command runs, from the file's folder.
        ds_config: path of the DeepSpeed configuration, from the file's folder.
        ranks: of one trial, where the command doesn't say.
    """
    lines = [
        "# A campaign of autotune: what to tune, where, how long, and by what.",
        f"# Lines marked {QUESTION} are for you to look at. Paths count from this file's folder.",
        "",
        "# Name of the study in the storage.",
        f"name: {_yaml(name)}",
        "",
        "# Your DeepSpeed configuration: trial 0 measures it, and the others start from it.",
        *_asked(draft.questions, "ds_config"),
        f"ds_config: {_yaml(ds_config) if ds_config is not None else json.dumps(_SMALL_CONFIG)}",
        "",
        *(_function() if draft.template is None else _command(draft, draft.template, directory)),
        "",
        *_hardware(draft, ranks),
        "",
        *(_EXECUTION if draft.template is None else ()),
        *_REST,
    ]
    return "\n".join(lines) + "\n"


def _function() -> list[str]:
    return [
        "# What is trained: a function of yours that returns an autotune.workload.TrainingWorkload, as module:function",
        "# (found in this file's folder), or the built-in byte-gpt. For your own training command instead:",
        "# autotune init -- torchrun --nproc_per_node 2 train.py --deepspeed ds_config.json",
        f"# {QUESTION}: what do you train? byte-gpt is a small GPT on the Python library's own text.",
        "workload:",
        "  function: byte-gpt",
        "  # arguments: {layers: 4}      # handed to the function as context.arguments",
        "  # activation_checkpointing: true   # your training recomputes activations today",
    ]


def _command(draft: Draft, template: CommandTemplate, directory: str) -> Iterator[str]:
    yield "# Your training command. In braces: what each trial puts in. {config} is the path of its DeepSpeed"
    yield "# configuration, {port} a free port, {KEY=VALUE} a setting of that file that your script takes as an"
    yield "# argument too, with your own value, where tuning starts. Add --OPTION {KEY=VALUE} for others."
    for key in draft.questions:
        if key not in ("ds_config", "ranks"):
            yield from _asked(draft.questions, key)
    yield "workload:"
    yield from _folded("command", template.words)
    yield "  # Where it runs."
    yield f"  directory: {_yaml(directory)}"
    if draft.environment:
        yield "  # Variables that stood in front of it."
        yield f"  environment: {json.dumps(dict(draft.environment))}"
    yield "  # The micro-batches that your script really feeds are checked against the configuration by the first"
    yield "  # dimension of the model's first tensor input. Where that doesn't count samples:"
    yield "  # batch_dimension: unknown"


def _hardware(draft: Draft, ranks: int) -> Iterator[str]:
    yield "# Where one trial runs."
    known = draft.launch.ranks if draft.launch is not None else None
    yield from _asked(draft.questions, "ranks")
    if known is not None:
        yield "hardware:"
        yield f"  # The command starts {known} itself, so this may be left out."
        yield f"  ranks: {known}"
    else:
        yield "hardware:"
        yield f"  ranks: {ranks}"
    yield "  # accelerator: cpu             # by default cuda where there is a GPU"
    yield "  # memory_limit_bytes: 8000000000   # of one rank's process; above it the trial is OUT_OF_MEMORY"


_EXECUTION = """\
# How trials start: warm, as forks of a process that has loaded everything, or cold, as processes of
# their own, which takes seconds more. cold_check_every: trials after which one runs again cold, to
# compare its losses; 0: never.
execution: warm
# cold_check_every: 8
""".splitlines()

_REST = """\
# How long one trial trains, after start-up: exactly one of seconds, steps (of the optimizer) or
# samples. It ends sooner once the median of its step time is known within precision (half the 95 %
# interval, relative; 0: never sooner).
budget:
  seconds: 20
  warmup_steps: 2                # first steps, left out of the timing
  precision: 0.03                # 3 %

# What ends trials early that are clearly worse than the best: percentile, or none.
pruner: percentile

# memory_filter: off             # run what can't fit in memory by the calibrated performance model, too
# calibrate_from: STUDY          # an earlier study on the same hardware, for that model to start from

# R = alpha * throughput / yours + beta * convergence / yours: R = 1 is as good as what you have.
objective: {alpha: 0.5, beta: 0.5}

# Trials in all, your own configuration's included.
trials: 32

# What proposes configurations: random, tpe, gp, cmaes, ppo, ppo-scratch, calibrated or deepspeed-autotuner.
searcher: tpe
# warm_start: portfolio          # first a few points that are good across workloads, whichever the searcher
seed: 0

# When the search is over its leaders run again in turns with yours, so that luck names no winner.
# candidates: how many (0: no finals); rounds: runs of each before the worse half drops out (3 or
# more); runs: of all together, at most.
# finals: {candidates: 4, rounds: 3, runs: 20}
# noise_floor: 0.08              # R that differs by less is a tie; by default 0.05 for one rank
# baseline_every: 8              # trials after which yours runs again, to see a drift; 0: never

# Where the study is kept: any URL that Optuna takes. --storage says another one.
storage: sqlite:///autotune.db

# Where the logs of trials go.
run_directory: autotune_runs

# Where trials run: ray (the default), or local, which does without Ray.
# runner: local
# ray_address: 10.0.0.1:6379      # a running Ray cluster, instead of this machine
# placement:
#   slots: 4                      # trials at once; by default what GPUs, or nodes, are enough for
#   strategy: strict_pack         # ranks over nodes: pack, spread, strict_pack or strict_spread
#   labels: {pool: tuning}        # only nodes with this label (ray start --labels pool=tuning)
#   ship_code: true               # send the code to the nodes; else each reads it by the same path
#   environment: {HF_HOME: /mnt}  # of the ranks' processes

# Changes to the search space; `autotune space` shows it.
# space:
#   global_batch_size: 256                        # fixed: accumulation is derived
#   fix: {precision: bf16}                        # one value in every trial
#   remove: [optimizer.params.lr]                 # stays as your configuration has it
#   narrow:
#     train_micro_batch_size_per_gpu: [4, 8, 16]  # these levels only

# Seconds that each stage of a trial may take before it ends as TIMEOUT.
# deadlines:
#   initialize_s: 600            # deepspeed.initialize
#   first_step_s: 600            # may compile ops""".splitlines()


def _asked(questions: Mapping[str, str], key: str) -> Iterator[str]:
    if key in questions:
        first, *more = _wrapped(f"{QUESTION}: {about(key, questions[key])}")
        yield f"# {first}"
        yield from (f"#   {line}" for line in more)


def _wrapped(sentence: str) -> list[str]:
    lines, line = [], ""
    for word in sentence.split(" "):
        if line and len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _folded(key: str, words: Sequence[str]) -> Iterator[str]:
    """Write a command as folded text, an option with its value on each line; as a list where it can't be folded."""
    if any("\n" in word for word in words):
        yield f"  {key}: {json.dumps(list(words))}"
        return
    lines: list[list[str]] = [[]]
    for word in words:
        length = sum(len(_quoted(earlier)) + 1 for earlier in lines[-1]) + len(_quoted(word))
        if lines[-1] and (length > _WIDTH or (word.startswith("--") and length > _WIDTH // 2)):
            lines.append([])
        lines[-1].append(word)
    yield f"  {key}: >-"
    yield from (f"    {' '.join(_quoted(word) for word in line)}" for line in lines)


def _quoted(word: str) -> str:
    return word if _PLAIN.fullmatch(word) else shlex.quote(word)


def _yaml(value: str) -> str:
    return value if _PLAIN_YAML.fullmatch(value) and value.lower() not in _YAML_WORDS else json.dumps(value)


_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
