"""Where the answer stands, how wide a pipe is, and how a wide table becomes several."""

import io

import handmade
import pytest
from handmade import case, result, run

import torchcoll
from torchcoll.report.destination import Destination
from torchcoll.report.grid import Head, split_columns


def lines_of(cases, **options):
    out = io.StringIO()
    results = [result(2, case=case(size_bytes=8 << n)) for n in range(cases)]
    torchcoll.show(run(*results, ranks=2), file=out, **options)
    return out.getvalue().splitlines()


def test_the_answer_is_the_first_line_and_below_a_screen_of_rows_the_last_too():
    short, long = ("\n".join(lines_of(number)) for number in (2, 20))
    answers = [text.partition("\n\n")[0] for text in (short, long)]
    # 1 ms at each size; 4M (8 << 19) in 1 ms are 4.19 GB/s, times 2 x 1/2.
    measured = (
        "all_reduce on 2 gloo ranks takes 1.00 ms at 8 B and reaches 4.19 GB/s of busbw at 4M"
    )
    assert answers[1].startswith(f"{measured}; 20 of 20 cases correct; ")
    assert all("; NO REFERENCE for gloo on cpu " in " ".join(text.split()) for text in answers)
    assert short.count("NO REFERENCE") == long.count("NO REFERENCE") == 1  # said once
    assert " ".join(long.splitlines()[-1:]) == measured


def test_markdown_has_it_first_alone():
    lines = lines_of(20, format="markdown")
    assert lines[0].startswith("- all_reduce on 2 gloo ranks takes 1.00 ms at 8 B and reaches ")
    assert sum("NO REFERENCE" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("columns", "width"), [(None, 120), ("80", 80), ("0", 120), ("wide", 120), ("", 120)]
)
def test_a_pipe_is_as_wide_as_columns_says_or_120(columns, width, monkeypatch):
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert Destination(io.StringIO()).width == width
    text = lines_of(3)
    assert max(map(len, text)) <= width


def test_rows_stand_in_the_order_of_what_varies():
    """A run that alternates measures A 8, B 8, B 16, A 16."""
    cases = [("gloo", 8), ("ccl", 8), ("ccl", 16), ("gloo", 16)]
    results = [result(2, case=case(backend=b, size_bytes=n)) for b, n in cases]
    out = io.StringIO()
    torchcoll.show(handmade.run(*results, ranks=2), file=out, columns="backend,size_bytes")
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert [row for row in rows if len(row) == 2 and row[0] in ("gloo", "ccl")] == [
        ["gloo", "8"],
        ["gloo", "16"],
        ["ccl", "8"],
        ["ccl", "16"],
    ]


def test_each_of_several_tables_begins_with_the_first_column():
    """Four columns of 10 and gaps of 1: three need 32 characters."""
    heads = [Head(name) for name in ("layout", "sent", "step", "most")]
    assert split_columns(heads, [10, 10, 10, 10], 32) == [[0, 1, 2], [0, 3]]
    marked = [*heads[:2], Head("step", repeat=True), heads[3]]
    assert split_columns(marked, [10, 10, 10, 10], 32) == [[2, 0, 1], [2, 3]]
