"""The verdict on the ranks: it ends the table, and is no exit code: torchcoll check has a gate."""

import socket

import pytest
from error_form import error_text

# A bandwidth that any machine has: the figure is beyond it, and so the verdict is FAIL.
SLOW = "--sizes 64K -n 2 --label link_gbps=1e-6"


def own_host(rank):
    """The label is of what connects hosts: each rank is on one of its own."""
    socket.gethostname = lambda: f"node{rank}"


def test_ranks_of_one_host_do_not_cross_the_link(launch):
    measured = launch("all_reduce", SLOW, 2).ended(0)
    assert "label link_gbps not used: all ranks share one host" in measured.stdout()


def test_the_verdict_ends_the_table_and_is_no_exit_code(launch):
    measured = launch("all_reduce", SLOW, 2, setup=own_host).ended(0)
    assert "\nFAIL 1 of 1 case implausible: " in measured.stdout()


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (
            "fabric=ib-ndr",
            error_text("fabric", "ib-ndr", "ib-ndr:N, N the rails of a node, above 0"),
        ),
        ("link_gbps=fast", error_text("label link_gbps", "'fast'", "GB/s above 0")),
    ],
)
def test_a_wrong_label_ends_all_ranks_before_anything_is_measured(launch, label, message):
    measured = launch("all_reduce", f"--sizes 8 --label {label}", 2).ended(2)
    assert measured.errors() == [f"torchcoll: error: {message}"]
    assert not measured.path.exists()
