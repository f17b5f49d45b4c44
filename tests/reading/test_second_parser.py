"""torchcoll's rows against those of a second parser, which shares no code with it.

It reads whole rows of nccl-tests, OSU and IMB only, without prefixes and other programs' text, and
takes nothing from headings but what the rows are of.
"""

import re
from collections import Counter

import pytest
from first_tries import THREADS, read_truth

_NCCL = re.compile(
    r" *(\d+) +(\d+) +[a-z]\w* +(?:[a-z]+ +)?(?:-?\d+ +)?([\d.]+) +[\d.]+ +[\d.]+ +(?:\S+)"
    r"(?: +([\d.]+) +[\d.]+ +[\d.]+ +\S+)? *"
)
_PAIR = re.compile(r" *(\d+) +([\d.]+) *")
_IMB = re.compile(r" *(\d+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) *")


def second_rows(text: str) -> Counter[tuple[int, float]]:
    """(size as printed, time in us as printed) of each figure, how often."""
    found: Counter[tuple[int, float]] = Counter()
    tool = ""
    for line in text.splitlines():
        if "type" in line and "algbw" in line:
            tool = "nccl"
        elif line.startswith("# OSU MPI"):
            tool = "osu"
        elif "#bytes" in line and "t_avg[usec]" in line:
            tool = "imb"
        elif tool == "nccl" and (match := _NCCL.fullmatch(line)):
            for time in filter(None, match.groups()[2:]):
                found[int(match[1]), float(time)] += 1
        elif tool == "osu" and (match := _PAIR.fullmatch(line)):
            found[int(match[1]), float(match[2])] += 1
        elif tool == "imb" and (match := _IMB.fullmatch(line)):
            found[int(match[1]), float(match[5])] += 1
    return found


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
    expected = second_rows(text)
    lost = expected - imported_figures(result)
    refused = {refused.line for refused in result.refused}
    lines = text.splitlines()
    for size, time in lost:
        numbers = [n for n, line in enumerate(lines, 1) if line.split()[:1] == [str(size)]]
        assert refused & set(numbers), (size, time)
