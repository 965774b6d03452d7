"""Pre-training: behaviour cloning, then Stable-Baselines3's PPO on simulated studies, in legs with checkpoints."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy

from autotune import whole_file
from autotune.errors import SearcherError
from autotune_envs.policy_file import save
from autotune_envs.policy_network import PolicyNetwork
from autotune_envs.policy_space import policy_space
from autotune_envs.simulation import HELD_OUT, TRAINING, Cases, draw_cases
from autotune_envs.simulation.grid import Rows, offsets
from autotune_envs.simulation.playing import play
from autotune_envs.training.isolation import isolated
from autotune_envs.training.learning_curve import FIGURES, Row, picture
from autotune_envs.training.masked_gate import MaskedCopyGatePolicy, StretchedScores
from autotune_envs.training.simulated_vec_env import SimulatedVecEnv

CHECKPOINT, CURVE, PICTURE = "checkpoint.npz", "learning_curve.csv", "learning_curve.svg"
_CLIMBS = 8
_STRIDE = 4
"""Every so many steps of a rollout are rehearsed: neighbours say much the same."""
_BUILD, _LEG, _VALIDATE = range(3)
"""What randomness is drawn for; each is named by (seed, one of these, number of the leg)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingSettings:
    """Of the whole training, by Stable-Baselines3's names where it has them.

    Raises:
        SearcherError: when one is out of range.
    """

    seed: int = 0
    steps: int = 1_500_000
    """Environment steps of PPO, rounded up to whole legs."""
    workloads: int = 2000
    """Simulated workloads to train on, of the seeds `TRAINING`."""
    held_out: int = 64
    """Workloads of the learning curve, of the seeds `HELD_OUT`."""
    studies: int = 1024
    """Environments stepped at once."""
    n_steps: int = 16
    batch_size: int = 4096
    n_epochs: int = 3
    leg_updates: int = 12
    """Updates of PPO between two checkpoints; studies begin anew with each leg, so that a leg depends on its number
    alone."""
    critic_legs: int = 1
    """Of PPO's, in which the critic alone learns: a critic that knows nothing would undo what cloning taught."""
    rehearsal: float = 1.0
    """Weight of the step of cloning that follows each rollout; 0: none."""
    cloning_legs: int = 4
    """Legs of behaviour cloning, before those of PPO."""
    cloning_updates: int = 1000
    """Of a leg of cloning."""
    cloning_rate: float = 1e-3
    """Learning rate at the first of them; it falls like PPO's."""
    cloning_steps: int = 2
    """Environment steps whose observations make one batch of cloning."""
    learning_rate: float = 2e-4
    """At PPO's first leg; it falls in a straight line from leg to leg."""
    learning_rate_floor: float = 0.1
    """Share of it that is left at the end."""
    gamma: float = 0.97
    gae_lambda: float = 0.95
    clip_range: float = 0.15
    ent_coef: float = 0.004
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    layers: tuple[int, ...] = (128, 128)
    """Of the policy's and of the value's network."""
    gate_init: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "workloads", "held_out", "studies", "n_steps", "leg_updates", "cloning_legs"):
            if getattr(self, name) < 1:
                raise SearcherError(f"pretrain.{name}: got {getattr(self, name)}; it must be at least 1")
        for name, seeds in (("workloads", TRAINING), ("held_out", HELD_OUT)):
            if getattr(self, name) > len(seeds):
                raise SearcherError(f"pretrain.{name}: got {getattr(self, name)}; there are seeds for {len(seeds)}")

    @property
    def leg_steps(self) -> int:
        return self.leg_updates * self.n_steps * self.studies

    @property
    def ppo_legs(self) -> int:
        return -(-self.steps // self.leg_steps)

    @property
    def legs(self) -> int:
        return self.cloning_legs + self.ppo_legs

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()


class Pretraining:
    """One training in a folder: what it has done stands there after each leg, and it goes on from there.

    The folder holds the checkpoint, the learning curve (CSV and SVG), and the best policy so far with its card: the one
    of the leg with the highest mean share on held-out workloads. The same settings lead to the same policy on the same
    versions and processor, however often the training is interrupted.

    Args:
        folder: made where it does not exist.
        settings: of the training.
        told: hears of each leg's row.

    Raises:
        SearcherError: when the folder holds a training of other settings.
    """

    def __init__(
        self, folder: Path, settings: PretrainingSettings, *, told: Callable[[Row], None] = lambda _: None
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._told = told
        self._rows: list[Row] = []
        self._seconds = 0.0
        self._check_folder()

    def run(self) -> list[Row]:
        """Train to the end; return the learning curve, a row for each leg."""
        settings, begun_s = self._settings, time.process_time()
        cases = draw_cases(TRAINING[: settings.workloads])
        held_out = draw_cases(HELD_OUT[: settings.held_out], climbs=_CLIMBS)
        with isolated(settings.seed, _BUILD) as generator:
            model = self._model(SimulatedVecEnv(cases, settings.studies, generator=generator))
        done = self._resume(model)
        for leg in range(done + 1, settings.legs + 1):
            with isolated(settings.seed, _LEG, leg) as generator:
                env = SimulatedVecEnv(cases, settings.studies, generator=generator)
                if leg <= settings.cloning_legs:
                    self._clone(model, env, cases, leg)
                else:
                    self._learn(model, env, cases, leg - settings.cloning_legs)
            self._seconds += time.process_time() - begun_s
            begun_s = time.process_time()
            self._finish_leg(model, held_out, leg)
        return self._rows

    def _model(self, env: SimulatedVecEnv) -> PPO:
        settings = self._settings
        model = PPO(
            MaskedCopyGatePolicy,
            env,
            learning_rate=settings.learning_rate,
            n_steps=settings.n_steps,
            batch_size=settings.batch_size,
            n_epochs=settings.n_epochs,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            clip_range=settings.clip_range,
            ent_coef=settings.ent_coef,
            vf_coef=settings.vf_coef,
            max_grad_norm=settings.max_grad_norm,
            policy_kwargs={
                "net_arch": {"pi": list(settings.layers), "vf": list(settings.layers)},
                "activation_fn": torch.nn.ReLU,
                "gate_init": settings.gate_init,
                "features_extractor_class": StretchedScores,
            },
            device="cpu",
        )
        model.set_logger(Logger(folder=None, output_formats=[]))
        return model

    def _clone(self, model: PPO, env: SimulatedVecEnv, cases: Cases, leg: int) -> None:
        """Teach the policy the hidden optimum of each study, in the states that the policy itself comes to."""
        settings = self._settings
        policy: MaskedCopyGatePolicy = model.policy  # type: ignore[assignment]
        whole = settings.cloning_legs * settings.cloning_updates
        observations = env.reset()
        for update in range((leg - 1) * settings.cloning_updates, leg * settings.cloning_updates):
            seen, targets = [], []
            for _ in range(settings.cloning_steps):
                seen.append(observations)
                targets.append(cases.optimum[env.studies.case])
                with torch.no_grad():
                    actions = policy.get_distribution(torch.as_tensor(observations)).get_actions().numpy()
                env.step_async(actions)
                observations, _, _, _ = env.step_wait()
            _set_learning_rate(policy, self._falling(settings.cloning_rate, update / whole))
            _descend(policy, _cloning_loss(policy, np.concatenate(seen), np.concatenate(targets)))

    def _learn(self, model: PPO, env: SimulatedVecEnv, cases: Cases, leg: int) -> None:
        """Learn one leg of PPO, counted from 1."""
        settings = self._settings
        model.set_env(env)
        model.learning_rate = self._falling(settings.learning_rate, (leg - 1) / max(1, settings.ppo_legs - 1))
        model._setup_lr_schedule()  # noqa: SLF001 (SB3's own way to change it)
        _set_learning_rate(model.policy, model.learning_rate)  # SB3 does so after the first rehearsal only
        actor_trains = leg > settings.critic_legs
        for part in (model.policy.mlp_extractor.policy_net, model.policy.action_net):
            part.requires_grad_(actor_trains)
        rehearsal = Rehearsal(cases, weight=settings.rehearsal) if actor_trains and settings.rehearsal else None
        model.learn(settings.leg_steps, reset_num_timesteps=False, callback=rehearsal)

    def _falling(self, rate: float, progress: float) -> float:
        return rate * (1 - (1 - self._settings.learning_rate_floor) * progress)

    def _finish_leg(self, model: PPO, held_out: Cases, leg: int) -> None:
        """Measure the policy on held-out workloads, and keep everything."""
        settings = self._settings
        network = network_of(model.policy)
        with isolated(settings.seed, _VALIDATE) as generator:
            played = play(network, held_out, trials=max(FIGURES), generator=generator)
        means = played.best_share.mean(axis=1)
        row = Row(
            leg=leg,
            steps=max(0, leg - settings.cloning_legs) * settings.leg_steps,
            cpu_s=self._seconds,
            shares=tuple(float(means[trials - 1]) for trials in FIGURES),
            failed_after_fourth=float(played.failed[4:].mean()),
        )
        self._rows.append(row)
        best = max(self._rows, key=lambda one: one.mean_share)
        if best is row:
            save(network, self._folder, self._card(row))
        self._keep(model, leg)
        self._told(row)

    def _card(self, row: Row) -> dict[str, Any]:
        settings = self._settings
        return {
            "what": "PPO policy that proposes DeepSpeed configurations, pre-trained on simulated workloads",
            "made_by": f"autotune pretrain --seed {settings.seed} --steps {settings.steps}",
            "data": {
                "training": f"{settings.workloads} simulated workloads, seeds {TRAINING[0]} to "
                f"{TRAINING[settings.workloads - 1]} without 1000 to 1999; no real trial",
                "held_out": f"{settings.held_out} simulated workloads, seeds {HELD_OUT[0]} to "
                f"{HELD_OUT[settings.held_out - 1]}, four starting configurations each",
            },
            "settings": asdict(settings),
            "leg": row.leg,
            "cpu_s_so_far": round(row.cpu_s),
            "scores": {
                "mean_share_of_best_known_r_after_trials": {
                    str(trials): round(share, 4) for trials, share in zip(FIGURES, row.shares, strict=True)
                },
                "failed_trials_after_the_fourth": round(row.failed_after_fourth, 4),
                "of": "the held-out workloads; the leg was chosen by them",
            },
            "limits": [
                "Trained on the performance model's word alone: no real trial was part of it.",
                "It knows the levels of the default space; other levels stand at the nearest, other dimensions don't.",
                "GPUs from 16 to 80 GB and 2 to 64 ranks, and small models on CPUs; objective alpha = beta = 0.5.",
            ],
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "torch", "stable-baselines3")},
            },
        }

    def _keep(self, model: PPO, leg: int) -> None:
        arrays = {f"policy/{name}": weights.numpy() for name, weights in model.policy.state_dict().items()}
        for position, moments in model.policy.optimizer.state_dict()["state"].items():
            for name, moment in moments.items():
                arrays[f"optimizer/{position}/{name}"] = moment.numpy()
        arrays["progress"] = np.array([leg, model.num_timesteps, model._n_updates])  # noqa: SLF001
        buffer = io.BytesIO()
        np.savez(buffer, settings=np.array(self._settings.digest), **arrays)
        rows = io.StringIO()
        writer = csv.writer(rows, lineterminator="\n")
        writer.writerow(Row.HEADER)
        writer.writerows(row.cells for row in self._rows)
        whole_file.write_all({self._folder / CURVE: rows.getvalue(), self._folder / PICTURE: picture(self._rows)})
        neighbour = self._folder / f"{CHECKPOINT}.new"
        neighbour.write_bytes(buffer.getvalue())
        neighbour.replace(self._folder / CHECKPOINT)

    def _resume(self, model: PPO) -> int:
        """Take up a checkpoint; return how many legs it has done."""
        path = self._folder / CHECKPOINT
        if not path.exists():
            return 0
        arrays = _checkpoint(path)
        weights = {name.removeprefix("policy/"): torch.tensor(a) for name, a in arrays.items() if name[:7] == "policy/"}
        model.policy.load_state_dict(weights)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, array in arrays.items():
            if name.startswith("optimizer/"):
                _, position, moment = name.split("/")
                moments.setdefault(int(position), {})[moment] = torch.tensor(array)
        optimizer = model.policy.optimizer
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        done, model.num_timesteps, model._n_updates = (int(number) for number in arrays["progress"])  # noqa: SLF001
        with (self._folder / CURVE).open(encoding="utf-8", newline="") as file:
            self._rows = [Row.of(cells) for cells in list(csv.reader(file))[1:]][:done]
        self._seconds = self._rows[-1].cpu_s
        return done

    def _check_folder(self) -> None:
        path = self._folder / CHECKPOINT
        self._folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and str(_checkpoint(path)["settings"]) != self._settings.digest:
            raise SearcherError(f"{path}: it is of a training with other settings; give another --output, or delete it")


