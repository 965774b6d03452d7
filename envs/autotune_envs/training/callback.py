"""A callback for Stable-Baselines3's `learn`: the end of a study is the end of learning."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback


class StopWhenStudyEnds(BaseCallback):
    """Ends `learn` when the environment's one study takes no further trial.

    Without it `learn` goes on to its number of time steps, and the policy learns from steps that run nothing. Trials
    since the last update are not learnt from, as with any callback that stops.

    Example:
        env = gymnasium.make("autotune/DeepSpeedTuning-v0", study=study)
        PPO(CopyGatePolicy, env, n_steps=8, batch_size=8).learn(10_000, callback=StopWhenStudyEnds())
    """

    def _on_step(self) -> bool:
        infos: list[dict[str, Any]] = self.locals["infos"]
        return not all(info["trial_number"] is None for info in infos)
