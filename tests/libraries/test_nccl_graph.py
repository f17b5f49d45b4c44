"""NCCL's graph files, made by hand."""

from __future__ import annotations

import pytest

from torchcoll.libraries.nccl.topology import SearchGraph, pattern_name, read_graphs
from torchcoll.libraries.nccl.xml_tree import read_tree


def read(tmp_path, *texts: str) -> list[SearchGraph]:
    path = tmp_path / "graph.xml"
    path.write_text('<graphs version="1">\n' + "\n".join(texts) + "\n</graphs>\n")
    return read_graphs(read_tree(str(path))[0])


def graph(number: int, pattern: int, *channels: str, count=None, speeds=(20, 20), types="NVL/PIX"):
    intra, inter = types.split("/")
    return (
        f'<graph id="{number}" pattern="{pattern}" crossnic="0" '
        f'nchannels="{len(channels) if count is None else count}" speedintra="{speeds[0]}" '
        f'speedinter="{speeds[1]}" latencyinter="0" typeintra="{intra}" typeinter="{inter}" '
        f'samechannels="1">{"".join(channels)}</graph>'
    )


def channel(*gpus: object, net: str = "", ranks: bool = False) -> str:
    rank = ' rank="{0}"' if ranks else ""
    gpus_xml = "".join(f'<gpu dev="{dev}"{rank.format(n)}/>' for n, dev in enumerate(gpus))
    network = f'<net dev="{net}"/>' if net else ""
    return f"<channel>{network}{gpus_xml}{network}</channel>"


def test_a_ring_within_a_host(tmp_path):
    """Eight A100: twelve rings of 20 GB/s, 240 together, which is what their links carry."""
    (ring,) = read(tmp_path, graph(0, 4, *[channel(*range(8))] * 12))
    assert (ring.id, ring.pattern, ring.channels, ring.intra_type) == (0, 4, 12, "NVL")
    assert ring.together_gbps == 240
    assert not ring.leaves_host and not ring.alone and ring.whole
    assert ring.orders[0].gpus == tuple("01234567")
    assert ring.orders[0].ranks is None


def test_between_hosts_the_slower_speed_counts(tmp_path):
    (ring,) = read(tmp_path, graph(0, 4, *[channel(0, 1, net="0x1")] * 2, speeds=(40, 24)))
    assert ring.leaves_host and ring.orders[0].nets == ("1", "1")
    assert ring.together_gbps == 48


def test_device_numbers_of_each_version(tmp_path):
    """Decimal up to 2.20; from 2.21 hexadecimal, with the host in the highest byte."""
    old, new = read(
        tmp_path,
        graph(0, 4, channel(9, 10)),
        graph(1, 3, channel("0xa", "0x100000000000002", ranks=True)),
    )
    assert old.orders[0].gpus == ("9", "10")
    assert new.orders[0].gpus == ("10", "1-2")
    assert new.orders[0].ranks == (0, 1)


def test_one_gpu_alone(tmp_path):
    """Its 16 channels of 40 GB/s cross no link: no bandwidth follows from them."""
    ring, tree = read(
        tmp_path,
        *(
            graph(n, p, *[channel(4)] * 16, speeds=(40, 40), types="LOC/PIX")
            for n, p in ((0, 4), (1, 3))
        ),
    )
    assert ring.alone and tree.alone
    assert ring.together_gbps is None


def test_one_gpu_a_host_is_not_alone(tmp_path):
    (ring,) = read(tmp_path, graph(0, 4, channel(0, net="0"), speeds=(24, 12), types="LOC/PIX"))
    assert not ring.alone
    assert ring.together_gbps == 12


def test_a_search_that_found_nothing(tmp_path):
    fallback, none = read(
        tmp_path,
        graph(0, 4, channel(0, 1), speeds=(0.1, 0.1), types="SYS/SYS"),
        graph(3, 5, speeds=(0, 0), types="LOC/LOC"),
    )
    assert fallback.fallback and fallback.together_gbps is None
    assert (none.channels, none.orders, none.together_gbps) == (0, (), None)


def test_a_file_that_ends_early(tmp_path):
    path = tmp_path / "cut.xml"
    text = graph(0, 4, *[channel(0, 1, net="0")] * 3, speeds=(40, 12))
    path.write_text(f'<graphs version="1">{text[: text.rindex("<gpu")]}')
    (ring,) = read_graphs(read_tree(str(path))[0])
    assert (ring.channels, len(ring.orders), ring.whole) == (3, 2, False)
    assert ring.together_gbps is None


def test_numbers_that_are_none(tmp_path):
    text = '<graph id="x" nchannels="1" speedintra="nan"><channel><gpu/></channel></graph>'
    (graph,) = read(tmp_path, text)
    assert (graph.id, graph.intra_gbps, graph.together_gbps) == (None, None, None)
    assert graph.orders[0].gpus == ("?",)


@pytest.mark.parametrize(
    ("number", "name"), [(1, "balanced tree"), (4, "ring"), (7, "pattern 7"), (None, "")]
)
def test_patterns(number, name):
    """src/include/graph.h, NCCL_TOPO_PATTERN_*."""
    assert pattern_name(number) == name
