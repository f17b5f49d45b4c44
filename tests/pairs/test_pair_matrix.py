"""The matrix of pairs: figures of a few ranks, shades of many, in the width that there is."""

import pytest
from handmade import Terminal
from made_pairs import pairs_run, shown


@pytest.fixture(scope="module")
def small():
    return pairs_run(5, slow=3)


@pytest.fixture(scope="module")
def large():
    return pairs_run(40, slow=7)


def test_up_to_twelve_the_cells_are_figures(small):
    lines = shown(small).splitlines()
    first = lines.index("rank       0       1       2      3       4")
    assert lines[first + 1] == "   0          10.486  10.486  5.243  10.486"
    assert lines[first + 4] == "   3   5.243   5.243   5.243          5.243"
    assert "   3  n3    5.000 us      5.243      5.243      5.243" in lines


def test_beyond_they_are_shades(large):
    text = shown(large)
    assert text.isascii()
    rows = [line for line in text.splitlines() if line.endswith("|")]
    assert len(rows) == 40
    # Two characters a rank; a pair of rank 7 lies below 60 % of the median, and not below 40 %.
    assert rows[0].split("|")[1] == "\\\\" + " " * 12 + "xx" + " " * 64
    assert rows[7].split("|")[1] == "x" * 14 + "\\\\" + "x" * 64
    assert "x below 60 %" in text


@pytest.mark.parametrize(("width", "each"), [(200, 2), (80, 1)])
def test_a_terminal_has_darker_shades_in_its_width(large, monkeypatch, width, each):
    monkeypatch.setenv("COLUMNS", str(width))
    text = shown(large, out=Terminal())
    rows = [line for line in text.splitlines() if line.rstrip().endswith("|")]
    assert len(rows) == 40
    assert "▓" * each in rows[0]
    assert max(map(len, rows)) <= width


def test_of_very_many_the_slowest_are_listed():
    lines = shown(pairs_run(70, slow=7)).splitlines()
    assert not any(line.endswith("|") for line in lines)
    head = next(n for n, line in enumerate(lines) if "the slowest 16 of 70" in line)
    assert [line.split()[0] for line in lines[head + 4 : head + 12]] == list("01234567")
