"""Search spaces as data: the ready-made ones, and how a campaign changes them."""

from autotune_spaces.building import READY_MADE, build, ready_made
from autotune_spaces.schema import DimensionFile, SpaceChanges, SpaceFile

__all__ = ["READY_MADE", "DimensionFile", "SpaceChanges", "SpaceFile", "build", "ready_made"]
