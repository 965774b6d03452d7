"""How one trial is measured: by DeepSpeed, by simulation, or from a record.

`autotune.evaluators.simulated` and `autotune.evaluators.recorded` are not imported here: every rank process imports
this package, and needs neither.
"""

from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.deepspeed import DeepSpeedEvaluator
from autotune.evaluators.protocol import Evaluator, RankCommand, RankHost, RankReport

__all__ = ["Deadlines", "DeepSpeedEvaluator", "Evaluator", "RankCommand", "RankHost", "RankReport"]
