"""PPO as a searcher: it learns from the trials of one study while they are told, and proposes the next ones."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.errors import SearcherError, SpaceExhausted
from autotune.space import SearchSpace
from autotune.trials import Point, Trial
from autotune_envs.features import WorkloadFeatures
from autotune_envs.observation import Encoding, StudyObserver, Vector, action_space
from autotune_envs.reward import RelativeScore, Reward
from autotune_envs.training.array_text import from_text, to_text
from autotune_envs.training.ask_tell_ppo import AskTellPpo
from autotune_envs.training.isolation import isolated
from autotune_envs.training.saved_policy import SavedPolicy
from autotune_envs.training.settings import PpoSettings
from autotune_envs.training.transition import Transition, stack, unstack

_LOG = logging.getLogger(__name__)
_BUILD, _ASK, _UPDATE = range(3)
"""What randomness is drawn for; each draw is named by (seed, one of these, how many before it)."""
_STATE = {"calls", "networks", "open", "rollout"}
_DRAWS_BEFORE_ENUMERATION = 256
"""So many known points in a row mean that most of the space is known, so that listing the rest is cheap."""


class PpoSearcher:
    """Proposes by Stable-Baselines3's PPO; implements `autotune.searchers.Searcher`.

    `ask` draws actions from the policy until one is unknown; `tell` turns the trial into a reward, and every `n_steps`
    asked trials train the policy by PPO's own update. Nothing is rounded up to `n_steps`: a rest of the budget is
    proposed all the same. Trials that were never asked (the baseline, another searcher's) are observed, not trained on.

    All randomness is named by the seed and the number of the call, and global generators are left as they were.

    With several asks open, a trial is rewarded against the best at the time it is told. It goes into the update that is
    next then, with the log-probability under the policy that drew it, which an update may have changed since: PPO's
    ratio corrects for that (Schulman et al. (2017), "Proximal Policy Optimization Algorithms", section 3). A rollout is
    in the order of its asks, so that the order of its results doesn't matter to the update but through the rewards.
    Asks that were lost with their controller are proposed again first, and learnt from as if nothing had happened.

    Args:
        space: what is searched.
        trial_budget: trials of the study in all, the baseline included; the learning rate and the observation go by it.
        seed: of the policy's weights, its draws and its updates.
        features: what is known of the workload and the hardware.
        reward: what a trial is worth; by default the one that teaches most within one study.
        settings: of PPO.
        policy: a policy that Stable-Baselines3 trained on `DeepSpeedTuningEnv`, to start from.

    Raises:
        SearcherError: when `policy` was trained for another space.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        trial_budget: int,
        seed: int = 0,
        features: WorkloadFeatures | None = None,
        reward: Reward | None = None,
        settings: PpoSettings | None = None,
        policy: SavedPolicy | None = None,
    ) -> None:
        self._space = space
        self._trial_budget = trial_budget
        self._seed = seed
        self._reward = reward or RelativeScore()
        self._settings = settings or PpoSettings()
        self._observer = StudyObserver(space, features or WorkloadFeatures())
        self._known: set[Encoding] = set()
        self._open: dict[Encoding, Transition] = {}
        self._lost: deque[Encoding] = deque()
        self._rollout: list[Transition] = []
        self._told: list[tuple[int, str]] = []
        self._counted = 0
        self._asks = 0
        self._updates = 0
        with isolated(seed, _BUILD):
            self._ppo = AskTellPpo(self._observer.observation_space(), action_space(space.sizes), self._settings)
        if policy is not None:
            policy.check(space.sizes)
            self._ppo.load_weights(policy.weights)
        self._networks: str | None = None

    def ask(self) -> Point:
        while self._lost:
            lost = self._lost.popleft()
            if lost in self._open:
                return self._space.decode(lost)
        if len(self._known) >= self._space.count:
            raise SpaceExhausted(f"all {self._space.count} points of the space have been tried; widen it to go on")
        observation = self._observation()
        with isolated(self._seed, _ASK, self._asks) as generator:
            encoding, transition = self._choose(observation, generator)
        self._known.add(encoding)
        self._open[encoding] = replace(transition, ask=self._asks)
        self._asks += 1
        return self._space.decode(encoding)

    def tell(self, trial: Trial) -> None:
        """Learn from a finished trial; telling one again changes nothing."""
        encoding = self._encoding(trial)
        transition = self._open.pop(encoding, None) if encoding is not None else None
        name = (trial.number, trial.config_hash)
        if transition is None and name in self._told:
            return
        best_before = self._observer.best_score
        self._hear(trial, encoding)
        if transition is None or not trial.counts or not self._settings.learn:
            return
        self._rollout.append(replace(transition, reward=self._reward(trial, best_before=best_before)))
        if len(self._rollout) == self._settings.n_steps:
            rollout = sorted(self._rollout, key=lambda transition: transition.ask)
            with isolated(self._seed, _UPDATE, self._updates):
                self._ppo.update(rollout, self._observation(), progress=self._progress())
            self._updates += 1
            self._rollout = []
            self._networks = None

    def state(self) -> Mapping[str, str]:
        """Return four texts; 'networks', the large one (0.5 MB by default), changes with an update only."""
        calls: dict[str, Any] = {
            "asks": self._asks,
            "updates": self._updates,
            "told": self._told,
            "known": sorted(self._known),
        }
        if self._networks is None:
            self._networks = to_text(self._ppo.arrays())
        return {
            "calls": json.dumps(calls),
            "networks": self._networks,
            "open": to_text(stack(list(self._open.values()))),
            "rollout": to_text(stack(self._rollout)),
        }

    def restore(self, state: Mapping[str, str], history: list[Trial]) -> None:
        """Take up where `state` was taken, then learn the trials of `history` that it was not told of.

        Raises:
            SearcherError: when the state can't be read or is of other settings, or this searcher has been used.
        """
        if self._asks or self._told:
            raise SearcherError("searcher.restore: it has proposed or learnt already; restore a new one")
        if state:
            self._take_up(state, {(trial.number, trial.config_hash): trial for trial in history})
        for trial in history:
            if (trial.number, trial.config_hash) not in self._told:
                self.tell(trial)
        self._lost.extend(self._open)

    def _take_up(self, state: Mapping[str, str], trials: Mapping[tuple[int, str], Trial]) -> None:
        if set(state) != _STATE:
            raise SearcherError(f"searcher state: got {', '.join(sorted(state))}; another searcher kept it, not PPO")
        calls = json.loads(state["calls"])
        self._ppo.load_arrays(from_text(state["networks"]))
        self._networks = state["networks"]
        self._rollout = unstack(from_text(state["rollout"]))
        for transition in unstack(from_text(state["open"])):
            self._open[self._canonical(transition)] = transition
        for number, config_hash in calls["told"]:
            trial = trials.get((number, config_hash))
            if trial is None:
                _LOG.warning("trial %d, of which the searcher had learnt, is gone from the study", number)
                continue
            self._hear(trial, self._encoding(trial))
        self._asks, self._updates = calls["asks"], calls["updates"]
        self._known.update(tuple(encoding) for encoding in calls["known"])

    def _hear(self, trial: Trial, encoding: Encoding | None) -> None:
        self._told.append((trial.number, trial.config_hash))
        self._counted += trial.counts
        self._observer.add(trial)
        if encoding is not None:
            self._known.add(encoding)

    def _progress(self) -> float:
        return min(1.0, self._counted / self._trial_budget)

    def _observation(self) -> Vector:
        return self._observer.observation(remaining_budget=1 - self._progress())

    def _encoding(self, trial: Trial) -> Encoding | None:
        return self._observer.encoding_of(trial.point)

    def _canonical(self, transition: Transition) -> Encoding:
        return self._space.encode(self._space.decode(transition.action.tolist()))

    def _choose(self, observation: Vector, generator: np.random.Generator) -> tuple[Encoding, Transition]:
        for transition in self._ppo.propose(observation):
            encoding = self._canonical(transition)
            if encoding not in self._known:
                return encoding, transition
        encoding = self._random_unknown(generator)
        return encoding, self._ppo.transition(observation, np.array(encoding, dtype=np.int64))

    def _random_unknown(self, generator: np.random.Generator) -> Encoding:
        for _ in range(_DRAWS_BEFORE_ENUMERATION):
            encoding = self._space.encode(self._space.sample(generator))
            if encoding not in self._known:
                return encoding
        unknown = [code for code in map(self._space.encode, self._space.points()) if code not in self._known]
        return unknown[generator.integers(len(unknown))]
