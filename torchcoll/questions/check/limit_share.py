"""What share of the limit of its links a run reaches, to compare runs on different hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchcoll.core import plausibility
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.units import format_size
from torchcoll.questions.check.machine_links import MachineLinks
from torchcoll.questions.check.published import Publication
from torchcoll.questions.check.published_run import run_of


@dataclass(frozen=True)
class LimitShare:
    """The best busbw of one collective and size, and the most that the links allow, in GB/s."""

    collective: str
    size_bytes: int
    busbw_gbps: float
    limit_gbps: float

    @property
    def case(self) -> str:
        return f"{self.collective} {format_size(self.size_bytes)}"

    @property
    def text(self) -> str:
        """Such as ``99 % of 483 GB/s``."""
        share = 100 * self.busbw_gbps / self.limit_gbps
        return f"{share:.0f} % of {self.limit_gbps:.4g} GB/s"


def limit_shares(run: Run, linked: int | None = None) -> Mapping[tuple[str, int], LimitShare]:
    """The share of each (collective, bytes); none where GPUs, hosts or interfaces are not known.

    The limit is that of a ring, or of the switches where they reduce (NVLS): the links of a GPU
    within a host, and the interfaces between hosts (label ``link_gbps``). A tree over two hosts can
    exceed it.
    linked: how many GPUs NVLink or xGMI connects with each other; None: those of a host.
    """
    names = {str(member["device_name"]) for member in run.members if member.get("device_name")}
    name = names.pop() if len(names) == 1 else run.labels.get("gpu", "")
    hosts = hosts_of(run)
    if not name or not hosts or run.ranks % hosts:
        return {}
    device = plausibility.device_named(name)
    per_host = linked or run.ranks // hosts
    groups = max(1, round(run.ranks / per_host))
    link_gbps = plausibility.stated_link_gbps(run)
    if groups > 1 and link_gbps is None:
        return {}
    links = MachineLinks(device.name if device else name, per_host, (link_gbps or 0.0) * per_host)
    shares: dict[tuple[str, int], LimitShare] = {}
    for row in plausibility.summarise_run(run):
        key = row.collective, row.size_bytes
        if not row.is_right or not row.busbw_gbps or row.ranks != run.ranks or row.group:
            continue
        limit = links.ceiling_gbps(row.collective, run.ranks, groups)
        if limit and (key not in shares or row.busbw_gbps > shares[key].busbw_gbps):
            shares[key] = LimitShare(*key, row.busbw_gbps, limit)
    return shares


def largest(shares: Mapping[tuple[str, int], LimitShare]) -> LimitShare | None:
    """The share of the largest size of the first collective; None without any."""
    if not shares:
        return None
    first = next(iter(shares))[0]
    return max(
        (share for (collective, _), share in shares.items() if collective == first),
        key=lambda share: share.size_bytes,
    )


def plausibility_text(publication: Publication) -> str:
    """What the largest case of a published entry reaches, and whether that is possible."""
    run = run_of(publication)
    if doubt := next(filter(None, plausibility.doubts_of(run)), ""):
        return f"implausible: {doubt}"
    case = largest(limit_shares(run, publication.linked))
    if case is None:
        return "possible, but the speed of all its links is not known, so no share of a limit"
    text = f"plausible: {case.busbw_gbps:.4g} GB/s busbw in {case.case}, {case.text} (ring or NVLS)"
    if case.busbw_gbps > case.limit_gbps:
        text += "; a tree over few hosts can exceed a ring, and the links carry it"
    return text


def compared_shares(file: Run, new: Run, linked: int | None = None) -> str:
    """Both shares in the largest case that both have; '' where there is none."""
    of_file, of_new = limit_shares(file, linked), limit_shares(new)
    case = largest({key: share for key, share in of_file.items() if key in of_new})
    if case is None:
        return ""
    return (
        f"share of the limit in {case.case}: {case.text} in the file, "
        f"{of_new[case.collective, case.size_bytes].text} in the new runs"
    )
