"""Measurements between two ranks or hosts, as OSU, perftest and lists print them."""

import pytest

from torchcoll.core.errors import UnreadableError

OSU = """\
$ mpirun -np 2 -host gpu07:1,gpu09:1 osu_{program} D D
# OSU MPI-CUDA {title} Test v7.2
# Size      {unit}
8 {small}
4194304 {large}
"""
PERFTEST = """\
[root@cn3 ~]# ib_write_bw cn2 -a -F
                    RDMA_Write BW Test
 #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]
 65536      5000             {peak}             {value}             0.352073
 8388608    5000             {peak}             {value}             0.002750
"""


def figures(result):
    """host, host, size, ns of each."""
    (run,) = result.runs
    hosts = [member["host"] for member in run.members]
    return [
        (*(hosts[i] for i in each.members), each.size_bytes, each.reported.time_ns)
        for each in run.results
    ]


@pytest.mark.parametrize(
    ("title", "unit", "small", "large", "expected"),
    [
        # 4 MiB in 174.763 us are 24,000 MB/s.
        ("Bandwidth", "Bandwidth (MB/s)", 4.6, 24000, [(4194304, 4194304 / 24.0)]),
        ("Bi-Directional Bandwidth", "Bandwidth (MB/s)", 4.6, 48000, [(4194304, 4194304 / 24.0)]),
        ("MPI_Put Bandwidth", "Bandwidth (MB/s)", 4.6, 24000, [(4194304, 4194304 / 24.0)]),
        ("Latency", "Latency (us)", 1.5, 174.0, [(8, 1500.0), (4194304, 174000.0)]),
    ],
)
def test_osu_between_two_hosts(imported, title, unit, small, large, expected):
    text = OSU.format(program="bw", title=title, unit=unit, small=small, large=large)
    result = imported(text)
    assert (result.importer, result.rows, result.refused) == ("pairs", 2, [])
    assert figures(result) == [("gpu07", "gpu09", size, pytest.approx(ns)) for size, ns in expected]


# 200 Gb/s are 25 GB/s; perftest's MB are 2^20 bytes.
@pytest.mark.parametrize(("unit", "value"), [("Gb/sec", 200.0), ("MB/sec", 25e9 / 2**20)])
def test_perftest(imported, unit, value):
    result = imported(PERFTEST.format(unit=unit, peak=2 * value, value=value))
    ((first, second, size, ns),) = figures(result)
    assert (first, second, size) == ("cn2", "cn3", 8388608) or (first, second) == ("cn3", "cn2")
    assert ns == pytest.approx(8388608 / 25)


@pytest.mark.parametrize(
    "form",
    ["{a},{b}  {v}", "{a} {b} {v}", "{a} <-> {b}: {v}", "({a}, {b}) {v} GB/s", "{a}-> {b} {v}"],
)
def test_a_list(imported, form):
    hosts = ("node11", "node12", "node13")
    pairs = [(hosts[0], hosts[1]), (hosts[0], hosts[2]), (hosts[1], hosts[2])]
    text = "".join(
        form.format(a=a, b=b, v=v) + "\n" for (a, b), v in zip(pairs, (50, 25, 25.0), strict=True)
    )
    result = imported(f"Pairwise busbw (GB/s)\n{text}")
    assert [(a, b, 1 / ns) for a, b, _, ns in figures(result)] == [
        (*pair, pytest.approx(v)) for pair, v in zip(pairs, (50, 25, 25), strict=True)
    ]


def test_a_list_in_bits(imported):
    text = "".join(f"n{i},n{i + 1} 392.0 Gb/s\n" for i in range(4))
    assert {round(1 / ns, 3) for *_, ns in figures(imported(text))} == {49.0}


def test_without_names(imported):
    text = OSU.format(program="bw", title="Bandwidth", unit="", small=4.6, large=24000)
    result = imported(text.partition("\n")[2])
    assert (
        "the names of the two hosts are not in the file: the command line has them"
        in result.warnings
    )


def test_collectives_beside_pairs_are_read(imported):
    """The figures of pairs are refused by name then, and none is lost silently."""
    text = OSU.format(program="bw", title="Bandwidth", unit="Bandwidth (MB/s)", small=4, large=24)
    result = imported(
        f"{text}# OSU MPI Allreduce Latency Test v7.2\n# Size  Avg Latency(us)\n8  1.2\n"
    )
    assert (result.importer, result.rows, len(result.refused)) == ("osu", 1, 2)


def test_prose_is_no_list(imported):
    with pytest.raises(UnreadableError):
        imported("we go 5\nno more\nmy dear 7\nthe end 9\nof it\n")
