"""SQLite on a network file system: collect says so, by the mounts of this process."""

from __future__ import annotations

import os

import pytest
from made_stores import made_files

from torchcoll.cli import main
from torchcoll.parts.fleet import address
from torchcoll.parts.fleet.address import network_file_system

MOUNTS = """\
proc /proc proc rw,relatime 0 0
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw,nosuid,nodev 0 0
nas:/export/home /home nfs4 rw,relatime,vers=4.2 0 0
/dev/sdb1 /home/scratch xfs rw,relatime 0 0
10.0.0.1@o2ib:/work /work lustre rw,flock 0 0
//server/share /mnt/with\\040blank cifs rw 0 0
ssh@host: /mnt/ssh fuse.sshfs rw 0 0
/dev/sdc1 /mnt/ntfs fuseblk rw 0 0
old:/a /twice nfs rw 0 0
/dev/sdd1 /twice ext4 rw 0 0
a line without a type
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/store.sqlite", ""),
        ("/home/me/store.sqlite", "nfs4"),
        ("/homes/store.sqlite", ""),  # no part of /home
        ("/home/scratch/store.sqlite", ""),  # a local disk below a network mount
        ("/work/project/store.sqlite", "lustre"),
        ("/mnt/with blank/store.sqlite", "cifs"),
        ("/mnt/ssh/store.sqlite", "fuse.sshfs"),
        ("/mnt/ntfs/store.sqlite", ""),
        ("/twice/store.sqlite", ""),  # the second mount hides the first
    ],
)
def test_the_file_system_of_a_path(path, expected):
    assert network_file_system(path, MOUNTS) == expected


def test_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to("/work/project")
    assert network_file_system(tmp_path / "link" / "store.sqlite", MOUNTS) == "lustre"


def test_collect_warns_in_one_line_and_collects(tmp_path, monkeypatch, capsys):
    made_files(tmp_path / "runs", 1)
    table = tmp_path / "mounts"
    arguments = ["collect", str(tmp_path / "runs"), "--into", str(tmp_path / "store.sqlite")]
    monkeypatch.setattr(address, "_MOUNTS", table)
    for mount, warnings in (("nas:/x / nfs", 1), ("/dev/sda / ext4", 0)):
        table.write_text(f"{mount} rw 0 0\n")
        assert main(arguments) == 0
        err = capsys.readouterr().err
        assert err.count("\n") == err.count("torchcoll: warning: ") == warnings
    monkeypatch.setattr(address, "_MOUNTS", tmp_path / "missing")
    assert main(arguments) == 0
    assert capsys.readouterr().err == ""


def test_of_this_machine():
    """Whatever holds this folder: the answer is a type or nothing, and no error."""
    assert isinstance(network_file_system(os.getcwd()), str)
