"""Programs that start in 0.1 s: each of their processes is forked from one that has imported torch.

``forked_python`` stands in for the interpreter where a script, torchrun or a command under test
starts Python: to import torch and pandas costs more than 2 s of CPU in each new process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import torch
from ranks import fewer_calls  # and it imports what commands need

Program = Callable[[list[str]], object]

# What the program is started with goes to the server together with the three standard streams. The
# process of the program is no child of this one, which hands signals on to it, and ends as it does.
_STUB = """#!{python} -SE
import array, contextlib, json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
started = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
streams = array.array("i", [0, 1, 2])
server.sendmsg([len(started).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
server.sendall(started)
pid = int.from_bytes(server.recv(8), "big")
def hand_on(number, frame):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, hand_on)
code = int(server.recv(9))
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextlib.contextmanager
def forked_program(path: Path, program: Program) -> Iterator[None]:
    """An executable at ``path`` that runs ``program(arguments)`` in a fork of this process."""
    # The address of a socket has at most 107 bytes.
    address = f"\0torchcoll-{os.getpid()}-{path.name}-{id(program)}"
    path.write_text(_STUB.format(python=sys.executable, address=address))
    path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        server = os.fork()
        if not server:
            _serve(listener, path, program)
    try:
        yield
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


@contextlib.contextmanager
def forked_python(path: Path) -> Iterator[None]:
    """``path`` runs modules, scripts and -c as this interpreter does."""
    with forked_program(path, run_python):
        yield


def run_python(words: list[str]) -> None:
    """``python WORDS``; options that change nothing here are passed over."""
    while words[0] in ("-W", "-u", "-S"):
        words = words[2 if words[0] == "-W" else 1 :]
    kind, *rest = words
    inherited = [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]
    first = str(Path(kind).resolve().parent) if kind not in ("-m", "-c") else os.getcwd()
    sys.path[:0] = [first, *inherited]
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(rest[0], {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(kind, run_name="__main__")


def _serve(listener: socket.socket, path: Path, program: Program) -> NoReturn:
    """A process for each start of the program, until the tests have ended."""
    try:
        tests = os.getppid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        listener.settimeout(5)
        while os.getppid() == tests:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            try:
                stub, _ = listener.accept()
            except TimeoutError:
                continue
            with stub:
                if not os.fork():
                    listener.close()
                    _watch(stub, path, program)
    finally:
        os._exit(1)


def _watch(stub: socket.socket, path: Path, program: Program) -> NoReturn:
    """Start the program, and report its exit code to the stub; without a stub it is killed."""
    try:
        stub.settimeout(None)
        length, streams, *_ = socket.recv_fds(stub, 8, 3)
        started = b""
        while len(started) < int.from_bytes(length, "big"):
            started += stub.recv(1 << 20)
        pid = os.fork()
        if not pid:
            stub.close()
            words, folder, environment = json.loads(started)
            _become(streams, folder, environment, path, lambda: program(words))
        for stream in streams:  # a reader waits until nobody has them open
            os.close(stream)
        stub.sendall(pid.to_bytes(8, "big"))
        ended = os.pidfd_open(pid)
        if ended not in select.select([stub, ended], [], [])[0]:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        stub.sendall(b"%d" % code)
    finally:
        os._exit(0)


def _become(
    streams: list[int],
    folder: str,
    environment: dict[str, str],
    path: Path,
    target: Callable[[], object],
) -> NoReturn:
    """The life of the program, as far as a new interpreter would have it."""
    code = 1
    gc.freeze()
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        sys.stderr.reconfigure(line_buffering=True)
        atexit._clear()
        for signum in (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        warnings.resetwarnings()
        for ignored in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning):
            warnings.simplefilter("ignore", ignored)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.executable = str(path)
        torch.set_num_threads(1)
        fewer_calls()
        target()
        code = 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()
            atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
