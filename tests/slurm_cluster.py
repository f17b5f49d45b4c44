"""A real Slurm of two nodes on this machine: two slurmd, each with a host name of its own.

munge has its own key. Nothing outside the given folder is written.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from launching import PATH, ROOT, run
from ranks import free_port, past

CONF = """
ClusterName=torchcoll
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
Prolog={folder}/prolog
HealthCheckProgram={folder}/health
HealthCheckInterval=2
HealthCheckNodeState=IDLE
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=2000
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=2000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
# The names of the nodes resolve as they do on a cluster, and a node knows its own.
NODE = "mount --bind {folder}/hosts /etc/hosts && hostname {name} && exec slurmd -D -N {name}"


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        folder = self.folder
        for name in ("state", "n1", "n2"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        (folder / "hosts").write_text("127.0.0.1 localhost n1 n2\n")
        ports = [free_port() for _ in range(3)]
        for name in ("prolog", "health"):
            self.set_hook(name, "")
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, ports=ports))
        options = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log"}
        options["seed-file"] = "seed"
        files = [f"--{option}={folder}/munge.{name}" for option, name in options.items()]
        self._start("munged", "--foreground", "--force", *files)
        began = time.monotonic()
        while not (folder / "munge.socket").exists():
            assert not past(began, 30), "munged did not start"
            time.sleep(0.02)
        self._start("slurmctld", "-c", "-D")
        for name in ("n1", "n2"):
            node = NODE.format(folder=folder, name=name)
            self._start("unshare", "--mount", "--uts", "sh", "-c", node)
        began = time.monotonic()
        while run(["sinfo", "-h", "-o", "%D%T"], env=self.env).stdout.split() != ["2idle"]:
            assert not past(began, 60), (folder / "slurmctld.log").read_text()
            time.sleep(0.2)

    def set_hook(self, name: str, line: str) -> None:
        """What slurmd runs as its Prolog (``prolog``) or HealthCheckProgram (``health``)."""
        new = self.folder / f"{name}.new"
        new.write_text(f"#!/bin/bash\n{line}\n")
        new.chmod(0o755)
        new.rename(self.folder / name)

    def _start(self, *command: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            daemon = subprocess.Popen(
                command,
                env={**os.environ, **self.env, "PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.daemons.append(daemon)

    def stop(self) -> None:
        if len(self.daemons) > 1:
            run(["scancel", "--user=root", "--signal=KILL"], env=self.env)
        for daemon in reversed(self.daemons):  # munged last: the others speak through it
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(1)
            daemon.kill()
            daemon.wait()

    def wait_for_job(self, job: str) -> str:
        """What scontrol shows of the job when it has ended."""
        began = time.monotonic()
        while True:  # sbatch --wait looks every 10 s
            state = run(["scontrol", "show", "job", job], env=self.env).stdout
            if not re.search("JobState=(PENDING|RUNNING|COMPLETING|CONFIGURING)", state):
                return state
            assert not past(began, 60), state
            time.sleep(0.1)

    def batch(self, folder: Path, *options: str, **env: str) -> tuple[int, str]:
        """Exit code and output of slurm.sbatch."""
        done = run(
            [
                "sbatch",
                "--parsable",
                "--nodes=2",
                "--ntasks-per-node=1",
                "--gpus-per-node=0",
                "--output=out",
                *options,
                ROOT / "launch/slurm.sbatch",
            ],
            env={**self.env, **env},
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr
        state = self.wait_for_job(done.stdout.strip())
        match = re.search(r" ExitCode=(\d+):", state)
        assert match, state
        return int(match[1]), (folder / "out").read_text()
