"""The file system under a path, by the table of mounts; and SQLite refused on a network."""

import sqlite3
from pathlib import Path

import pytest

from autotune import file_systems, storage
from autotune.errors import StorageError

TABLE = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:20 / /proc rw - proc proc rw
24 22 0:40 / /home rw,relatime shared:1 master:2 - nfs4 server:/export/home rw,vers=4.2
25 24 0:41 / /home/me/scratch rw - tmpfs tmpfs rw
26 22 0:42 / /mnt/with\040space rw - fuse.sshfs me@host:/x rw
27 22 0:43 / /data rw - ext4 /dev/vdb rw
28 22 0:44 / /data rw - lustre 10.0.0.1@tcp:/fs rw
a line that is none
"""
MOUNTS = file_systems.mounts(TABLE)


@pytest.mark.parametrize(
    ("path", "kind", "is_network"),
    [
        ("/tmp/autotune.db", "ext4", False),
        ("/home/me/autotune.db", "nfs4", True),
        ("/home/me/scratch/deep/autotune.db", "tmpfs", False),
        ("/homework/autotune.db", "ext4", False),
        ("/mnt/with space/autotune.db", "fuse.sshfs", True),
        ("/data/autotune.db", "lustre", True),  # mounted over another
    ],
)
def test_a_path_lies_on_the_innermost_mount(path, kind, is_network):
    mount = file_systems.mount_of(Path(path), MOUNTS)
    assert (mount.kind, mount.is_network) == (kind, is_network)


def test_links_are_followed(tmp_path):
    (tmp_path / "link").symlink_to("/home/me")
    assert file_systems.mount_of(tmp_path / "link" / "autotune.db", MOUNTS).kind == "nfs4"


def test_a_sandboxs_own_root_is_no_network():
    (root,) = file_systems.mounts("1 0 0:1 / / rw - 9p none rw")
    assert not root.is_network
    (drive,) = file_systems.mounts("1 0 0:1 / /mnt/c rw - 9p C:\\134 rw")
    assert drive.is_network


def test_this_machines_table_is_read():
    assert file_systems.mount_of(Path("/"), file_systems.mounts()) is not None
    assert file_systems.mount_of(Path("/"), ()) is None


def on_network(folder):
    return file_systems.mounts(f"1 0 0:1 / {folder} rw - nfs4 server:/x rw")


def test_sqlite_on_a_network_file_system_is_refused_with_a_way_out(tmp_path):
    with pytest.raises(StorageError) as caught:
        storage.connect(f"sqlite:///{tmp_path}/s.db", mounts=on_network(tmp_path))
    for part in (f"{tmp_path} is a network file system (nfs4)", "sqlite:////tmp/s.db", "postgresql", "=1"):
        assert part in str(caught.value)
    assert not [*tmp_path.iterdir()]


def test_a_variable_insists_and_gives_up_write_ahead_mode(tmp_path, monkeypatch):
    monkeypatch.setenv(storage.NETWORK_VARIABLE, "1")
    opened = storage.connect(f"sqlite:///{tmp_path}/s.db", mounts=on_network(tmp_path))
    opened.create("mine", {"campaign": {}})
    assert opened.names() == ["mine"]
    opened.close()
    with sqlite3.connect(tmp_path / "s.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite://"])
def test_memory_is_on_no_file_system(url):
    storage.connect(url, mounts=file_systems.mounts("1 0 0:1 / / rw - nfs4 server:/x rw")).close()


def test_a_new_file_comes_into_being_whole_and_leaves_nothing_beside_it(tmp_path):
    storage.connect(f"sqlite:///{tmp_path}/s.db").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.db", "s.db.lock"]


@pytest.mark.parametrize("tables", ["studies (x)", "trials (x)"])
def test_a_foreign_database_is_refused(tmp_path, tables):
    connection = sqlite3.connect(tmp_path / "s.db")
    connection.execute(f"CREATE TABLE {tables}")
    connection.close()
    with pytest.raises(StorageError, match="that the database is Optuna's"):
        storage.connect(f"sqlite:///{tmp_path}/s.db")
