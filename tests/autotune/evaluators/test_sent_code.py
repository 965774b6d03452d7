from autotune.evaluators import sent_code


def test_paths_are_found_in_the_copy_if_they_were_sent(tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    (copy / "src").mkdir(parents=True)
    (copy / "src" / "train.py").touch()
    monkeypatch.setenv(sent_code.FROM_VARIABLE, "/home/me/project")
    monkeypatch.setenv(sent_code.TO_VARIABLE, str(copy))
    assert sent_code.here("/home/me/project") == str(copy)
    words = ("torchrun", "/home/me/project/src/train.py", "train.py", "/home/me/project2", "/home/me/project/runs/x")
    there = ("torchrun", str(copy / "src" / "train.py"), "train.py", "/home/me/project2", "/home/me/project/runs/x")
    assert sent_code.all_here(words) == there


def test_where_nothing_was_sent_paths_stay(monkeypatch):
    monkeypatch.delenv(sent_code.FROM_VARIABLE, raising=False)
    assert sent_code.here("/home/me/project") == "/home/me/project"
