"""The calibration of a study's hardware and workload: made from its trials, kept with it, handed to later studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.campaign.plan import checkpoints_at_start, objective_of, start_config
from autotune.campaign.sections import Campaign
from autotune.campaign.studies import campaign_of, recorded_hardware
from autotune.errors import CampaignError, ResourceError, StudyError, UnreadableStudyError
from autotune.evaluators.simulated_workload import drawn
from autotune.hardware import Hardware
from autotune.performance import Cluster, ModelShape, Prior
from autotune.performance.calibration import Calibration, Check, calibrate, left_out
from autotune.performance.machines import cluster_of
from autotune.performance.subject import Subject
from autotune.searchers.knowledge import ADVICE, StudyKnowledge
from autotune.storage import Storage, StoredStudy
from autotune.trials import Trial

_ATTRIBUTE = "calibration"
_EARLIER = "earlier_calibration"
_VOCABULARY = 32_000
"""Of a workload that doesn't tell: Llama's (Touvron et al. 2023, section 2.1)."""
_SEQUENCE = 512
"""Tokens per sample of a command where none are counted; a function that says none has samples that are one vector."""
_BYTE_GPT: Mapping[str, float] = {"layers": 4, "width": 128, "heads": 4, "sequence": 64}
"""Defaults of `autotune.evaluators.workloads.byte_gpt.byte_gpt`, whose module loads torch."""
_BYTES = 256


def calibrate_study(stored: StoredStudy) -> Calibration:
    """Fit the performance model to a study's trials, and keep the calibration with the study.

    Args:
        stored: with finished trials; what it took over from an earlier study (`take_over`) is the prior.

    Raises:
        StudyError: when no trial tells anything, or the model's size isn't known.
        ResourceError: when its GPU is none of the hardware table's.
    """
    campaign, trials = campaign_of(stored), stored.trials()
    subject = subject_of(campaign, recorded_hardware(stored), trials)
    found = calibrate(trials, subject.shape, subject.cluster, prior=prior_of(stored), begin=None, **subject.fixed)
    stored.set_attribute(_ATTRIBUTE, found.to_json())
    return found


def check_study(stored: StoredStudy) -> list[Check]:
    """Return how well the study's trials are foretold by calibrations to its others.

    Raises:
        StudyError: when the model's size isn't known.
        ResourceError: when its GPU is none of the hardware table's.
    """
    trials = stored.trials()
    subject = subject_of(campaign_of(stored), recorded_hardware(stored), trials)
    return left_out(trials, subject.shape, subject.cluster, prior=prior_of(stored), **subject.fixed)


def why_not_kept(stored: StoredStudy) -> str | None:
    """Calibrate a study that has ended and keep it; return why that can't be, None where it is kept."""
    if campaign_of(stored).evaluator == "recorded":
        return None
    try:
        calibrate_study(stored)
    except (StudyError, ResourceError) as error:
        return str(error)
    return None


def kept_calibration(stored: StoredStudy) -> Calibration | None:
    """Return the calibration that was kept with a study; None when there is none.

    Raises:
        UnreadableStudyError: when another version kept it in another form.
    """
    data = stored.attribute(_ATTRIBUTE)
    return None if data is None else _read(data, stored.name)


def prior_of(stored: StoredStudy) -> Mapping[str, Prior] | None:
    """Return what a study took over from an earlier one; None: the table's priors.

    Raises:
        UnreadableStudyError: when another version kept it in another form.
    """
    data = stored.attribute(_EARLIER)
    return None if data is None else _read(data["calibration"], data["study"]).as_prior()


def earlier_study(stored: StoredStudy) -> str | None:
    """Return the name of the study that a study's calibration started from."""
    data = stored.attribute(_EARLIER)
    return None if data is None else str(data["study"])


