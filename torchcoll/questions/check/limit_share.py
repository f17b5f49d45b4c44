"""What share of the limit of its links a run reaches, to compare runs on different hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchcoll.core import plausibility
from torchcoll.core.plausibility import device_named
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.units import format_digits, format_size
from torchcoll.libraries.nccl.ceilings import TREE, Reach, algorithm_limits
from torchcoll.libraries.nccl.speeds import Ceiling
from torchcoll.questions.check.published import Publication, run_of


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
        return f"{share:.0f} % of {format_digits(self.limit_gbps, 4)} GB/s"


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
    busbw = format_digits(case.busbw_gbps or 0.0, 4)
    text = f"plausible: {busbw} GB/s busbw in {case.case}, {case.text} (ring or NVLS)"
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


# AMD's blog says that about 48 of the 64 GB/s of a link can be used (rules/xgmi-mi300x.toml).
_XGMI_GBPS = {"MI300X": 48.0}


@dataclass(frozen=True)
class MachineLinks:
    """What is known of the links of a machine.

    gpu: the name of its GPUs.
    linked: how many of them NVLink or xGMI connects with each other: those of a host, or of a rack.
    nics_gbps: all network interfaces of these GPUs together.
    doubt: standard deviation of the logarithm of ``nics_gbps``; 0 if it is known.
    """

    gpu: str
    linked: int
    nics_gbps: float
    doubt: float = 0.0

    def within_gbps(self, gpus: int) -> float | None:
        """What each of so many linked GPUs sends to the others; None if not known."""
        if self.gpu in _XGMI_GBPS:
            return _XGMI_GBPS[self.gpu] * max(1, gpus - 1)  # a link for each pair
        device = device_named(self.gpu)
        return device.ring_gbps if device else None

    def ceiling_gbps(self, collective: str, ranks: int, hosts: int) -> float | None:
        """The largest busbw that the links allow a ring or a switch; None if they are not known.

        A tree over two hosts could exceed a ring, because less crosses the network. Of five
        published pairs of hosts without NVLS only one does, so that it does not count.
        """
        per_host = max(1, round(ranks / hosts))
        nics, within = self.nics_gbps, self.within_gbps(per_host)
        if within is None and per_host > 1:
            return None
        within = within or 0.0
        if collective == "all_to_all":
            across = nics / per_host * (ranks - 1) / max(1, ranks - per_host)
            return within if hosts == 1 else min(across, within) if within else across
        device = device_named(self.gpu)
        generation = device.nvlink.capability // 10 if device else None
        reach = Reach(
            hosts=hosts,
            gpus=per_host,
            links=Ceiling(within, f"links of {self.gpu}"),
            gpu_gbps=within,
            nics_gbps=nics,
            nics=per_host,
            generation=generation,
            switched=device is not None,
            in_network=False,
        )
        limits = algorithm_limits(reach)
        return max(
            (
                limit.gbps
                for limit in limits
                if limit.gbps and collective in limit.collectives and limit.algorithm != TREE
            ),
            default=None,
        )
