"""Samples that the ranks keep on their own disks where rank 0 would gather too many."""

from __future__ import annotations

import json
import shutil
from itertools import accumulate

import pytest
from ranks import Measured

import torchcoll
from torchcoll.bench import stopping
from torchcoll.cli import main
from torchcoll.core import kept_samples
from torchcoll.core.file import load_own
from torchcoll.core.result import KeptBatches
from torchcoll.reading.inputs import load_all


@pytest.mark.parametrize(
    ("ranks", "clocks", "calls", "limits"),
    [
        (8, 2, None, (1000, 1)),  # a rule ends them
        (8, 2, 100_000, (1000, 1)),  # 1.6 million samples
        (1024, 2, 10_000, (976, 3)),  # 20.5 million; 976 x 1024 x 2 are 2.0 million
        (16_384, 1, 1000, (122, 3)),
        (131_072, 2, 1000, (20, 33)),  # no batch has fewer than 20 calls
    ],
)
def test_how_much_goes_to_rank_0(ranks, clocks, calls, limits):
    """At most 2 million samples at once, and 8 million of one case."""
    assert stopping.split_samples(ranks, clocks, calls) == limits


@pytest.fixture
def command(capsys):
    """(exit code, stdout, stderr) of a command."""

    def run(*words):
        code = main([str(word) for word in words])
        return int(code), *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Three gloo ranks, 80 samples a case: one of every three batches of 20 calls."""

    def setup(rank):
        stopping.MOST_GATHERED, stopping.MOST_SAMPLES = 60, 80

    folder = tmp_path_factory.mktemp("kept")
    options = "--sizes 8,1K -n 70 --cold 3"
    return Measured(folder, "all_reduce", options, 3, setup=setup).ended(0)


def test_rank_0_has_a_part_of_the_calls(measured):
    """70 calls of 3 ranks are 210 samples: batches 0 and 3 of 20, 20, 20 and 10 calls."""
    run = load_own(str(measured.path))
    assert not run.problems
    for number, result in enumerate(run.results, 1):
        assert result.kept == KeptBatches(number, (20, 20, 20, 10), 3)
        assert result.batches == [20, 10]
        assert [len(row) for row in result.time_ns["host"]] == [30] * 3
        assert len(result.batch_start_ns) == 2
        assert "40 of 70 steady calls are not in this file" in result.warnings[0]
    first, second = run.results
    made = len(first.cold_ns[0]) + 70 + 4 * len(first.ramp_up_ns[0]) // 2 + 1  # one is verified
    assert second.ordinal == made
    folder = measured.path.with_name(f"{measured.path.name}.samples")
    assert sorted(file.name for file in folder.iterdir()) == [
        f"rank-0000{rank}.jsonl" for rank in range(3)
    ]


def test_merge(measured, command, tmp_path):
    """Every sample of every rank, in the order of the calls."""
    output = tmp_path / "all.jsonl"
    assert command("convert", measured.path, "-o", output) == (0, f"written: {output}\n", "")
    part, whole = load_own(str(measured.path)), torchcoll.load(output)
    for (read,) in ([torchcoll.load(measured.path)], load_all([measured.path])):
        assert [r.time_ns for r in read.results] == [r.time_ns for r in whole.results]
    kept = kept_samples.read_kept([measured.path.with_name(f"{measured.path.name}.samples")], [])
    for before, after in zip(part.results, whole.results, strict=True):
        assert after.kept is None and after.batches == [20, 20, 20, 10]
        assert not [text for text in after.warnings if "are not in this file" in text]
        assert after.batch_start_ns == sorted(after.batch_start_ns)
        assert len(after.batch_start_wall_us) == 4
        of_ranks = kept[part.header["run_id"], before.kept.case]
        leads = len(before.ramp_up_ns[0]) // 2
        for rank in range(3):
            gathered, row = before.time_ns["host"][rank], after.time_ns["host"][rank]
            assert row[:20] == gathered[:20] and row[60:] == gathered[20:]
            assert row[20:40] == of_ranks[rank][1]["time_ns"]["host"]
            assert row[40:60] == of_ranks[rank][2]["time_ns"]["host"]
            ramp_up = before.ramp_up_ns[rank]
            assert after.ramp_up_ns[rank] == [
                *ramp_up[:leads],
                *of_ranks[rank][1]["ramp_up_ns"],
                *of_ranks[rank][2]["ramp_up_ns"],
                *ramp_up[leads:],
            ]
        # The clock of rank 0: a batch begins after the calls of the one before.
        spans = [sum(after.time_ns["host"][0][s : s + 20]) for s in (0, 20, 40)]
        ends = [start + span for start, span in zip(after.batch_start_ns, spans, strict=False)]
        assert all(end < start for end, start in zip(ends, after.batch_start_ns[1:], strict=True))
        assert [*accumulate(after.batches)] == [20, 40, 60, 70]


@pytest.fixture
def copied(measured, tmp_path):
    """The result file in a folder of its own, with the samples of its ranks."""
    shutil.copy(measured.path, tmp_path / "run.jsonl")
    shutil.copytree(f"{measured.path}.samples", tmp_path / "run.jsonl.samples")
    return tmp_path / "run.jsonl"


def test_samples_of_a_host_that_were_not_copied(copied):
    (copied.with_name("run.jsonl.samples") / "rank-00002.jsonl").unlink()
    run = torchcoll.load(copied)
    assert run.problems == [
        f"samples kept of {result.case.describe()}: no samples of ranks 2; not used"
        for result in run.results
    ]
    assert all(result.kept and result.batches == [20, 10] for result in run.results)


def edited(change):
    """A change of the records of a file, which then has no check sums."""

    def edit(text: str) -> str:
        records = [json.loads(line) for line in text.splitlines()]
        for record in records:
            del record["crc"], record["line"]
        change(records)
        return "".join(f"{json.dumps(record)}\n" for record in records)

    return edit


def shortened(records):
    records[1]["time_ns"]["host"] = records[1]["time_ns"]["host"][:3]


def twice(records):
    records.append({**records[1], "start_ns": records[1]["start_ns"] + 1})


def negative(records):
    records[1]["time_ns"]["host"][0] = -1


def without_lead(records):
    records[1]["ramp_up_ns"] = []


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (edited(shortened), "3 of clock host in batch 1 of rank 1, not 20"),
        (edited(lambda records: records[1]["time_ns"].clear()), "0 of clock host in batch 1"),
        (edited(without_lead), "0 before the batch in batch 1 of rank 1, not "),
        (edited(twice), "got two different records of rank 1, expected "),
        (edited(negative), "rank-00001.jsonl:2: unusable record: ValueError: a duration below 0"),
        (lambda text: text.replace('"start_ns":', '"start_ns":1', 1), "rank-00001.jsonl:2: "),
    ],
)
def test_damaged_samples_are_not_used(copied, edit, problem):
    file = copied.with_name("run.jsonl.samples") / "rank-00001.jsonl"
    file.write_text(edit(file.read_text()))
    run = torchcoll.load(copied)
    assert any(problem in text for text in run.problems)
    assert run.results[0].batches == [20, 10]


def test_a_disk_that_one_rank_cannot_write(launch):
    """Every rank leaves with the text of the one whose disk is full."""

    def setup(rank):
        stopping.MOST_GATHERED, stopping.MOST_SAMPLES = 40, 40
        if rank == 1:
            kept_samples.KeptSamples.write = refuse

    def refuse(self, *arguments):
        raise torchcoll.TorchcollError("no room")

    measured = launch("all_reduce", "--sizes 8 -n 70", 2, setup=setup).ended(1)
    (line,) = measured.errors()
    assert "rank 1 (" in line and line.endswith("): no room")
