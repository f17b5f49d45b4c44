"""The traffic file: what is written, what is read of a damaged one, and joining files."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import pytest
from error_form import error_tail, error_text, got

from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.file import is_traffic
from torchcoll.core.traffic import Group, Traffic, TrafficCall, join

FULL = TrafficCall(
    "all_to_all_v",
    12,
    16,
    "bfloat16",
    op="max",
    root=1,
    peer=0,
    group="tp",
    sequence=7,
    step=3,
    asynchronous=True,
    start_ns=10**15,
    time_ns=5,
    exposed_ns=4,
    clock="device",
    tensors=2,
    splits=(4, 8),
)
HEADER = '{"record":"header","schema":"torchcoll-traffic/2","source":"capture","ranks":2}'
CALL = '{"record":"call","rank":0,"collective":"all_reduce","bytes_in":8,"bytes_out":8}'
END = '{"record":"end","status":"complete"}'


def traffic(rank: int = 0, **fields) -> Traffic:
    calls = {rank: [FULL, TrafficCall("barrier", 0, 0, group="tp")]}
    groups = {"tp": Group("tp", (0, 1), "gloo", "tensor parallel")}
    spans = {rank: [(0, 100), (100, 250)]}
    return Traffic(ranks=2, calls=calls, groups=groups, steps=spans, **fields)


def file(folder: Path, *lines: str, name: str = "t.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_round_trip(tmp_path):
    saved = traffic(source="kineto", environment={"torch": "2.13"}, notes=["op unknown"])
    saved.calls[1] = []  # was seen, and made no call
    saved.save(tmp_path / "t.jsonl")
    again = Traffic.load(tmp_path / "t.jsonl")
    assert again == saved
    assert again.path == tmp_path / "t.jsonl"
    assert type(again.calls[0][0].splits) is tuple


def test_the_file_by_hand(tmp_path):
    """What others would write after reading the format."""
    traffic(notes=["a"]).save(tmp_path / "t.jsonl")
    records = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [record.pop("line") for record in records] == [1, 2, 3, 4, 5, 6, 7]
    assert all(list(record)[-1] == "crc" and record.pop("crc") for record in records)
    header, group, step, full, barrier, note, end = records
    assert header["record"] == "header"
    assert (header["schema"], header["source"], header["ranks"]) == (
        "torchcoll-traffic/2",
        "capture",
        2,
    )
    assert group == {
        **{"record": "group", "name": "tp", "ranks": [0, 1]},
        **{"backend": "gloo", "description": "tensor parallel"},
    }
    assert step == {"record": "step", "rank": 0, "spans_ns": [[0, 100], [100, 250]]}
    assert (full["record"], full["rank"], full["splits"]) == ("call", 0, [4, 8])
    # What has its default is left out.
    assert barrier == {
        **{"record": "call", "rank": 0, "collective": "barrier"},
        **{"bytes_in": 0, "bytes_out": 0, "group": "tp"},
    }
    assert note == {"record": "note", "text": "a"}
    assert end == {"record": "end", "status": "complete"}


def test_packed(tmp_path):
    traffic().save(tmp_path / "t.jsonl")
    data = (tmp_path / "t.jsonl").read_bytes()
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(data))
    assert Traffic.load(tmp_path / "t.jsonl.gz") == traffic()
    assert is_traffic(tmp_path / "t.jsonl.gz")
    (tmp_path / "half.gz").write_bytes(gzip.compress(data)[:-30])
    half = Traffic.load(tmp_path / "half.gz")
    assert half.problems[0].startswith(f"{tmp_path}/half.gz: cut off or damaged: EOFError")


def test_an_existing_file_is_kept(tmp_path):
    path = file(tmp_path, "precious")
    with pytest.raises(
        UsageError, match=error_text("^output", error_tail(".*t.jsonl", "a file that does not"))
    ):
        traffic().save(path)
    assert path.read_text() == "precious\n"


def test_truncated(tmp_path):
    """What is there is kept, and it is said."""
    path = file(tmp_path, HEADER, CALL)
    with path.open("a") as lines:
        lines.write(CALL[:30])
    found = Traffic.load(path)
    assert found.calls == {0: [TrafficCall("all_reduce", 8, 8)]}
    first, second = found.problems
    assert first.startswith(f"{path}:3: unusable record (cut off): JSONDecodeError")
    assert second == f"{path}: truncated: the file has no end record"


BROKEN = [
    "not json",
    "[]",
    "3",
    '{"rank":0}',
    CALL.replace('"rank":0', '"rank":2'),  # of 2 ranks
    CALL.replace('"rank":0', '"rank":-1'),
    CALL.replace('"rank":0', '"rank":"0"'),
    CALL.replace('"bytes_in":8', '"bytes_in":-8'),
    CALL.replace('"bytes_in":8', '"bytes_in":8.5'),
    CALL.replace('"bytes_in":8', '"bytes_in":NaN'),
    CALL.replace('"bytes_in":8', '"bytes_in":9223372036854775808'),
    CALL.replace('"bytes_in":8,', ""),
    CALL.replace('"all_reduce"', "7"),
    CALL.replace("}", ',"dtype":1}'),
    CALL.replace("}", ',"root":5}'),
    CALL.replace("}", ',"peer":"a"}'),
    CALL.replace("}", ',"step":-1}'),
    CALL.replace("}", ',"time_ns":-1}'),
    CALL.replace("}", ',"exposed_ns":1.5}'),
    CALL.replace("}", ',"tensors":0}'),
    CALL.replace("}", ',"splits":["a"]}'),
    CALL.replace("}", ',"splits":[-1]}'),
    CALL.replace("}", ',"splits":5}'),
    CALL.replace("}", ',"asynchronous":1}'),
    CALL.replace("}", ',"clock":null}'),
    CALL.replace("}", ',"algorithm":7}'),
    '{"record":"group","name":"a","ranks":[0,2]}',
    '{"record":"group","name":"a","ranks":[0,0]}',
    '{"record":"group","name":3,"ranks":[0]}',
    '{"record":"group","name":"a","ranks":5}',
    '{"record":"step","rank":0,"spans_ns":[[1]]}',
    '{"record":"step","rank":0,"spans_ns":[["a","b"]]}',
    '{"record":"step","rank":7,"spans_ns":[]}',
    '{"record":"note"}',
    "[" * 100_000,
]


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: line[:90])
def test_a_broken_line_is_a_problem(tmp_path, line):
    """The lines around it are read."""
    path = file(tmp_path, HEADER, CALL, line, CALL, END)
    found = Traffic.load(path)
    assert found.calls == {0: [TrafficCall("all_reduce", 8, 8)] * 2}
    assert not found.groups and not found.steps and not found.notes
    (problem,) = found.problems
    assert problem.startswith(f"{path}:3: unusable record: "), problem
    assert len(problem) < 200 + len(str(path))


def test_what_a_later_version_adds_is_ignored(tmp_path):
    later = HEADER.replace("traffic/1", "traffic/1.4")
    lines = [later, CALL.replace("}", ',"colour":"red"}'), '{"record":"colour"}', "", END]
    found = Traffic.load(file(tmp_path, *lines))
    assert found.calls == {0: [TrafficCall("all_reduce", 8, 8)]}
    assert not found.problems


def test_a_newer_schema(tmp_path):
    """Of which nothing else is known."""
    path = file(tmp_path, '{"record":"header","schema":"torchcoll-traffic/3"}', END)
    with pytest.raises(UnreadableError) as caught:
        Traffic.load(path)
    assert str(caught.value) == error_text(
        f"schema of {path}",
        "torchcoll-traffic/3",
        "torchcoll-traffic/2. Install the torchcoll version that wrote it.",
    )

    assert is_traffic(path)


OTHERS = [
    "",
    "\n",
    "hello\n",
    "[]\n",
    '{"schema":"torchcoll/2","ranks":2}\n',
    '{"schema":7}\n',
    '{"schema":"torchcoll-traffic/2"}\n',
    HEADER.replace('"ranks":2', '"ranks":0') + "\n",
    HEADER.replace('"ranks":2', '"ranks":true') + "\n",
    HEADER.replace('"ranks":2', '"ranks":99999999') + "\n",
    HEADER.replace('"capture"', "[]") + "\n",
    HEADER.replace('"ranks":2', '"ranks":2,"environment":3') + "\n",
    "[" * 100_000 + "\n",
]


@pytest.mark.parametrize("text", OTHERS, ids=lambda text: text[:80])
def test_what_is_no_traffic_file(tmp_path, text):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(UnreadableError) as caught:
        Traffic.load(path)
    empty = "; this one is empty" if not text else ""
    assert str(caught.value) == error_text(
        "traffic file",
        path,
        f'a torchcoll traffic file, whose first line holds "schema":"torchcoll-traffic/2"{empty}',
    )


@pytest.mark.parametrize("text", [text for text in OTHERS if "torchcoll-traffic" not in text])
def test_is_traffic_says_no(tmp_path, text):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    assert not is_traffic(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(UnreadableError, match="/x, expected a file that exists"):
        Traffic.load(tmp_path / "x")


def test_a_step_outside_of_a_capture():
    with pytest.raises(UsageError) as caught:
        Traffic().step()
    assert str(caught.value) == error_text(
        "step", "no capture", "a step inside of `with torchcoll.capture()`"
    )


def test_members():
    found = traffic()
    found.groups["unstated"] = Group("unstated")
    assert found.members(FULL) == (0, 1)
    found.ranks = 3
    for name in ("unstated", "never named", ""):
        assert found.members(TrafficCall("barrier", 0, 0, group=name)) == (0, 1, 2)


def test_join():
    first, second = traffic(0, notes=["a", "b"]), traffic(1, notes=["b", "c"])
    second.groups["dp"] = Group("dp", (1,))
    joined = join([second, first])
    assert list(joined.calls) == [0, 1]
    assert joined.steps == {0: first.steps[0], 1: second.steps[1]}
    assert set(joined.groups) == {"tp", "dp"}
    assert joined.notes == ["b", "c", "a"]
    assert list(second.calls) == [1] and second.notes == ["b", "c"]  # as it was


def test_counts_of_the_ranks_add_up():
    first = traffic(0, notes=["3 calls of send are late", "as it is", "2 ranks share a core"])
    second = traffic(1, notes=["2 ranks share a core", "4 calls of send are late", "1 reductions"])
    assert join([first, second]).notes == [
        "7 calls of send are late",
        "as it is",
        "2 ranks share a core",
        "1 reductions",
    ]


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ("a/0.jsonl", "a/1.jsonl", Path("a")),
        ("a/0.jsonl", "b/1.jsonl", None),
        ("0.jsonl", "1.jsonl", None),
    ],
)
def test_joined_traffic_does_not_go_by_the_file_of_one_rank(first, second, path):
    parts = traffic(0, path=Path(first)), traffic(1, path=Path(second))
    assert join(parts).path == path
    assert join(parts[:1]).path == Path(first)


def test_join_takes_the_ranks_of_a_group_from_who_knows_them():
    first, second = traffic(0), traffic(1)
    first.groups["tp"] = Group("tp")
    assert join([first, second]).groups["tp"].ranks == (0, 1)
    assert join([second, first]).groups["tp"].ranks == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"ranks": 3},
            got(error_tail("capture of 3 ranks in b", "capture of 2 ranks as in a")),
        ),
        (
            {"source": "kineto"},
            got(error_tail("kineto of 2 ranks in b", "capture of 2 ranks as in a")),
        ),
        (
            {"groups": {"tp": Group("tp", (1,))}},
            got(error_tail("group tp of ranks (1,) in b", "ranks (0, 1)")),
        ),
        ({"calls": {0: []}}, got(error_tail("rank 0 twice, again in b", "once"))),
    ],
)
def test_join_refuses(change, message):
    first = traffic(0, path=Path("a"))
    second = dataclasses.replace(traffic(1, path=Path("b")), **change)
    with pytest.raises(UsageError) as caught:
        join([first, second])
    assert str(caught.value) == f"traffic: {message}. Join the files of one capture."


def of_group(ranks, *names, groups=None):
    """A part of one rank: a call on each of these groups."""
    rank, *_ = ranks
    calls = [TrafficCall("barrier", 0, 0, group=name) for name in names]
    return Traffic(ranks=3, calls={rank: calls}, groups=groups)


def test_join_tells_groups_of_one_name_apart():
    """Rank 2 was in the second life of "1" alone, and calls it by that name."""
    first, second = Group("1", (0, 1)), Group("1", (0, 2))
    parts = [
        of_group([0], "1", "1@2", groups={"1": first, "1@2": Group("1@2", (0, 2))}),
        of_group([1], "1", groups={"1": first}),
        of_group([2], "1", groups={"1": second}),
    ]
    for order in ((0, 1, 2), (2, 0, 1)):
        found = join([parts[place] for place in order])
        used = {
            rank: [found.groups[c.group].ranks for c in own] for rank, own in found.calls.items()
        }
        assert used == {0: [(0, 1), (0, 2)], 1: [(0, 1)], 2: [(0, 2)]}
        assert set(found.groups) == {"1", "1@2"}
    # Rank 1 of another run: it does not know the group in which it should be.
    parts[1] = of_group([1], "1", groups={"1": Group("1", (1, 2))})
    with pytest.raises(UsageError, match=got("group 1 of ranks")):
        join(parts)


def test_a_folder_of_two_captures_that_do_not_tell_when(tmp_path):
    """Of the store's names there may be none: then by the number of the file."""
    for rank in range(2):
        for number, size_bytes in (("", 8), ("-2", 16)):
            part = Traffic(ranks=2, calls={rank: [TrafficCall("barrier", size_bytes, 0)]})
            part.save(tmp_path / f"traffic-rank{rank}{number}.jsonl")
    found = Traffic.load(tmp_path)
    assert [own[0].bytes_in for own in found.calls.values()] == [16, 16]
    assert found.notes == [
        f"{tmp_path} holds 2 captures: this is the last; left out: traffic-rank0.jsonl, "
        "traffic-rank1.jsonl"
    ]


