"""`autotune pretrain` refuses what it can't do before it draws anything; what it trains is tested elsewhere."""

import numpy as np


def test_more_workloads_than_there_are_seeds_are_refused(cli, folder):
    answer = cli("pretrain", "--output", "there", "--workloads", "99999")
    assert answer.code != 0
    assert "pretrain.workloads: got 99999; there are seeds for 9000" in answer.err
    assert not (folder / "there").exists()


def test_a_folder_of_another_training_is_refused_and_left_alone(cli, folder):
    (folder / "there").mkdir()
    np.savez(folder / "there" / "checkpoint.npz", settings=np.array("others"))
    answer = cli("pretrain", "--output", "there")
    assert answer.code != 0
    assert "other settings" in answer.err
    assert [path.name for path in (folder / "there").iterdir()] == ["checkpoint.npz"]
