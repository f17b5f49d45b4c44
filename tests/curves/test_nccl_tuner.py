"""The tuner file, read as the plugin reads it (NCCL's ext-tuner/example/plugin.c)."""

import pytest

from torchcoll.libraries.nccl.forced import missing
from torchcoll.libraries.oneccl.algorithms import selection
from torchcoll.parts.curves.exports import TunerRule, tuner_csv

RULES = [
    TunerRule("AllReduce", 0, 32768, "TREE", "LL", 8, 1, 8),
    TunerRule("AllReduce", 32769, None, "NVLS_TREE", "SIMPLE", 24, 1, 8),
]
# plugin.c compares with these by strcmp; anything else is allreduce, ring, simple.
FUNCTIONS = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
ALGORITHMS = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}
PROTOCOLS = {"ll", "ll128", "simple"}


def chosen(text, function, size_bytes, nodes, ranks):
    """The choice of the plugin: the first line that matches, or else one channel."""
    for line in text.splitlines():
        if not line or line[0] == "#" or len(line) >= 256:
            continue
        fields = line.split(",")
        low, high, channels, own_nodes, own_ranks = map(int, (*fields[1:3], *fields[5:8]))
        assert fields[0] in FUNCTIONS
        assert fields[3] in ALGORITHMS
        assert fields[4] in PROTOCOLS
        if (
            fields[0] == function
            and low <= size_bytes <= high
            and own_nodes in (-1, nodes)
            and own_ranks in (-1, ranks)
        ):
            return fields[3], fields[4], channels
    return None, None, 1


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (("allreduce", 0, 1, 8), ("tree", "ll", 8)),
        (("allreduce", 32768, 1, 8), ("tree", "ll", 8)),
        (("allreduce", 32769, 1, 8), ("nvls_tree", "simple", 24)),
        (("allreduce", 1 << 33, 1, 8), ("nvls_tree", "simple", 24)),
        (("allreduce", 1024, 2, 16), ("ring", "simple", 24)),
        (("broadcast", 1 << 40, 4, 32), ("ring", "simple", 24)),
        (("reducescatter", 0, 1, 8), ("ring", "simple", 24)),
    ],
)
def test_every_call_has_a_line(call, expected):
    assert chosen(tuner_csv(RULES, []), *call) == expected


def test_the_header_names_the_plugins_that_work():
    lines = tuner_csv(RULES, ["a comment " * 40]).splitlines()
    text = "\n".join(lines)
    assert "2.30.3 and later" in text
    assert "2.27.5 to 2.29.7" in text
    assert "would run on one channel" in text
    assert max(map(len, lines)) < 256
    assert all(line[0] == "#" or line.count(",") == 7 for line in lines)


@pytest.mark.parametrize(
    "bad",
    [
        TunerRule("AllToAll", 0, None, "RING", "LL", 4),
        TunerRule("AllReduce", 0, None, "SYMMETRIC", "LL", 4),
        TunerRule("AllReduce", 0, None, "RING", "ll", 4),
        TunerRule("AllReduce", 0, None, "RING", "LL", -1),
    ],
)
def test_what_the_plugin_would_misread_is_refused(bad):
    with pytest.raises(ValueError, match="no line of a tuner file"):
        bad.line()


def test_selection_of_oneccl():
    spans = [("recursive_doubling", 0, 8192), ("ring", 8193, None)]
    assert selection(spans) == "recursive_doubling:0-8192;ring:8193-max"
    assert selection([("ring", 0, None)]) == "ring"


def test_what_algorithms_lack():
    one_host = dict.fromkeys(("nvlstree", "collnetdirect", "collnetchain", "pat"), "one host")
    assert missing(True, None) == missing(True, True) == one_host
    no_switch = {"nvls": "no NVSwitch that reduces", "nvlstree": "no NVSwitch that reduces"}
    assert missing(True, False) == one_host | no_switch
    assert missing(False, True) == {}
    assert missing(False, False) == no_switch
