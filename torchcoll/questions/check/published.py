"""Published figures of the same kind of machine: as many GPUs on as many hosts.

They are no verdict: nobody knows what else ran there, and the networks of one kind differ. Each
figure has its source, see results/published/ in the repository, which makes published.toml.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from torchcoll.core.backends import BACKENDS, NCCL, ONECCL, of_family
from torchcoll.core.case import Case
from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE, busbw_gbps
from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import CaseResult, Reported, Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.summary import Row
from torchcoll.core.toml_text import toml_table
from torchcoll.core.units import counted, format_digits, format_factor, format_size, parse_size

# Other forms of a GPU of the same name: fewer links, or a part of one.
_OTHERS = {"PCIE", "NVL", "MIG"}
_ANOTHER_MACHINE = 1.2  # times the best published figure: hardly of the same kind of machine
_ROUNDED = 0.999  # what is printed with three digits is no more exact
_PRINTED = 0.006  # GB/s: nccl-tests rounds a bandwidth to 0.01
_TIMED = 0.0002  # a share: it rounds the time too, from which the bandwidth of a row follows
_ABOVE = 1.05  # a run that exceeds the best by more is said to


@dataclass(frozen=True)
class Publication:
    """One run that somebody published.

    id: its name for ``torchcoll again``.
    type: runs of one type are of the same product or site.
    linked: how many GPUs NVLink or xGMI connects with each other: those of a host, or of a rack.
    host_gbit: Gbit/s of all network interfaces of a host; None if the source does not say.
    figures: busbw in GB/s of (collective, bytes), by placement: ``True`` in place, ``False`` out of
        place.
    """

    id: str
    type: str
    machine: str
    gpu: str
    hosts: int
    ranks: int
    network: str
    library: str
    versions: str
    tool: str
    date: str
    who: str
    source: str
    note: str
    linked: int
    figures: Mapping[tuple[str, int], Mapping[bool, float]]
    host_gbit: float | None = None

    @property
    def kind(self) -> str:
        """Such as ``8 H100`` or ``2x8 H100``."""
        if self.hosts == 1:
            return f"{self.ranks} {self.gpu}"
        return f"{self.hosts}x{self.ranks // self.hosts} {self.gpu}"

    @property
    def itself_text(self) -> str:
        """A sentence about the run that this entry was made from."""
        return f"this is the published run {self.id} of {self.who}"

    def gbps(self, collective: str, size_bytes: int, in_place: bool | None) -> float | None:
        """busbw; of the other placement where that one was not published."""
        by_placement = self.figures.get((collective, size_bytes), {})
        return by_placement.get(bool(in_place), next(iter(by_placement.values()), None))


@cache
def publications() -> tuple[Publication, ...]:
    """All entries, in the order of the file."""
    file = resources.files("torchcoll").joinpath("questions/check/published.toml")
    runs = toml_table(file.read_text(encoding="utf-8"))["run"]
    return tuple(Publication(**{**run, "figures": _figures(run["figures"])}) for run in runs)


def _figures(lines: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], dict[bool, float]]:
    names = {"out_of_place": False, "in_place": True}
    return {
        (line["collective"], parse_size(line["size"])): {
            place: float(line[name]) for name, place in names.items() if name in line
        }
        for line in lines
    }


def alike(run: Run) -> list[Publication]:
    """The entries with as many such GPUs on as many hosts; [] if the kind is not known."""
    if itself := published_as(run):
        return [each for each in publications() if each.kind == itself.kind and each != itself]
    gpu_words = _words(_name_of(run))
    if not gpu_words or gpu_words & _OTHERS or not hosts_of(run):
        return []
    return [each for each in of_as_many(run) if _words(each.gpu) <= gpu_words]


def of_as_many(run: Run) -> list[Publication]:
    """The entries of as many GPUs, of any kind; on as many hosts if the run names its hosts."""
    hosts = hosts_of(run)
    return [e for e in publications() if e.ranks == run.ranks and hosts in (0, e.hosts)]


def published_as(run: Run) -> Publication | None:
    """The entry that was made from this run: it has two figures or more, and all are the run's."""
    figures_of_run: dict[tuple[str, int, bool | None], list[float]] = {}
    for row in summarise_run(run) if run.source else ():
        figures_of_run.setdefault((row.collective, row.size_bytes, row.in_place), []).append(
            row.busbw_gbps or 0.0
        )
    for entry in of_as_many(run):
        figures = [
            (gbps, figures_of_run.get((*case, in_place), []))
            for case, by_placement in entry.figures.items()
            for in_place, gbps in by_placement.items()
        ]
        equal = [
            any(abs(gbps - each) <= _PRINTED + _TIMED * gbps for each in values)
            for gbps, values in figures
        ]
        if len(equal) > 1 and all(equal):
            return entry
    return None


