"""The one table from names to searchers; nothing heavy loads before a searcher is made."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, cast

from autotune.errors import CampaignError

if TYPE_CHECKING:
    from autotune.campaign import Campaign
    from autotune.hardware import Hardware
    from autotune.searchers import Searcher
    from autotune.searchers.knowledge import StudyKnowledge
    from autotune.space import SearchSpace

OPTUNA_SAMPLERS = ("random", "tpe", "gp", "cmaes")
DESCRIPTIONS: Mapping[str, str] = {
    "random": "uniform over the space, no repeats",
    "tpe": "tree-structured Parzen estimator (Optuna)",
    "gp": "Gaussian process (Optuna)",
    "cmaes": "CMA-ES with margin (Optuna)",
    "ppo": "proximal policy optimisation (Stable-Baselines3), pre-trained on simulated workloads",
    "ppo-scratch": "the same from scratch: it learns from the study's own trials alone",
    "calibrated": "the performance model, calibrated to the trials, and a Gaussian process on what it gets wrong",
    "deepspeed-autotuner": "the order of stages and micro-batches of DeepSpeed's own autotuner",
}


def create(
    name: str,
    space: SearchSpace,
    *,
    seed: int,
    trial_budget: int,
    hardware: Hardware,
    warm_start: Literal["none", "portfolio"] = "none",
    knowledge: Callable[[], StudyKnowledge] | None = None,
) -> Searcher:
    """Return a new searcher.

    Args:
        name: one of `DESCRIPTIONS`, or `module:attribute` for a plug-in: called as
            `attribute(space, seed=..., trial_budget=...)`, it returns an `autotune.searchers.Searcher`.
        space: what is searched.
        seed: of the searcher.
        trial_budget: trials of the whole study, for searchers that plan ahead.
        hardware: what trials run on, for searchers that go by it.
        warm_start: 'portfolio': it proposes the points of `autotune.searchers.portfolio` first.
        knowledge: returns what is known of the study, for searchers that go by the performance model.

    Raises:
        CampaignError: when there is no such searcher, or it needs the `knowledge` that isn't given.
    """
    check(name)
    searcher = _create(name, space, seed=seed, trial_budget=trial_budget, hardware=hardware, knowledge=knowledge)
    if warm_start == "none":
        return searcher
    from autotune.searchers.portfolio import portfolio
    from autotune.searchers.warm_start import WarmStarted

    return WarmStarted(searcher, space, portfolio())


def _create(
    name: str,
    space: SearchSpace,
    *,
    seed: int,
    trial_budget: int,
    hardware: Hardware,
    knowledge: Callable[[], StudyKnowledge] | None,
) -> Searcher:
    if name in OPTUNA_SAMPLERS:
        from autotune.searchers.optuna import OptunaSearcher

        return OptunaSearcher(space, sampler=name, seed=seed)
    if name == "ppo":
        from autotune_envs.features import WorkloadFeatures
        from autotune_envs.pretrained import PretrainedSearcher

        return PretrainedSearcher(space, seed=seed, trial_budget=trial_budget, features=WorkloadFeatures.of(hardware))
    if name == "ppo-scratch":
        from autotune_envs.features import WorkloadFeatures
        from autotune_envs.training import PpoSearcher

        features = WorkloadFeatures.of(hardware)
        return PpoSearcher(space, seed=seed, trial_budget=trial_budget, features=features)
    if name == "calibrated":
        from autotune.searchers.calibrated import CalibratedSearcher

        if knowledge is None:
            raise CampaignError("searcher: calibrated goes by what is known of the study; give knowledge")
        return CalibratedSearcher(space, knowledge(), seed=seed)
    if name == "deepspeed-autotuner":
        from autotune.searchers.deepspeed_autotuner import DeepSpeedAutotuner

        return DeepSpeedAutotuner(space, seed=seed)
    return _plug_in(name)(space, seed=seed, trial_budget=trial_budget)


def check_hardware(campaign: Campaign) -> None:
    """Refuse a searcher that can't go by the hardware of its campaign, before anything is made.

    Raises:
        CampaignError: saying what to do.
    """
    if campaign.searcher == "calibrated":
        from autotune.campaign.calibrating import refuse_unknown_machines
        from autotune.campaign.plan import hardware_of

        because = "searcher: calibrated needs the performance model"
        refuse_unknown_machines(campaign, hardware_of(campaign), because=because)


def check(name: str) -> None:
    """Refuse a name that no searcher has, before anything is made.

    Raises:
        CampaignError: with the names there are.
    """
    if ":" in name:
        _plug_in(name)
    elif name not in DESCRIPTIONS:
        near = difflib.get_close_matches(name, DESCRIPTIONS, n=1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise CampaignError(
            f"searcher: got {name!r}; {hint} are {', '.join(DESCRIPTIONS)}, and module:attribute for one of your own"
        )


def _plug_in(name: str) -> Callable[..., Searcher]:
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise CampaignError(
            f"searcher: can't import {name!r}: {error}; give module:attribute of a module that Python finds "
            f"(PYTHONPATH), or one of {', '.join(DESCRIPTIONS)}"
        ) from error
    if not callable(found):
        raise CampaignError(f"searcher: {name!r} is a {type(found).__name__}; it must be a class or a function")
    return cast("Callable[..., Searcher]", found)
