"""The house: what the wheel holds, what a bare import loads, and that the quickstart's campaign can be used."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from autotune import campaign as campaigns

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "deepspeed", "ray", "optuna", "stable_baselines3", "pydantic", "numpy")


def test_the_wheel_holds_three_packages_and_their_data(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"autotune", "autotune_envs", "autotune_spaces"}
    assert {"autotune_spaces/deepspeed.yaml", "autotune/ds_config/keys.yaml"} <= set(names)
    assert {"autotune/performance/hardware.csv", "autotune/performance/coefficients.yaml"} <= set(names)
    assert {f"autotune/planning/templates/{name}.html.jinja" for name in ("estimate", "plan")} <= set(names)
    assert "autotune/searchers/portfolio.yaml" in names
    assert {"autotune_envs/pretrained/policy.npz", "autotune_envs/pretrained/card.json"} <= set(names)
    assert [name for name in names if name.startswith("autotune/report/") and name.endswith((".html", ".j2", ".css"))]
    assert not [name for name in names if "test_" in name]


def test_importing_autotune_loads_nothing_heavy():
    code = f"import autotune, json, sys; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(loaded.stdout) == []


def test_the_quickstarts_campaign_has_the_whole_space():
    campaign = campaigns.load(ROOT / "experiments" / "quickstart" / "campaign.yaml")
    space = campaigns.space_of(campaign, campaigns.hardware_of(campaign))
    assert len(space.dimensions) == 12
    config, auto = campaigns.start_config(campaign, campaigns.hardware_of(campaign))
    assert auto == ()
    assert config["optimizer"]["params"]["torch_adam"] is True  # nothing to compile before the first trial


def test_everything_public_is_said_in_words():
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence
    assert "Version 2.0" in licence
