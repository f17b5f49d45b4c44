"""Which launchers and network interfaces this process can use."""

from __future__ import annotations

from typing import Any

from torchcoll.bench.doctor.facts import Facts
from torchcoll.bench.doctor.usable import Usable, no, no_torch


def launchers(facts: Facts) -> list[Usable]:
    return [_torchrun(facts), *_commands(facts)]


def _torchrun(facts: Facts) -> Usable:
    if not facts.torch:
        return no("torchrun", "it is a part of torch", no_torch(facts)[1])
    command = facts.commands.get("torchrun")
    if command is None:
        return Usable("torchrun", True, "not on PATH: python -m torch.distributed.run is the same")
    if not command["own"]:
        text = f"{command['path']} is another Python's: use python -m torch.distributed.run"
        return Usable("torchrun", True, text)
    return Usable("torchrun", True, f"of torch {facts.torch['version']}")


def _commands(facts: Facts) -> list[Usable]:
    found = []
    for name in ("srun", "mpirun", "mpiexec"):
        command = facts.commands.get(name)
        if command is None:
            what = "Slurm" if name == "srun" else "an MPI (any one of its kind will do)"
            found.append(no(name, "not on PATH", f"nothing where torchrun does; else load {what}"))
        elif command["error"]:
            action = (
                "run it where the cluster's configuration is"
                if name == "srun"
                else "see what it says"
            )
            error = command["error"].removeprefix(f"{name}: error: ")
            found.append(no(name, f"{name} --version fails: {error}", action))
        else:
            job = facts.launch.job_id
            where = "" if name != "srun" else f"; inside of job {job}" if job else "; in no job yet"
            found.append(Usable(name, True, command["version"] + where))
    return found


def interfaces(facts: Facts) -> list[Usable]:
    return [_interface(i) for i in facts.interfaces] + [_port(p) for p in facts.rdma]


def _interface(interface: dict[str, Any]) -> Usable:
    name, state = interface["name"], interface["state"]
    speed = interface["speed_mbps"]
    words = [interface["kind"], *interface["families"]]
    words += [f"{speed / 1000:g} Gb/s"] if speed else []
    if interface["kind"] == "loopback":
        words.append("reaches this host alone")
    # Tunnels and loopback are 'unknown' while they work.
    if state not in ("up", "unknown"):
        return no(name, f"{interface['kind']}, {state}", "nothing, unless it was meant to be used")
    if not interface["families"]:
        return no(
            name, f"{interface['kind']}, no address", "nothing, unless it was meant to be used"
        )
    return Usable(name, True, ", ".join(words))


def _port(port: dict[str, Any]) -> Usable:
    name = f"{port['name']}:{port['port']}"
    text = ", ".join(filter(None, (port["link"], port["rate"])))
    if port["state"] == "active":
        return Usable(name, True, f"RDMA, {text}")
    return no(
        name, f"RDMA, {text}, port is {port['state']}", "nothing, unless it was meant to be used"
    )
