"""Questions to the performance model: what fits and how fast it is on a cluster, and which cluster it takes.

    asked = named_model("7B")                          # or config.json, module:function, layers=...,hidden=...
    place = named_hardware("8 x A100-SXM-80GB")        # or "H100:16", "cpu:2"
    found = estimates(asked, place, settings(asked, place, config=None, options=Options()))
    make_plan(asked, tokens=140e9, days=30.0).offers   # clusters; with hardware="16 x H100" ways to train on one

The figures are the model's of `autotune.performance`; what they are worth is in docs/estimate.md.
"""

from autotune.planning import documents, tables, wording
from autotune.planning.estimates import Estimates, Row, estimates
from autotune.planning.hardware import Hardware
from autotune.planning.hardware import hardware as named_hardware
from autotune.planning.models import Model, count
from autotune.planning.models import model as named_model
from autotune.planning.plans import Offer, Plan
from autotune.planning.plans import plan as make_plan
from autotune.planning.settings import Options, Settings, settings

__all__ = [
    "Estimates",
    "Hardware",
    "Model",
    "Offer",
    "Options",
    "Plan",
    "Row",
    "Settings",
    "count",
    "documents",
    "estimates",
    "make_plan",
    "named_hardware",
    "named_model",
    "settings",
    "tables",
    "wording",
]
