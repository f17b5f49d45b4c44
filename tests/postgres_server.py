"""A PostgreSQL server of its own for tests and benchmarks, in a folder that goes with it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


class NoServer(Exception):
    """This machine cannot start one; the text says why."""


def find_program(name: str) -> str:
    """Debian keeps these programs out of PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    path = shutil.which(name) or next((str(path) for path in versions), "")
    if not path:
        raise NoServer(f"no {name} (apt install postgresql)")
    return os.path.realpath(path)


@contextlib.contextmanager
def running_server(*settings: str) -> Iterator[str]:
    """Yields ``postgresql://postgres@127.0.0.1:PORT``, which needs no password.

    settings: NAME=VALUE of postgresql.conf. Root runs the server as user postgres, which it
    refuses to be itself. Raises NoServer.
    """
    initdb, control = find_program("initdb"), find_program("pg_ctl")
    folder = Path(tempfile.mkdtemp(prefix="torchcoll-postgres-"))
    as_user: list[str] = []
    if os.getuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            raise NoServer("no user postgres") from None
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = ["runuser", "-u", "postgres", "--"]
    data = folder / "data"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fixed = (f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}")
    options = " ".join(f"-c {each}" for each in (*fixed, "fsync=off", *settings))

    def call(*words: str) -> None:
        done = subprocess.run(
            [*as_user, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            raise NoServer(f"{words[0]}: {done.stdout.decode(errors='replace')[-500:]}")

    try:
        call(initdb, "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        # Its output goes to a file: a pipe would stay open as long as the server runs.
        log = str(folder / "log")
        call(control, "-D", str(data), "-w", "-t", "60", "-l", log, "-o", options, "start")
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}"
        finally:
            call(control, "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