def test_join_of_nothing():
    with pytest.raises(
        UsageError, match=error_text("^traffic", error_tail("no file", "at least one$"))
    ):
        join([])


def test_a_folder_of_files(tmp_path):
    for rank in (0, 1):
        traffic(rank).save(tmp_path / f"rank{rank}.jsonl")
    file(tmp_path, "something else", name="notes.txt")
    (tmp_path / "inner").mkdir()
    assert Traffic.load(tmp_path) == join([traffic(0), traffic(1)])
    assert Traffic.load(tmp_path).path == tmp_path
    assert Traffic.load(tmp_path / "rank1.jsonl") == traffic(1)
    with pytest.raises(UnreadableError) as caught:
        Traffic.load(tmp_path / "inner")
    assert str(caught.value) == error_text(
        "traffic folder", f"{tmp_path}/inner", "a folder of traffic files; it has none"
    )


def test_a_folder_where_the_file_of_a_rank_is_empty(tmp_path):
    """Other ranks must not stand for one that was recorded, and whose file is broken."""
    traffic(1).save(tmp_path / "traffic-rank1.jsonl")
    empty = file(tmp_path, name="traffic-rank0.jsonl")
    with pytest.raises(UnreadableError) as caught:
        Traffic.load(tmp_path)
    assert str(caught.value).startswith(
        error_text("traffic file", empty, "a torchcoll traffic file")
    )


@pytest.mark.parametrize("field", ["start_ns", "began_ns", "time_ns", "root"])
def test_what_is_no_number_is_no_0_either(field):
    good = {"collective": "all_reduce", "bytes_in": 8, "bytes_out": 8}
    assert getattr(TrafficCall.from_json({**good, field: None}), field) is None
    for value in ({}, [], ""):
        with pytest.raises(TypeError):
            TrafficCall.from_json({**good, field: value})
