"""A campaign: one YAML file that says what to tune, where, how long, and by what; and the studies made from it."""

from autotune.campaign.files import from_yaml, load
from autotune.campaign.finals import RemeasuringListener, hold_finals, watch
from autotune.campaign.plan import (
    at_once,
    checkpoints_at_start,
    command_of,
    hardware_of,
    has_noise,
    objective_of,
    replay_slots,
    space_of,
    start_config,
    start_of,
)
from autotune.campaign.sections import NAME_PATTERN, BudgetSection, Campaign, FinalsSection, PlacementSection, parse
from autotune.campaign.studies import (
    campaign_of,
    create,
    move_to,
    recorded_hardware,
    run_directory,
    study,
    summary,
)

__all__ = [
    "NAME_PATTERN",
    "BudgetSection",
    "Campaign",
    "FinalsSection",
    "PlacementSection",
    "RemeasuringListener",
    "at_once",
    "campaign_of",
    "checkpoints_at_start",
    "command_of",
    "create",
    "from_yaml",
    "hardware_of",
    "has_noise",
    "hold_finals",
    "load",
    "move_to",
    "objective_of",
    "parse",
    "recorded_hardware",
    "replay_slots",
    "run_directory",
    "space_of",
    "start_config",
    "start_of",
    "study",
    "summary",
    "watch",
]
