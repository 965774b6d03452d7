"""The file system that a path lies on, from Linux's table of mounts, and whether a folder there can be written to."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path("/proc/self/mountinfo")
"""Its format: `man 5 proc_pid_mountinfo`."""
_TRIED_BYTES = 2**20
"""A trial's files take less, but for its logs."""
_NETWORK = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "pvfs2",
        "smb3",
        "smbfs",
        "virtiofs",
        "wekafs",
    }
)
_SANDBOXED = frozenset({"9p", "virtiofs"})
"""As the root these are what a sandbox or a virtual machine shows of its own local disk."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mounted file system."""

    point: str
    kind: str
    """Its type, such as ext4 or nfs4."""
    source: str

    @property
    def is_network(self) -> bool:
        """Whether other machines may write to it, or locks and shared memory don't work on it as on a local disk."""
        return self.kind in _NETWORK and not (self.kind in _SANDBOXED and self.point == "/")


def mounts(table: str | None = None) -> tuple[Mount, ...]:
    """Return what is mounted, in order; nothing where there is no such table.

    Args:
        table: text of a mountinfo file; this process's own by default.
    """
    if table is None:
        try:
            table = _TABLE.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ()
    return tuple(mount for line in table.splitlines() if (mount := _mount(line)) is not None)


def why_not_writable(folder: Path) -> str | None:
    """Return why a trial's files can't be written below a folder, which need not be there yet; None where they can."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    return None


def mount_of(path: Path, table: Sequence[Mount]) -> Mount | None:
    """Return the mount that a path lies on, links followed; a path that isn't there lies where it would be made."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a link to itself, a NUL: whoever opens the path is told
        return None
    found = None
    for mount in table:
        covers = resolved.is_relative_to(mount.point)
        if covers and (found is None or len(mount.point) >= len(found.point)):  # a later one covers an earlier one
            found = mount
    return found


def _mount(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not separator or len(left) < 5 or len(right) < 2:
        return None
    return Mount(point=_unescaped(left[4]), kind=right[0], source=_unescaped(right[1]))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
