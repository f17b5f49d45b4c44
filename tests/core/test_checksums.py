"""What damage to our files does not go unnoticed: result files, traffic files, manifests."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
import zlib

import pytest
from error_form import error_text

from torchcoll.core.errors import UnreadableError
from torchcoll.core.file import Writer, save
from torchcoll.core.jsonl import LineWriter
from torchcoll.core.result import CaseResult, Run, Verification
from torchcoll.core.spec import Spec
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.reading.inputs import load

SPEC = Spec(sizes="1K,2K,4K,8K")


def a_run(run_id="a", first=1000):
    results = [
        CaseResult(
            case,
            "ok",
            2,
            size_bytes=case.size_bytes,
            cold_ns=[[first + place, 20, 30], [first, 21, 31]],
            time_ns={"host": [[10, 11], [12, 13]]},
            verification=Verification(512, 0),
        )
        for place, case in enumerate(SPEC.cases(2))
    ]
    return Run(
        header={"run_id": run_id, "spec": json.loads(json.dumps(SPEC.to_json())), "ranks": 2},
        members=[{"host": "n1", "pid": 1}, {"host": "n2", "pid": 2}],
        phases={"import_torch": [5, 6]},
        results=results,
        events=[{"kind": "warning", "message": "slow"}],
        end={"status": "complete", "exit_code": 0, "wall_s": 1.5, "cases": 4},
    )


def saved(path, run):
    save(run, path)
    return path.read_bytes()


@pytest.fixture
def text(tmp_path):
    return saved(tmp_path / "a.jsonl", a_run())


def problems(path, content):
    path.write_bytes(content)
    return [text.replace(str(path), "F") for text in load(path).problems]


def stated(run):
    """All that a file says."""
    return dataclasses.replace(run, path=None, problems=[])


def test_the_check_sum_by_hand(text):
    """As another program would compute it from the description in core/jsonl.py."""
    header, second, *_ = text.splitlines()
    body, crc, _ = header.rpartition(b',"crc"')
    own = zlib.crc32(body)
    assert crc + _ == b',"crc":"%08x"}' % own
    assert body.endswith(b',"line":1')
    body, _, rest = second.rpartition(b',"crc"')
    assert rest == b':"%08x"}' % zlib.crc32(body, own)
    assert json.loads(second)["line"] == 2


def flipped(rng, lines, other):
    data = bytearray(b"".join(lines))
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def cut(rng, lines, other):
    place = rng.randrange(len(lines))
    line = lines[place][: rng.randrange(1, len(lines[place]))]
    line += rng.choice([b"", b"\n"])
    return b"".join([*lines[:place], line, *lines[place + 1 :]])


def cut_off(rng, lines, other):
    data = b"".join(lines)
    return data[: rng.randrange(1, len(data) - 1)]


def lost(rng, lines, other):
    place = rng.randrange(len(lines))
    return b"".join(lines[:place] + lines[place + rng.randrange(1, 3) :])


def doubled(rng, lines, other):
    place = rng.randrange(len(lines))
    return b"".join(lines[: place + 1] + lines[place - rng.randrange(0, place + 1) :])


def swapped(rng, lines, other):
    one, two = rng.sample(range(len(lines)), 2)
    lines = list(lines)
    lines[one], lines[two] = lines[two], lines[one]
    return b"".join(lines)


def joined(rng, lines, other):
    """``cat a b``; a may be cut off, b without its first lines."""
    first = b"".join(lines)[: -rng.choice([1, 200]) if rng.random() < 0.5 else None]
    return first + b"".join(other[rng.choice([0, 0, 1, 2]) :])


def of_another(rng, lines, other):
    """A line of another run in its place, or the end of another file behind this one's begin."""
    place = rng.randrange(1, len(lines) - 1)
    return b"".join(
        [*lines[:place], *rng.choice([[other[place], *lines[place + 1 :]], other[place:]])]
    )


def overwritten(rng, lines, other):
    data = b"".join(lines)
    place, length = rng.randrange(len(data)), rng.randrange(1, 600)
    block = b"\0" * length if rng.random() < 0.5 else rng.randbytes(length)
    return (data[:place] + block + data[place + length :])[: len(data)]


