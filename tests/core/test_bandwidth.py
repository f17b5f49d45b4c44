"""Against the worked numbers of nccl-tests' formulas (reference: doc/PERFORMANCE.md)."""

import pytest

from torchcoll.core.collectives import COLLECTIVES, algbw_gbps, busbw_gbps

# n = 8, t = 1 ms, S = 64 MiB = 67108864 B; x 1.75 for all_reduce, x 7/8 for the divided ones.
WORKED = {
    "all_reduce": (67.108864, 117.440512),
    "reduce_scatter": (67.108864, 58.720256),
    "all_gather": (67.108864, 58.720256),
    "all_to_all": (67.108864, 58.720256),
    # Its busiest rank sends 50 MB to the others, whatever (n - 1) / n is.
    "all_to_all_v": (67.108864, 50.0),
    "reduce_scatter_v": (67.108864, 50.0),
    "all_gather_v": (67.108864, 50.0),
    "gather": (67.108864, 58.720256),
    "scatter": (67.108864, 58.720256),
    "broadcast": (67.108864, 67.108864),
    "reduce": (67.108864, 67.108864),
    "sendrecv": (67.108864, 67.108864),
    "hypercube": (58.720256, 58.720256),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_checks(name):
    case = (name, 67108864, 8, 1e6)
    busbw = busbw_gbps(*case, busiest_bytes=50_000_000 if name.endswith("_v") else None)
    assert (algbw_gbps(*case), busbw) == pytest.approx(WORKED[name], rel=1e-12)


def test_every_collective_with_data_is_worked():
    assert set(COLLECTIVES) - set(WORKED) == {"barrier"}


@pytest.mark.parametrize(
    "case",
    [
        ("all_reduce", 1024, 1, 1000),  # one rank: no communication
        ("broadcast", 1024, 1, 1000),
        ("all_reduce", 0, 2, 1000),
        ("all_reduce", 1024, 2, 0),
        ("barrier", 0, 2, 1000),
        ("barrier", 8, 2, 1000),
    ],
)
def test_unknown_is_none(case):
    assert algbw_gbps(*case) is None
    assert busbw_gbps(*case) is None