def earlier_calibration(campaign: Campaign, hardware: Hardware, storage: Storage) -> dict[str, Any]:
    """Return, by attribute, what a new study is to keep of the one that its campaign is `calibrate_from`.

    Raises:
        StudyError: when that study has no calibration, or was measured by other means or on other hardware.
        ResourceError: when the campaign's GPU is none of the hardware table's.
    """
    if campaign.calibrate_from is None:
        return {}
    name = campaign.calibrate_from
    earlier = storage.open(name)
    found, evaluator = kept_calibration(earlier), campaign_of(earlier).evaluator
    if found is None:
        raise StudyError(f"calibrate_from: study {name!r} has no calibration; make one: autotune calibrate {name}")
    there = recorded_hardware(earlier)
    compared = {
        "evaluator": (evaluator, campaign.evaluator),
        "accelerator": (there.accelerator, hardware.accelerator),
        "device": (there.device_name, hardware.device_name),
        "device of the hardware table": (found.fitted.device_name, machines_of(campaign, hardware).device.name),
    }
    for what, (then, now) in compared.items():
        if then != now:
            raise StudyError(
                f"calibrate_from: study {name!r} was measured with {what} {then!r}, and here it is {now!r}: its "
                f"figures say nothing here; name a study of the same hardware, or leave calibrate_from out"
            )
    return {_EARLIER: {"study": name, "calibration": found.to_json()}}


def _read(data: Mapping[str, Any], name: str) -> Calibration:
    try:
        found = Calibration.from_json(data)
        found.as_prior()
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableStudyError(
            f"study {name!r}: its calibration can't be read ({type(error).__name__}: {error}); another version of "
            f"autotune kept it in another form: make it anew, autotune calibrate {name}"
        ) from error
    return found


def machines_of(campaign: Campaign, hardware: Hardware) -> Cluster:
    """Return the machines of a campaign, as far as they are known without a trial.

    On a CPU `hardware.memory_limit_bytes` is what a rank has; with GPUs it limits the process on the host, of which
    the model says nothing.

    Raises:
        ResourceError: when its GPU is none of the hardware table's.
    """
    if campaign.evaluator == "simulated":
        return drawn(campaign.simulated.workload_seed, hardware.ranks).cluster
    machines = cluster_of(hardware)
    limit = campaign.hardware.memory_limit_bytes
    if limit is None or hardware.accelerator != "cpu":
        return machines
    capacity = min(float(limit), float(machines.device.memory_bytes))
    return replace(machines, device=replace(machines.device, memory_bytes=capacity))


def knowledge_of(stored: StoredStudy) -> StudyKnowledge:
    """Return what searchers may know of a study."""
    campaign, hardware = campaign_of(stored), recorded_hardware(stored)
    config, _ = start_config(campaign, hardware)
    return StudyKnowledge(
        ds_config=config,
        activation_checkpointing=checkpoints_at_start(campaign),
        world_size=hardware.ranks,
        objective=objective_of(campaign),
        training_s=campaign.budget.seconds,
        subject=lambda trials: subject_of(campaign, hardware, trials),
        prior=prior_of(stored),
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
    machines = machines_of(campaign, hardware)
    if campaign.evaluator == "simulated":
        workload = drawn(campaign.simulated.workload_seed, hardware.ranks)
        return Subject(shape=workload.shape, cluster=machines, fixed={"flash_attention": workload.flash_attention})
    fixed = {"flash_attention": 1.0} if _is_byte_gpt(campaign) else {}
    return Subject(shape=_shape_of(campaign, trials), cluster=machines, fixed=fixed)


def _shape_of(campaign: Campaign, trials: Sequence[Trial]) -> ModelShape:
    """Return the shape of a campaign's model: by its arguments where it is the built-in one, else by what trials count.

    Parameters are counted, tokens per sample counted or said; layers and width follow from the parameters as in a GPT,
    and what that misses is up to the calibration.
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
        raise StudyError(
            "calibration: no trial has counted the model's parameters; trials of a training script do once one is "
            "measured, those of a workload function don't"
        )
    last = counted[-1]
    unsaid = 1 if campaign.workload.command is None else _SEQUENCE
    tokens = round(last.tokens_per_second / last.samples_per_second) if last.tokens_per_second else unsaid
    return ModelShape.from_numbers(
        parameters=last.total_parameters, trainable=last.trained_parameters, sequence=tokens, vocabulary=_VOCABULARY
    )


def _is_byte_gpt(campaign: Campaign) -> bool:
    workload = campaign.workload
    return workload.command is None and workload.function == "byte-gpt"
