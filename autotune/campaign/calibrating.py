"""The calibration of a study's hardware and workload: made from its trials, and kept with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.campaign.plan import checkpoints_at_start, objective_of, start_config
from autotune.campaign.sections import Campaign
from autotune.campaign.studies import campaign_of, recorded_hardware
from autotune.errors import CampaignError, ResourceError, StudyError
from autotune.evaluators.simulated_workload import drawn
from autotune.hardware import Hardware
from autotune.performance import ModelShape, Prior
from autotune.performance.calibration import Calibration, calibrate
from autotune.performance.machines import cluster_of
from autotune.performance.subject import Subject
from autotune.searchers.knowledge import ADVICE, StudyKnowledge
from autotune.storage import StoredStudy
from autotune.trials import Trial

_ATTRIBUTE = "calibration"
_VOCABULARY = 32_000
"""Of a workload that doesn't tell: Llama's (Touvron et al. 2023, section 2.1)."""
_SEQUENCE = 512
"""Tokens per sample where none are counted."""
_BYTE_GPT: Mapping[str, float] = {"layers": 4, "width": 128, "heads": 4, "sequence": 64}
"""Defaults of `autotune.evaluators.workloads.byte_gpt.byte_gpt`, whose module loads torch."""
_BYTES = 256


def calibrate_study(stored: StoredStudy, *, prior: Mapping[str, Prior] | None = None) -> Calibration:
    """Fit the performance model to a study's trials, and keep the calibration with the study.

    Args:
        stored: with finished trials.
        prior: `Calibration.as_prior()` of an earlier study on the same hardware.

    Raises:
        StudyError: when no trial tells anything, or the model's size isn't known.
        ResourceError: when its GPU is none of the hardware table's.
    """
    campaign, trials = campaign_of(stored), stored.trials()
    subject = subject_of(campaign, recorded_hardware(stored), trials)
    found = calibrate(trials, subject.shape, subject.cluster, prior=prior, begin=None, **subject.fixed)
    stored.set_attribute(_ATTRIBUTE, found.to_json())
    return found


def kept_calibration(stored: StoredStudy) -> Calibration | None:
    """Return the calibration that was kept with a study; None when there is none."""
    data = stored.attribute(_ATTRIBUTE)
    return None if data is None else Calibration.from_json(data)


def knowledge_of(campaign: Campaign, hardware: Hardware) -> StudyKnowledge:
    """Return what searchers may know of a campaign's study."""
    config, _ = start_config(campaign, hardware)
    return StudyKnowledge(
        ds_config=config,
        activation_checkpointing=checkpoints_at_start(campaign),
        world_size=hardware.ranks,
        objective=objective_of(campaign),
        training_s=campaign.budget.seconds,
        subject=lambda trials: subject_of(campaign, hardware, trials),
    )


def refuse_unknown_machines(campaign: Campaign, hardware: Hardware, *, because: str) -> None:
    """Refuse a campaign on hardware that the performance model doesn't know, before anything is made.

    Raises:
        CampaignError: saying because of what, and what to do.
    """
    if campaign.evaluator == "simulated":
        return
    try:
        cluster_of(hardware)
    except ResourceError as error:
        raise CampaignError(f"{because}: {error}; {ADVICE}") from error


def subject_of(campaign: Campaign, hardware: Hardware, trials: Sequence[Trial]) -> Subject:
    """Return what is known of a campaign's workload and machines; of simulated ones, all but their coefficients.

    Raises:
        StudyError: when no trial has counted the model's parameters.
        ResourceError: when its GPU is none of the hardware table's.
    """
    if campaign.evaluator == "simulated":
        workload = drawn(campaign.simulated.workload_seed, hardware.ranks)
        attention = {"flash_attention": workload.flash_attention}
        return Subject(shape=workload.shape, cluster=workload.cluster, fixed=attention)
    fixed = {"flash_attention": 1.0} if _is_byte_gpt(campaign) else {}
    return Subject(shape=_shape_of(campaign, trials), cluster=cluster_of(hardware), fixed=fixed)


def _shape_of(campaign: Campaign, trials: Sequence[Trial]) -> ModelShape:
    """Return the shape of a campaign's model: by its arguments where it is the built-in one, else by what trials count.

    Parameters and tokens per sample are measured; layers and width follow from the parameters as in a GPT, and what
    that misses is up to the calibration.
    """
    if _is_byte_gpt(campaign):
        given = {**_BYTE_GPT, **campaign.workload.arguments}
        layers, width, sequence = (float(given[name]) for name in ("layers", "width", "sequence"))
        return ModelShape.from_numbers(
            parameters=layers * (12 * width**2 + 13 * width) + (2 * _BYTES + sequence + 2) * width,
            layers=layers,
            hidden=width,
            heads=float(given["heads"]),
            sequence=sequence,
            vocabulary=_BYTES,
            tied=0.0,
        )
    counted = [trial.measurement for trial in trials if trial.measurement and trial.measurement.total_parameters]
    if not counted:
        raise StudyError("calibration: no trial has counted the model's parameters; run some first")
    last = counted[-1]
    tokens = round(last.tokens_per_second / last.samples_per_second) if last.tokens_per_second else _SEQUENCE
    return ModelShape.from_numbers(
        parameters=last.total_parameters, trainable=last.trained_parameters, sequence=tokens, vocabulary=_VOCABULARY
    )


def _is_byte_gpt(campaign: Campaign) -> bool:
    workload = campaign.workload
    return workload.command is None and workload.function == "byte-gpt"
