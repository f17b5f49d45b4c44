"""``--view ranks``: which rank is named, when none is, and which cases are shown."""

from __future__ import annotations

import handmade
import pytest
from handmade import case, run

import torchcoll

US = 1000


def timed(size_bytes, *ranks, **changed):
    """A case whose ranks have these times in us in each of 20 calls."""
    times = [[us * US for us in (own if isinstance(own, list) else [own] * 20)] for own in ranks]
    asked = case(size_bytes=size_bytes, **changed)
    return handmade.result(len(ranks), time_ns={"host": times}, case=asked)


def first_line(capsys, *results, ranks=3, **options):
    torchcoll.show(run(*results, ranks=ranks), view="ranks", **options)
    return capsys.readouterr().out.split("\n\n")[0]


def test_the_slow_rank_is_named_with_how_much_and_in_how_many_cases(capsys):
    slow = [timed(8 << n, 100, 100, 130) for n in range(3)]
    line = first_line(capsys, *slow, timed(1 << 20, 100, 101, 102))
    assert line == (
        "rank 2 (vm) is the slowest: it takes longest in 100 % of the calls, 1.30x as long as the "
        "fastest rank (medians, in 3 of 4 cases)"
    )


def test_a_rank_that_the_others_wait_for_has_the_shortest_times(capsys):
    late = [timed(8 << n, 200, 50, 200) for n in range(4)]
    assert first_line(capsys, *late) == (
        "the other ranks wait for rank 1 (vm): its time is the shortest in 100 % of the calls, "
        "theirs is 4.00x as long (medians, in 4 of 4 cases)"
    )


@pytest.mark.parametrize(
    "times",
    [
        # Another rank in each case; a difference below 10 %; a rank that is often faster too.
        [(130, 100, 100), (100, 130, 100), (100, 100, 130)],
        [(109, 100, 100)] * 3,
        [([130] * 10 + [90] * 10, 100, 100)] * 3,
    ],
)
def test_no_rank_is_named(capsys, times):
    cases = [timed(8 << n, *own) for n, own in enumerate(times)]
    assert first_line(capsys, *cases).startswith("no rank is consistently slow in 3 cases: rank ")


def test_ranks_that_tie_share_the_call():
    values = handmade.run(timed(8, 100, 100, 50), ranks=3)
    text = []
    torchcoll.show(values, view="ranks", format="csv", file=Lines(text))
    rows = [line.split(",") for line in "".join(text).splitlines()]
    place = rows[0].index("longest_share")
    assert [row[place] for row in rows[1:]] == ["0.5", "0.5", "0.0"]


class Lines:
    encoding = "utf-8"

    def __init__(self, text):
        self.write = text.append

    def isatty(self):
        return False

    def flush(self):
        pass


def test_a_rooted_collective_accuses_nobody(capsys):
    """The root of a broadcast leaves before the others: their work is not the same."""
    cases = [timed(8 << n, 10, 100, 100, collective="broadcast", op=None, root=0) for n in range(4)]
    assert first_line(capsys, *cases).startswith("no rank can be judged: ")


def test_the_three_cases_whose_ranks_differ_most_are_shown_and_all_on_request(capsys):
    cases = [timed(8 << n, 100, 100 + n, 100) for n in range(5)]
    torchcoll.show(run(*cases, ranks=3), view="ranks")
    text = capsys.readouterr().out
    assert [size for size in ("8", "16", "32", "64", "128") if f"all_reduce {size} " in text] == [
        "32",
        "64",
        "128",
    ]
    assert "the 3 cases whose ranks differ most, of 5 (--all shows every case)" in text
    torchcoll.show(run(*cases, ranks=3), view="ranks", every=True)
    assert "all_reduce 8 " in capsys.readouterr().out
