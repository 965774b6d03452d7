"""The memory filter of a campaign: in front of its searcher, calibrated to the trials of its study as they come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune import ds_config as config_file
from autotune.campaign.calibrating import machines_of, prior_of, subject_of
from autotune.campaign.sections import Campaign
from autotune.campaign.studies import campaign_of, recorded_hardware
from autotune.errors import ResourceError, StudyError
from autotune.hardware import Hardware
from autotune.performance.calibration import calibrate
from autotune.performance.memory_filter import MemoryFilter
from autotune.searchers.memory_filtered import MemoryFiltered
from autotune.searchers.protocol import Searcher
from autotune.searchers.refusals import ATTRIBUTE, Refusal, Refusals
from autotune.storage import StoredStudy
from autotune.study import Study
from autotune.trials import Point, Trial


def why_without_filter(campaign: Campaign, hardware: Hardware) -> str | None:
    """Return why the memory filter that a campaign asks for stays off; None where it works."""
    if campaign.evaluator == "recorded":
        return "recorded trials cost nothing"
    try:
        machines_of(campaign, hardware)
    except ResourceError as error:
        return str(error)
    return None


def filtered(searcher: Searcher, stored: StoredStudy, study: Study) -> Searcher:
    """Return the searcher behind the memory filter; the searcher itself where there is none.

    Args:
        searcher: new, of the study's space.
        stored: the study; what is refused is kept in it.
        study: the same, to be entered.
    """
    campaign, hardware = campaign_of(stored), recorded_hardware(stored)
    if not campaign.memory_filter or why_without_filter(campaign, hardware) is not None:
        return searcher
    prior = prior_of(stored)

    def configured(point: Point) -> Mapping[str, Any]:
        request = study.request(point)
        return {config_file.ACTIVATION_CHECKPOINTING: request.activation_checkpointing, **request.ds_config}

    def calibrated(trials: Sequence[Trial]) -> MemoryFilter | None:
        try:
            subject = subject_of(campaign, hardware, trials)
            found = calibrate(trials, subject.shape, subject.cluster, prior=prior, begin=None, **subject.fixed)
        except StudyError:  # no trial tells anything yet
            return None
        judge = MemoryFilter.of(subject.shape, found, seed=0, **subject.fixed)
        return None if judge.is_contradicted(trials) else judge

    def keep(refusals: Sequence[Refusal]) -> None:
        stored.set_attribute(ATTRIBUTE, Refusals.of(refusals).to_json())

    return MemoryFiltered(searcher, study.space, configured=configured, calibrated=calibrated, refused=keep)
