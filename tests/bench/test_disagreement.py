"""Who is about to do something else. Real ranks that disagree are in test_bench_faults.py."""

from __future__ import annotations

import pytest

from torchcoll.bench.control import Control
from torchcoll.bench.disagreement import odd_ranks, of_arguments


@pytest.mark.parametrize(
    ("words", "odd"),
    [("aab", [2]), ("baa", [0]), ("abacad", [1, 3, 5]), ("aa", []), ("ab", [1]), ("abb", [0])],
)
def test_the_odd_ranks(words, odd):
    assert odd_ranks(words) == odd


def test_ranks_of_a_program_that_sent_different_calls():
    control = Control(None, 0, 3, 1)
    control.members = [{"host": "n", "asked": asked, "argv": ""} for asked in "abb"]
    assert str(of_arguments(control, points=True)) == (
        "arguments of rank 0 (n): got another Spec, expected as on rank 1 (n): no arguments. "
        "The ranks sent different calls: save the traffic of each, and measure all of it with "
        "torchcoll.suite --traffic FOLDER."
    )