DAMAGES = (flipped, cut, cut_off, lost, doubled, swapped, joined, of_another, overwritten)


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damaged_file_reads_as_other_numbers(tmp_path, text, damage):
    """Flipped bits most."""
    rng = random.Random(damage.__name__)
    lines = text.splitlines(keepends=True)
    other = saved(tmp_path / "b.jsonl", a_run("b", 5000)).splitlines(keepends=True)
    path, whole = tmp_path / "damaged.jsonl", stated(load(tmp_path / "a.jsonl"))
    noticed = 0
    for _ in range(300 if damage is flipped else 60):
        path.write_bytes(damage(rng, lines, other))
        try:
            run = load(path)
        except UnreadableError:
            noticed += 1
            continue
        noticed += bool(run.problems)
        assert run.problems or stated(run) == whole, path.read_bytes()
    assert noticed > 40


def test_no_damaged_traffic_reads_as_other_numbers(tmp_path):
    path = tmp_path / "t.jsonl"
    calls = [TrafficCall("all_reduce", 8 * n, 8 * n, "int64", sequence=n) for n in range(1, 5)]
    traffic = Traffic(ranks=2, calls={0: calls}, groups={"": Group("", (0, 1), "gloo")})
    traffic.save(path)
    lines, rng = path.read_bytes().splitlines(keepends=True), random.Random(0)
    whole = Traffic.load(path)
    assert whole.calls == traffic.calls
    for number in range(200):
        damage = (flipped, lost, doubled, swapped)[number % 4]
        path.write_bytes(damage(rng, lines, lines))
        try:
            found = Traffic.load(path)
        except UnreadableError:
            continue
        assert found.problems or found == whole, path.read_bytes()


def test_a_lost_line_is_named(tmp_path, text):
    lines = text.splitlines(keepends=True)
    content = b"".join(lines[:4] + lines[5:])  # line 4 of the file is the first case
    assert problems(tmp_path / "x.jsonl", content) == [
        "F:5: line 5 is missing before it",
        "damaged: 1 case of the file cannot be read",
    ]
    run = load(tmp_path / "x.jsonl")
    assert (len(run.results), run.lost, run.complete) == (3, 1, False)
    assert run.way_on.endswith("--resume " + str(tmp_path / "x.jsonl"))
    content = b"".join(lines[:1] + lines[3:])
    assert problems(tmp_path / "y.jsonl", content) == ["F:2: lines 2 to 3 are missing before it"]


def test_a_doubled_line_is_used_once(tmp_path, text):
    lines = text.splitlines(keepends=True)
    content = b"".join([*lines[:4], lines[3], *lines[4:]])
    assert problems(tmp_path / "x.jsonl", content) == [
        "F:5: unusable record: ValueError: line 4 a second time"
    ]
    assert load(tmp_path / "x.jsonl").results == a_run().results


def test_swapped_lines_are_both_used(tmp_path, text):
    lines = text.splitlines(keepends=True)
    lines[4], lines[5] = lines[5], lines[4]
    assert problems(tmp_path / "x.jsonl", b"".join(lines)) == [
        "F:5: line 5 is missing before it",
        "F:6: line 5 comes after line 6",
    ]
    first, second, third, fourth = a_run().results
    assert load(tmp_path / "x.jsonl").results == [first, third, second, fourth]


def test_a_damaged_line_is_left_out(tmp_path, text):
    damaged = text.replace(b'"cold_ns":[[1001,', b'"cold_ns":[[1007,')
    assert problems(tmp_path / "x.jsonl", damaged) == [
        "F:5: unusable record: ValueError: changed or damaged: it does not match its check sum",
        "damaged: 1 case of the file cannot be read",
    ]
    assert [r.cold_ns[0][0] for r in load(tmp_path / "x.jsonl").results] == [1000, 1002, 1003]


def test_a_damaged_header_is_told_and_the_cases_are_kept(tmp_path, text):
    place = text.index(b'"crc":"') + 7
    digit = b"0" if text[place : place + 1] != b"0" else b"1"
    for damaged in (
        text.replace(b'"run_id":"a"', b'"run_id":"b"'),
        text[:place] + digit + text[place + 1 :],
    ):
        problem = "F:1: changed or damaged: it does not match its check sum"
        assert problems(tmp_path / "x.jsonl", damaged) == [problem]
        assert load(tmp_path / "x.jsonl").results == a_run().results


def test_a_header_that_lost_its_check_sum(tmp_path, text):
    header, rest = text.split(b"\n", 1)
    content = header[: header.index(b',"line"')] + b"}\n" + rest
    assert problems(tmp_path / "x.jsonl", content) == [
        "F:2: changed or damaged: the lines below have check sums, the header has none"
    ]


