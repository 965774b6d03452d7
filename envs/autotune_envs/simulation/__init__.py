"""Simulated studies by the thousand: the performance model as a world to train policies in; pure numpy."""

from autotune_envs.simulation.cases import Cases, Verdicts
from autotune_envs.simulation.drawing import HELD_OUT, TRAINING, draw_cases
from autotune_envs.simulation.studies import SimulatedStudies, policy_observation_size

__all__ = [
    "HELD_OUT",
    "TRAINING",
    "Cases",
    "SimulatedStudies",
    "Verdicts",
    "draw_cases",
    "policy_observation_size",
]