def kind_of_run(run: Run) -> str:
    """Such as ``2x8 NVIDIA H100 PCIe``; '' where its GPUs or hosts are not known, or not alike."""
    name, hosts = _name_of(run), hosts_of(run)
    if not name or not hosts or run.ranks % hosts:
        return ""
    return f"{run.ranks} {name}" if hosts == 1 else f"{hosts}x{run.ranks // hosts} {name}"


def missing_labels(run: Run) -> tuple[str, str]:
    """What a file lacks to be compared with published runs, and how to add it; '' if nothing."""
    missing = [] if _name_of(run) else [("GPUs", "gpu=NAME")]
    missing += [] if hosts_of(run) else [("hosts", "hosts=N")]
    labels = " ".join(f"--label {label}" for _, label in missing)
    text = " and ".join(f"no {what}" for what, _ in missing)
    return text and f"the file names {text}", f"torchcoll convert FILE {labels} -o RUN"


def no_reference_text(run: Run, where: str) -> tuple[str, str]:
    """Of a run on GPUs whose fabric is not known: what was looked for, and the nearest step.

    where: such as ``nccl on cuda``.
    """
    name, kind = one_line(_name_of(run)), one_line(kind_of_run(run))
    baseline = "torchcoll check FILE --baseline EARLIER-RUN"
    if name and not any(_words(each.gpu) <= _words(name) for each in publications()):
        return f"for {kind or name}: neither a limit nor a published run is known", baseline
    has_others = "torchcoll show --published FILE has what others reached"
    if itself := published_as(run):
        return f"for {itself.kind}: {itself.itself_text}", has_others if alike(run) else baseline
    missing, step = missing_labels(run)
    if missing:
        return f"for {where}: {missing}", step
    if alike(run):
        return f"for {kind}", has_others
    return f"for {kind or where}: no published run of as many is known", baseline


def _name_of(run: Run) -> str:
    """The name of all GPUs of the run; the label ``gpu`` where it does not tell them."""
    names = {str(m["device_name"]) for m in run.members if m.get("device_name")}
    of_log = run.environment.get("device_name", "") if run.source else ""
    names = names or {str(run.labels.get("gpu") or of_log)}
    return names.pop() if len(names) == 1 else ""


def _words(name: str) -> set[str]:
    return set(re.split(r"[^A-Z0-9]+", name.upper())) - {""}


_LOW = 0.75  # of the lowest published busbw


def few_interfaces(run: Run) -> str:
    """That NCCL_IB_HCA names fewer network interfaces than a host has GPUs, each of which has one
    of its own where several hosts are fast; '' otherwise.
    """
    value = str((run.environment.get("variables") or {}).get("NCCL_IB_HCA", "")).lstrip("=")
    names = {name.partition(":")[0] for name in value.split(",")}
    gpus = max(Counter(m.get("host") for m in run.members).values(), default=0)
    # mlx5 is a prefix: it stands for all of them.
    exact = not value.startswith("^") and all(re.search(r"(?<!mlx)\d$", name) for name in names)
    if not exact or hosts_of(run) < 2 or len(names) >= gpus:
        return ""
    return f"NCCL_IB_HCA names {counted(len(names), 'interface')} for {gpus} GPUs a host"