def network_of(policy: torch.nn.Module) -> PolicyNetwork:
    """Return the actor of a `MaskedCopyGatePolicy` as numpy arrays."""
    weights = {name: array.detach().numpy().copy() for name, array in policy.state_dict().items()}
    layers = sorted({int(name.split(".")[2]) for name in weights if name.startswith("mlp_extractor.policy_net.")})

    def layer(name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return weights[f"{name}.weight"], weights[f"{name}.bias"]

    return PolicyNetwork(
        hidden=tuple(layer(f"mlp_extractor.policy_net.{place}") for place in layers),
        logits=layer("action_net.head.logits"),
        gates=layer("action_net.head.gates"),
    )


class Rehearsal(BaseCallback):
    """Repeats a step of cloning after each rollout, on the rollout's own states.

    PPO alone forgets what it seldom needs: without, in a run of 1.5 million steps at a learning rate of 5e-4, the best
    after 64 trials fell from .998 to .986 of the best known, while that after the first rose.

    Args:
        cases: of the environment.
        weight: of the cross entropy.
    """

    def __init__(self, cases: Cases, *, weight: float) -> None:
        super().__init__()
        self._cases = cases
        self._weight = weight
        self._targets: list[Rows] = []

    def _on_rollout_start(self) -> None:
        self._targets = [self._optimum()]

    def _on_step(self) -> bool:
        self._targets.append(self._optimum())
        return True

    def _on_rollout_end(self) -> None:
        policy: MaskedCopyGatePolicy = self.model.policy  # type: ignore[assignment]
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        seen, targets = buffer.observations[::_STRIDE], np.stack(self._targets[:-1])[::_STRIDE]
        loss = _cloning_loss(policy, seen.reshape(-1, seen.shape[-1]), targets.reshape(-1, targets.shape[-1]))
        _descend(policy, self._weight * loss)

    def _optimum(self) -> Rows:
        env: SimulatedVecEnv = self.training_env  # type: ignore[assignment]
        return self._cases.optimum[env.studies.case]


def _set_learning_rate(policy: ActorCriticPolicy, rate: float) -> None:
    for group in policy.optimizer.param_groups:
        group["lr"] = rate


def _descend(policy: MaskedCopyGatePolicy, loss: torch.Tensor) -> None:
    policy.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    policy.optimizer.step()


def _cloning_loss(policy: MaskedCopyGatePolicy, observations: NDArray[np.float32], targets: Rows) -> torch.Tensor:
    """Return the mean cross entropy towards the targets; levels that are masked have no say."""
    batch, wanted = torch.as_tensor(observations), torch.as_tensor(targets)
    logits = policy.logits(batch)
    mask = batch[:, -logits.shape[1] :]
    losses = []
    for place, (size, offset) in enumerate(zip(policy_space().sizes, offsets().tolist(), strict=True)):
        allowed = mask[:, offset : offset + size].gather(1, wanted[:, place : place + 1])[:, 0]
        loss = torch.nn.functional.cross_entropy(logits[:, offset : offset + size], wanted[:, place], reduction="none")
        losses.append(torch.where(allowed > 0, loss, 0.0).mean())
    return torch.stack(losses).sum()


def _checkpoint(path: Path) -> Mapping[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as problem:
        raise SearcherError(f"{path}: no checkpoint that can be read: {problem}; delete it to begin anew") from problem
