"""What the links of a machine allow a collective: within a host, and between hosts."""

from __future__ import annotations

from dataclasses import dataclass

from torchcoll.core.plausibility import device_named
from torchcoll.libraries.nccl.ceilings import TREE, Reach, algorithm_limits
from torchcoll.libraries.nccl.speeds import Ceiling

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
