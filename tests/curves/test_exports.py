"""What can be forced, and how oneCCL selects by size."""

from torchcoll.libraries.nccl.forced import missing
from torchcoll.libraries.oneccl.algorithms import selection


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
