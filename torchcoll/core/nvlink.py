"""NVLink by generation: the one table of how many links a GPU has and what each carries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NvlinkGeneration:
    """The links of one generation of GPUs, in GB/s of one link in one direction.

    capability: the lowest compute capability of the generation.
    links: of the generation's largest part; smaller parts (PCIe cards, A800, H20) have fewer.
    nccl_gbps: the speed that NCCL assumes (ncclTopoNVLinkBw of its src/graph/topo.h), about four
    fifths of the wire's rate; a measured ring comes close (NVIDIA/nccl-tests#212).
    wire_gbps: the signalling rate (NVIDIA's product pages); None if no table here needs it.
    """

    capability: int
    links: int
    nccl_gbps: float
    wire_gbps: float | None

    @property
    def ring_gbps(self) -> float:
        """The speed that NCCL assumes for all links of a full part."""
        return round(self.links * self.nccl_gbps, 1)


PASCAL = NvlinkGeneration(60, 4, 18.0, None)
VOLTA = NvlinkGeneration(70, 6, 20.0, 25.0)
AMPERE = NvlinkGeneration(80, 12, 20.0, 25.0)
HOPPER = NvlinkGeneration(90, 18, 20.6, 25.0)
BLACKWELL = NvlinkGeneration(100, 18, 40.1, 50.0)
GENERATIONS = (PASCAL, VOLTA, AMPERE, HOPPER, BLACKWELL)
NEWER = 107  # from this compute capability on a GPU is newer than this table


def generation_of(capability: int) -> NvlinkGeneration | None:
    """The generation of a GPU of this compute capability (90 for 9.0); None if it is unknown."""
    older = [each for each in GENERATIONS if each.capability <= capability < NEWER]
    return older[-1] if older else None
