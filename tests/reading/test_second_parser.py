"""torchcoll's rows against those of a parser that shares no code with it."""

from __future__ import annotations

from collections import Counter

import pytest
import second_parser
from first_tries import THREADS, read_truth


def imported_figures(result):
    counter = Counter()
    for run in result.runs:
        for each in run.results:
            size = each.reported.size_bytes or each.size_bytes
            counter[size, round(each.reported.time_ns / 1e3, 4)] += 1
    return counter


@pytest.mark.parametrize("name", [truth["file"] for truth in read_truth() if truth.get("cases")])
def test_the_public_shapes(imported, name):
    """Whatever the second parser reads of a file, torchcoll reads alike, or refuses it."""
    text = (THREADS / name).read_text()
    result = imported(text, name)
    expected = second_parser.rows(text)
    lost = expected - imported_figures(result)
    refused = {refused.line for refused in result.refused}
    lines = text.splitlines()
    for size, time in lost:
        numbers = [n for n, line in enumerate(lines, 1) if line.split()[:1] == [str(size)]]
        assert refused & set(numbers), (size, time)