def test_a_file_without_check_sums_is_read_as_it_is(tmp_path, text):
    records = [json.loads(line) for line in text.splitlines()]
    for record in records:
        del record["line"], record["crc"]
    content = "".join(json.dumps(record) + "\n" for record in records)
    assert problems(tmp_path / "x.jsonl", content.encode()) == []
    assert load(tmp_path / "x.jsonl").results == a_run().results


@pytest.mark.parametrize("packed", [False, True])
def test_two_files_in_one(tmp_path, text, packed):
    other = saved(tmp_path / "b.jsonl", a_run("b", 5000))
    path = tmp_path / "both.jsonl"
    for content, number in ((text + other, 10), (text[:-30] + other, 9), (text + text, 10)):
        path.write_bytes(gzip.compress(content) if packed else content)
        with pytest.raises(UnreadableError) as caught:
            load(path)
        assert str(caught.value) == error_text(
            "result file",
            path,
            f"one header, in the first line. Two files in one: split at line {number}"
            f" (head -n {number - 1}, tail -n +{number}).",
        )


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("cut", [None, -30])
def test_a_file_without_check_sums_behind_one_with(tmp_path, text, separators, cut):
    """``cat new old``: of an earlier version, or of another program."""
    records = [json.loads(line) for line in saved(tmp_path / "b.jsonl", a_run("b")).splitlines()]
    for record in records:
        del record["line"], record["crc"]
    old = "".join(json.dumps(record, separators=separators) + "\n" for record in records)
    path = tmp_path / "x.jsonl"
    path.write_bytes(text[:cut] + old.encode())
    with pytest.raises(UnreadableError, match=f"split at line {9 if cut else 10} "):
        load(path)


def test_carriage_returns_and_blank_lines_are_no_damage(tmp_path, text):
    content = text.replace(b"\n", b"\r\n") + b"\r\n\n"
    assert problems(tmp_path / "x.jsonl", content) == []
    assert load(tmp_path / "x.jsonl").results == a_run().results


def test_a_file_without_end_lost_a_case(tmp_path, text):
    """Killed, and damaged later: the number of cases is not known, the missing line is."""
    lines = text.splitlines(keepends=True)
    content = b"".join(lines[:4] + lines[5:-1])
    assert problems(tmp_path / "x.jsonl", content) == [
        "F:5: line 5 is missing before it",
        "truncated: the file has no end record",
    ]


def test_what_resume_makes_up_for_is_no_loss(tmp_path, text):
    """A damaged case is run again by --resume; then nothing is missing."""
    path = tmp_path / "x.jsonl"
    damaged = text.replace(b'"cold_ns":[[1001,', b'"cold_ns":[[1007,')
    path.write_bytes(damaged)
    again = a_run("again")
    again.results = [again.results[1]]
    save(again, tmp_path / "x.jsonl.2")
    run = load(path)
    assert (len(run.results), run.lost, run.complete) == (4, 0, True)
    why = "changed or damaged: it does not match its check sum"
    assert run.problems == [f"{path}:5: unusable record: ValueError: {why}"]


def test_a_saved_run_still_says_what_its_file_lost(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_bytes(text.replace(b'"cold_ns":[[1001,', b'"cold_ns":[[1007,'))
    save(load(path), tmp_path / "y.jsonl")
    assert load(tmp_path / "y.jsonl").problems == ["damaged: 1 case of the file cannot be read"]
    # ... and what was taken out on purpose is no loss.
    run = a_run()
    del run.results[0]
    save(run, tmp_path / "z.jsonl")
    assert load(tmp_path / "z.jsonl").problems == []


def test_a_file_goes_on_behind_what_was_cut_off(tmp_path):
    path = tmp_path / "x.jsonl"
    writer = Writer(path)
    writer.write("header", {"schema": "torchcoll/2"})
    writer.write("event", {"kind": "warning", "message": "one"})
    writer.write("event", {"kind": "warning", "message": "two"})
    writer.close()
    path.write_bytes(path.read_bytes()[:-9] + b"\n")
    lines = LineWriter.continuing(path)
    with open(path, "ab") as file:
        file.write(lines.line({"record": "event", "kind": "warning", "message": "three"}))
        file.write(lines.line({"record": "end", "status": "complete"}))
    run = load(path)
    assert [event["message"] for event in run.events] == ["one", "three"]
    assert run.problems == [f"{path}:3: unusable record: ValueError: no check sum"]
