"""A case of many ranks, whose samples are kept packed."""

from __future__ import annotations

import json

import handmade
import pytest

from torchcoll.core import result as result_module
from torchcoll.core import summary
from torchcoll.core.file import load_own, save
from torchcoll.core.jsonl import LineWriter
from torchcoll.report.formats import View
from torchcoll.report.notes import Notes

RANKS = 1024
COLD = [[5_000_000 + rank, 1_100_000, 1_000_000] for rank in range(RANKS)]
STEADY = [[1_000_000 + 13 * rank + call for call in range(20)] for rank in range(RANKS)]
ISSUE = [[10 + rank for _ in range(20)] for rank in range(RANKS)]


def large(path, **changed):
    """A file of one case of 1024 ranks, 400 KB."""
    fields = {"cold_ns": COLD, "time_ns": {"device": STEADY, "issue": ISSUE}, **changed}
    save(handmade.run(handmade.result(RANKS, **fields), ranks=RANKS), path)
    return path


def of_line(path, before, after):
    """The file with this in the line of its case in place of that, and check sums that fit."""
    writer, lines = LineWriter(), path.read_bytes().splitlines()
    with open(path, "wb") as file:
        for line in lines:
            assert line.startswith(b'{"record":"case"') == (before in line)
            record = line.rpartition(b',"line"')[0].replace(before, after, 1) + b"}"
            own = writer.line(json.loads(record))
            file.write(own)
    return path


def test_samples_are_as_they_were_and_take_8_bytes(tmp_path):
    (read,) = load_own(large(tmp_path / "a.jsonl")).results
    assert read.cold_ns == COLD
    assert read.time_ns == {"device": STEADY, "issue": ISSUE}
    assert repr(read.cold_ns) == repr(COLD)
    for rows in (read.cold_ns, *read.time_ns.values()):
        assert sum(memoryview(row).nbytes for row in rows) == 8 * RANKS * len(rows[0])
    assert read.cold_ns != STEADY
    assert (read.cold_ns[0] == 5, read.cold_ns[0] == COLD[1]) == (False, False)


def test_what_is_written_again_is_the_same(tmp_path):
    path = large(tmp_path / "a.jsonl")
    save(load_own(path), tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == path.read_bytes()


def test_no_list_of_a_large_case_is_gone_through(tmp_path, monkeypatch):
    path, checked = large(tmp_path / "a.jsonl"), []
    check = result_module.check_lists

    def counted(*lists, durations=False):
        checked.extend(filter(None, lists))
        check(*lists, durations=durations)

    monkeypatch.setattr(result_module, "check_lists", counted)
    (read,) = load_own(path).results
    assert checked == [list(read.batches)] * bool(read.batches)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b"[5000007,", b"[true,", "TypeError: not a list of whole numbers"),
        (b"[5000007,", b"[-5,", "ValueError: a duration below 0"),
        (b"[5000007,", b"[1.5,", "TypeError: not a list of whole numbers"),
        (b"[5000007,", b"[[1],", "TypeError: not a list of whole numbers"),
        (b"[5000007,", b"[9223372036854775808,", "TypeError: not a whole number of 63 bits"),
        (b"[5000007,", b"[18446744073709551616,", "TypeError: not a whole number of 63 bits"),
        (b"[1000091,", b"[null,", "TypeError: not a list of whole numbers"),
        (b"[1000091,", b"[-1,", "ValueError: a duration below 0"),
        (b'"issue":[[10,', b'"issue":[["",', "TypeError: not a list of whole numbers"),
        (b'"issue":[[10,', b'"issue":[10,[10,', "TypeError: not a list of whole numbers"),
    ],
)
def test_what_is_no_duration_is_refused_as_ever(tmp_path, before, after, said):
    path = of_line(large(tmp_path / "a.jsonl"), before, after)
    run = load_own(path)
    assert run.results == []
    assert run.problems[0].endswith(f"unusable record: {said}")


def test_the_steady_calls_are_read_over_ranks_once_for_a_table(monkeypatch):
    read, over_ranks = [], summary.over_ranks
    monkeypatch.setattr(
        summary, "over_ranks", lambda m, how="max": read.append(m) or over_ranks(m, how)
    )
    result = handmade.result()
    View().entries(handmade.run(result), Notes())
    assert read.count(result.time_ns["host"]) == 1
