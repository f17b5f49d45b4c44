"""NVLink by generation: the one table of how many links a GPU has and what each carries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NvlinkGeneration:
    """The links of one generation of GPUs, in GB/s of one link in one direction.

    capability: from this compute capability on. links: of the generation's largest part; smaller
    parts (PCIe cards, A800, H20) have fewer. nccl_gbps: what NCCL reckons with (ncclTopoNVLinkBw of
    its src/graph/topo.h: 20.6 for 9.0 since 2.20, 40.1 for 10.0 since 2.27), about four fifths of
    the wire's rate; a measured ring comes close (about 370 GB/s of busbw on eight H100,
    NVIDIA/nccl-tests#212). wire_gbps: the signalling rate (NVIDIA's product pages give both
    directions of all links: 300, 600, 900, 1800 GB/s); None where no table here needs it.
    """

    capability: int
    links: int
    nccl_gbps: float
    wire_gbps: float | None

    @property
    def ring_gbps(self) -> float:
        """What NCCL reckons with for all links of a full part."""
        return round(self.links * self.nccl_gbps, 1)

    @property
    def all_wires_gbps(self) -> float:
        """The signalling rate of all links of a full part."""
        assert self.wire_gbps is not None
        return self.links * self.wire_gbps


PASCAL = NvlinkGeneration(60, 4, 18.0, None)
VOLTA = NvlinkGeneration(70, 6, 20.0, 25.0)
AMPERE = NvlinkGeneration(80, 12, 20.0, 25.0)
HOPPER = NvlinkGeneration(90, 18, 20.6, 25.0)
BLACKWELL = NvlinkGeneration(100, 18, 40.1, 50.0)
GENERATIONS = (PASCAL, VOLTA, AMPERE, HOPPER, BLACKWELL)
NEWER = 107  # from this compute capability on a GPU is newer than this table


def generation_of(capability: int) -> NvlinkGeneration | None:
    """That of a GPU of this compute capability (90 for 9.0); None where it is not known."""
    older = [
        generation for generation in GENERATIONS if generation.capability <= capability < NEWER
    ]
    return older[-1] if older else None
