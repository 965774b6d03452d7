"""The pre-trained policy as a searcher: it proposes from the first trial on, and goes by all trials of the study."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autotune.errors import SearcherError, SpaceError, SpaceExhausted
from autotune.space import SearchSpace
from autotune.trials import Point, Trial
from autotune_envs.features import WorkloadFeatures
from autotune_envs.observation import Encoding, StudyObserver, Vector
from autotune_envs.policy_file import load
from autotune_envs.policy_network import PolicyNetwork, draws, mode
from autotune_envs.policy_space import SpaceMapping, policy_space

FEATURES = (
    "cuda",
    "ranks",
    "device_count",
    "device_memory_bytes",
    "compute_capability",
    "parameter_count",
    "tokens_per_sample",
)
"""Of `WorkloadFeatures`: those that the policy was trained with; it never sees others."""
_LOG = logging.getLogger(__name__)
_STATE = {"asks", "told", "open"}
CANDIDATES = 64
"""Actions drawn for one proposal, of which the first unknown one is taken; if none is, a random point is."""
_DRAWS_BEFORE_ENUMERATION = 256
"""So many known points in a row mean that most of the space is known, so that listing the rest is cheap."""


class PretrainedSearcher:
    """Proposes by a policy that was trained on simulated studies; implements `autotune.searchers.Searcher`.

    The policy's weights stay as they are: what it learns within the study, it learns by looking at the study's trials
    (its observation holds the incumbent, the last trials, and the record of every level). The first candidate is its
    most probable action; where that is known, actions are drawn. A point that was told or is open is never proposed.

    The study's space is mapped onto the policy's by the levels' values (`SpaceMapping`), and what can't be proposed is
    masked. Parameters and tokens per sample are read off the baseline's measurement unless the features say them.

    Args:
        space: what is searched.
        trial_budget: trials of the study in all, the baseline included.
        seed: of the draws.
        features: what is known of the workload and the hardware.
        policy: another than the one that comes with autotune.

    Raises:
        SearcherError: when the policy does not know a dimension or level of the space, or its file is damaged.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        trial_budget: int,
        seed: int = 0,
        features: WorkloadFeatures | None = None,
        policy: PolicyNetwork | None = None,
    ) -> None:
        self._space = space
        self._mapping = SpaceMapping(space)
        self._policy = policy or load()
        self._trial_budget = trial_budget
        self._seed = seed
        self._features = features or WorkloadFeatures()
        self._observer = StudyObserver(policy_space(), _seen(self._features))
        self._mask = self._mapping.mask.astype(np.float32)
        self._known: set[Encoding] = set()
        self._open: list[Encoding] = []
        self._lost: deque[Encoding] = deque()
        self._told: list[tuple[int, str]] = []
        self._counted = 0
        self._asks = 0

    def ask(self) -> Point:
        while self._lost:
            lost = self._lost.popleft()
            if lost in self._open:
                return self._space.decode(lost)
        if len(self._known) >= self._space.count:
            raise SpaceExhausted(f"all {self._space.count} points of the space have been tried; widen it to go on")
        encoding = self._choose(np.random.default_rng((self._seed, self._asks)))
        self._known.add(encoding)
        self._open.append(encoding)
        self._asks += 1
        return self._space.decode(encoding)

    def tell(self, trial: Trial) -> None:
        """Take in a finished trial; telling one again changes nothing."""
        if (trial.number, trial.config_hash) not in self._told:
            self._hear(trial)

    def state(self) -> Mapping[str, str]:
        """Return how many asks there were, which are open, and the order in which trials were told."""
        return {
            "asks": json.dumps(self._asks),
            "told": json.dumps(self._told),
            "open": json.dumps(self._open),
        }

    def restore(self, state: Mapping[str, str], history: list[Trial]) -> None:
        """Take up where `state` was taken, then hear of the trials of `history` that it was not told of.

        Raises:
            SearcherError: when another searcher kept the state, or this one has been used.
        """
        if self._asks or self._told:
            raise SearcherError("searcher.restore: it has proposed or learnt already; restore a new one")
        if state:
            if set(state) != _STATE:
                raise SearcherError(
                    f"searcher state: got {', '.join(sorted(state))}; another searcher kept it, not ppo"
                )
            trials = {(trial.number, trial.config_hash): trial for trial in history}
            self._asks = json.loads(state["asks"])
            self._open = [tuple(encoding) for encoding in json.loads(state["open"])]
            self._known.update(self._open)
            for number, config_hash in json.loads(state["told"]):
                trial = trials.get((number, config_hash))
                if trial is None:
                    _LOG.warning("trial %d, of which the searcher had learnt, is gone from the study", number)
                else:
                    self._hear(trial)
        for trial in history:
            self.tell(trial)
        self._lost.extend(self._open)

    def observation(self) -> Vector:
        """Return what the policy sees: the observation over its own space, then the mask; shape (size,)."""
        left = 1.0 - min(1.0, self._counted / self._trial_budget)
        return np.concatenate([self._observer.observation(remaining_budget=left), self._mask])

    def _hear(self, trial: Trial) -> None:
        self._told.append((trial.number, trial.config_hash))
        self._counted += trial.counts
        if trial.is_baseline:
            self._read_features(trial)
        encoding = self._encoding(trial.point)
        if encoding is not None:
            self._known.add(encoding)
            if encoding in self._open:
                self._open.remove(encoding)
        inside = policy_space().decode(self._mapping.encoding_of(trial.point)) if encoding is not None else {}
        self._observer.add(replace(trial, point=inside))

    def _read_features(self, baseline: Trial) -> None:
        measured = baseline.outcome.measurement if baseline.outcome else None
        if measured is None:
            return
        known = self._features
        tokens = round(measured.tokens_per_second / measured.samples_per_second) if measured.tokens_per_second else None
        self._features = replace(
            known,
            parameter_count=known.parameter_count or measured.total_parameters,
            tokens_per_sample=known.tokens_per_sample or tokens,
        )
        self._observer.set_features(_seen(self._features))

    def _encoding(self, point: Point) -> Encoding | None:
        try:
            self._space.check(point)
        except SpaceError:
            return None
        return self._space.encode(point)

    def _choose(self, generator: np.random.Generator) -> Encoding:
        logits = self._policy(self.observation()[None])
        first = self._space.encode(self._mapping.point_of(mode(logits)[0]))
        if first not in self._known:
            return first
        for action in draws(np.repeat(logits, CANDIDATES, axis=0), generator):
            encoding = self._space.encode(self._mapping.point_of(action, generator))
            if encoding not in self._known:
                return encoding
        return self._random_unknown(generator)

    def _random_unknown(self, generator: np.random.Generator) -> Encoding:
        for _ in range(_DRAWS_BEFORE_ENUMERATION):
            encoding = self._space.encode(self._space.sample(generator))
            if encoding not in self._known:
                return encoding
        unknown = [code for code in map(self._space.encode, self._space.points()) if code not in self._known]
        return unknown[generator.integers(len(unknown))]


def _seen(features: WorkloadFeatures) -> WorkloadFeatures:
    """Return the features that the policy was trained with."""
    return WorkloadFeatures(**{name: getattr(features, name) for name in FEATURES})