@dataclass(frozen=True)
class PublishedCase:
    """The best of a run's cases of one size beside what was published of it."""

    row: Row
    published: tuple[tuple[Publication, float], ...]
    noun: str = "published run"

    def text(self, name: str = "this run") -> str:
        """One sentence. name: of the run."""
        low, high = (pick(gbps for _, gbps in self.published) for pick in (min, max))
        many, busbw = len(self.published), self.row.busbw_gbps or 0.0
        below = sum(busbw < _ROUNDED * gbps for _, gbps in self.published)
        kind = self.published[0][0].kind
        reach = (
            f"reach {format_digits(low, 4)} to {format_digits(high, 4)}"
            if many > 1
            else f"reaches {format_digits(low, 4)}"
        )
        where = f"{self.row.collective} {format_size(self.row.size_bytes)}"
        count = f"below {f'{below} of {many}' if many > 1 else 'it'}"
        if below == many and busbw < _LOW * low:
            count = f"low: {100 * busbw / low:.0f} % of {'the lowest' if many > 1 else 'it'}"
        if not below:
            count = "as high as the best" if many > 1 else "not below it"
        if busbw > _ABOVE * high:
            count = f"{format_factor(busbw / high)} the best" if many > 1 else "above it"
        if busbw > _ANOTHER_MACHINE * high:
            count = f"{format_factor(busbw / high)} the best: are these really {kind}?"
        return (
            f"{counted(many, self.noun)} on {kind} {reach} GB/s busbw in {where}; "
            f"{name}'s {format_digits(busbw, 4)} is {count}"
        )


def standings(
    run: Run, rows: Sequence[Row], entries: Sequence[Publication] | None = None
) -> list[PublishedCase]:
    """One of each collective and size that both have, those that most have published first, and of
    these the largest; all_reduce before others. [] where nothing is published of such a machine.
    entries: those to compare with, if not the ones of such a machine.
    """
    usable = [r for r in rows if r.is_right and r.busbw_gbps and r.ranks == run.ranks]
    usable = [r for r in usable if not r.group and r.clock != "issue"]
    publications_alike = (alike(run) if entries is None else entries) if usable else []
    noun = "other published run" if usable and published_as(run) else "published run"
    best: dict[tuple[str, int], Row] = {}
    for row in usable:
        key = row.collective, row.size_bytes
        if key not in best or (row.busbw_gbps or 0) > (best[key].busbw_gbps or 0):
            best[key] = row
    cases = []
    for (collective, size), row in best.items():
        placement = row.in_place
        figures = [(each, each.gbps(collective, size, placement)) for each in publications_alike]
        figures_given = tuple((entry, gbps) for entry, gbps in figures if gbps is not None)
        cases += [PublishedCase(row, figures_given, noun)] if figures_given else []
    names = [DEFAULT_COLLECTIVE, *COLLECTIVES]

    def order(standing: PublishedCase) -> tuple[int, int, int]:
        row = standing.row
        return names.index(row.collective), -len(standing.published), -row.size_bytes

    return sorted(cases, key=order)


def publication_named(name: str) -> Publication | None:
    """The entry with this id; None if there is none."""
    return next((publication for publication in publications() if publication.id == name), None)


def run_of(publication: Publication) -> Run:
    """The entry as a run without samples: the time of a call follows from its busbw."""
    backend = of_family(ONECCL if publication.library == ONECCL else NCCL)[0]
    device = BACKENDS[backend].devices[0]
    ranks, per_host = publication.ranks, max(1, publication.ranks // publication.hosts)
    results = []
    for (collective, size_bytes), by_placement in publication.figures.items():
        for in_place, gbps in by_placement.items():
            case = Case(
                collective, size_bytes, None, None, None, in_place, "unknown", backend, device
            )
            # busbw is proportional to 1 / time.
            time_ns = (busbw_gbps(collective, size_bytes, ranks, 1.0) or 0.0) / gbps
            reported = Reported(time_ns, "mean", busbw_gbps=gbps, derived=True)
            results.append(
                CaseResult(
                    case, "ok", ranks, size_bytes=size_bytes, ordinal=None, reported=reported
                )
            )
    labels = {"gpu": publication.gpu, "hosts": str(publication.hosts)}
    if publication.host_gbit:
        labels["link_gbps"] = f"{publication.host_gbit / 8 / per_host:g}"
    members = [
        {
            "rank": rank,
            "host": f"host{rank // per_host}",
            "device": device,
            "device_name": publication.gpu,
        }
        for rank in range(ranks)
    ]
    header = {
        "run_id": f"published:{publication.id}",
        "ranks": ranks,
        "source": {"tool": publication.tool, "file": publication.source},
        "spec": {"labels": labels},
        "environment": {},
    }
    return Run(header=header, members=members, results=results, end={"status": "complete"})
