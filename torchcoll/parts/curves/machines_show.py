"""The machines that others measured, as a table: `--machine list`."""

from __future__ import annotations

from typing import TextIO

from torchcoll.core.units import counted
from torchcoll.parts.curves.published_machine import PublishedMachine, published_machines
from torchcoll.report.answer import Answer
from torchcoll.report.formats import print_forms
from torchcoll.report.grid import Grid, Head, make_grid

SCHEMA = "torchcoll-machines/1"


def show_machines(format: str = "table", file: TextIO | None = None) -> None:
    """Print the names that `--machine` takes. Raises UsageError for an unknown format."""
    machines = list(published_machines().values())
    kinds = sum(not machine.type for machine in machines)
    text = (
        f"{counted(len(machines) - kinds, 'type')} of machine that others measured, and "
        f"{counted(kinds, 'kind')} of host; torchcoll show --published has the runs and sources"
    )
    grid = make_grid(
        [
            (Head("machine", left=True), lambda machine: machine.name),
            (Head("GPUs", "linked"), lambda machine: str(machine.links.linked)),
            (Head("GPU", left=True), lambda machine: machine.links.gpu),
            (Head("network", "Gbit/s a host"), _network),
            (Head("ranks published", left=True), _ranks),
            (Head("what", left=True, drop=1), _what),
        ],
        machines,
        below=["~ assumed: the median of what such machines state, or what they usually have"],
    )
    rows = [_row(machine) for machine in machines]
    last = Grid([], [], answer=Answer(text))
    print_forms([("", [grid, last])], rows, {"schema": SCHEMA, "rows": rows}, format, file)


def _network(machine: PublishedMachine) -> str:
    assumed = "~" if machine.links.doubt else ""
    return f"{assumed}{8 * machine.links.nics_gbps:.0f}"


def _ranks(machine: PublishedMachine) -> str:
    return ", ".join(map(str, sorted({run.ranks for run in machine.runs})))


def _what(machine: PublishedMachine) -> str:
    return "a kind of host" if not machine.type else machine.runs[0].machine


def _row(machine: PublishedMachine) -> dict[str, object]:
    return {
        "machine": machine.name,
        "gpu": machine.links.gpu,
        "linked": machine.links.linked,
        "network_gbit": 8 * machine.links.nics_gbps,
        "network_assumed": bool(machine.links.doubt),
        "ranks": sorted({run.ranks for run in machine.runs}),
        "type": machine.type or None,
    }
