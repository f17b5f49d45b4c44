"""Whether a path is on a network file system, where the locks of SQLite cannot be relied on."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
_NETWORK_TYPES = {
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "glusterfs",
    "gpfs",
    "lustre",
    "mmfs",
    "ncpfs",
    "nfs",
    "nfs4",
    "orangefs",
    "panfs",
    "pvfs2",
    "smb3",
    "smbfs",
    "wekafs",
}
# FUSE mounts are network file systems (sshfs, glusterfs, gcsfuse, ...) unless named here.
_LOCAL_FUSE = ("fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal")
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_file_system(path: str | os.PathLike[str], mounts: str | None = None) -> str:
    """The type of the network file system that holds ``path``, such as ``nfs4``; '' if it is local.

    mounts: the text of /proc/self/mounts; None reads it. '' also where there is no such file.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text(errors="surrogateescape")
        except OSError:
            return ""
    real = Path(os.path.realpath(path))
    holder, holder_type = Path(), ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1]))
        # The last of several mounts at one point hides the others.
        if real.is_relative_to(point) and len(point.parts) >= len(holder.parts):
            holder, holder_type = point, fields[2]
    is_fuse = holder_type.startswith("fuse") and holder_type not in _LOCAL_FUSE
    return holder_type if holder_type in _NETWORK_TYPES or is_fuse else ""
