import gzip
import io
import json
import os

import pytest
from error_form import error_text, expecting
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.file import SCHEMA, Writer, load_own, records_of, save
from torchcoll.core.jsonl import lines_of
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import CaseResult, Choice, Run, Verification
from torchcoll.core.spec import Spec
from torchcoll.reading.inputs import load, load_all

SPEC = Spec(sizes="1K,2K,4K", labels={"fabric": "ib"})
CASES = SPEC.cases(2)


def result(case=CASES[0], first=1000, **fields):
    values = {
        "status": "ok",
        "ranks": 2,
        "count": 256,
        "size_bytes": case.size_bytes,
        "bytes_in": case.size_bytes,
        "bytes_out": case.size_bytes,
        "cold_ns": [[first, 20, 30], [first + 1, 21, 31]],
        "time_ns": {"host": [[10, 11], [12, 13]]},
        "batches": [2],
        "ordinal": 1,
        "steady_after": 3,
        "stop": "count",
        "verification": Verification(512, 0),
    }
    return CaseResult(case, **{**values, **fields})


def a_run():
    return Run(
        header={
            "run_id": "abc",
            "spec": json.loads(json.dumps(SPEC.to_json())),
            "ranks": 2,
            "environment": {"host": "n1", "libraries": {"gloo": "gloo 1"}},
        },
        members=[{"host": "n1", "pid": 1}, {"host": "n2", "pid": 2}],
        phases={"import_torch": [5, 6], "communicator": [7, 8]},
        results=[
            result(),
            result(
                CASES[1],
                status="wrong",
                reason="3 of 512 elements wrong",
                warmup_ns=[[1], [2]],
                communicator="new",
                steady_after=None,
                verification=Verification(512, 3, (1,), 2),
                warnings=["slow"],
                choices=[Choice("RING", "LL", 2), Choice("NVLS", source="kernel name")],
            ),
            CaseResult(CASES[2], "skipped", 2, "too large"),
        ],
        events=[{"name": "signal", "signal": 15}],
        end={"status": "complete", "exit_code": 1, "wall_s": 1.5, "cases": 3},
    )


def text_of(run):
    lines = [json.dumps({"record": record, **data}) for record, data in records_of(run)]
    return "".join(line + "\n" for line in lines)


def refusal(path, reading=load):
    with pytest.raises(UnreadableError) as caught:
        reading(path)
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_round_trip(tmp_path):
    run, path = a_run(), tmp_path / "new folder" / "run.jsonl"
    save(run, path)
    again = load(str(path))
    assert again.results == run.results
    assert again.members == run.members
    assert again.phases == run.phases
    assert again.events == run.events
    assert again.end == run.end
    assert again.header == {"schema": SCHEMA, **run.header}
    assert (again.path, again.problems, again.in_flight) == (path, [], None)
    assert again.complete
    assert again.spec == SPEC
    assert (again.ranks, again.labels) == (2, {"fabric": "ib"})
    assert again.environment["host"] == "n1"
    # ... and once more, to the byte
    save(again, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


def test_files_of_before_have_no_stamps_and_no_ramp_up_calls(tmp_path):
    """They are read, as unknown."""
    new = "start_ns start_wall_us cold_start_ns batch_start_ns batch_start_wall_us "
    new += "ramp_up_ns spent_ns"
    path = tmp_path / "old.jsonl"
    lines = [json.loads(line) for line in text_of(a_run()).splitlines()]
    for line in lines:
        for name in new.split() if line["record"] == "case" else ():
            del line[name]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = load(path)
    assert run.problems == [] and len(run.results) == 3
    for result in run.results:
        assert (result.start_ns, result.start_wall_us, result.spent_ns) == (None, None, {})
        assert not (result.batch_start_ns or result.batch_start_wall_us or result.ramp_up_ns)


def test_a_truncated_run_stays_truncated_when_saved_again(tmp_path):
    run = a_run()
    run.end, run.in_flight = None, CASES[2]
    save(run, tmp_path / "run.jsonl")
    again = load(tmp_path / "run.jsonl")
    assert again.in_flight == CASES[2]
    assert not again.complete
    assert again.problems == [
        "truncated: the file has no end record; in flight: all_reduce 4K float32 sum on gloo"
    ]


@pytest.mark.parametrize("at", [12, 40, 300])
def test_a_damaged_gz_is_one_line(tmp_path, at):
    broken = bytearray(gzip.compress(text_of(a_run()).encode()))
    broken[at] ^= 0xFF
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(bytes(broken))
    for reading, what in ((load, "file"), (load_own, "result file")):
        try:
            run = reading(path)
        except UnreadableError as error:
            assert str(error).startswith(
                (error_text(what, path, "a"), error_text("result file", ""))
            )
            assert str(error).count(str(path)) == 1
        else:
            assert run.problems


def small_run():
    return Run(
        header={"run_id": "a", "spec": {"sizes": [1024]}, "ranks": 2},
        members=[{"host": "n"}],
        phases={"device": [1, 2]},
        results=[result()],
        end={"status": "complete"},
    )


def test_cut_at_every_byte(tmp_path):
    run = small_run()
    lines = text_of(run).splitlines(keepends=True)
    started = json.dumps({"record": "started", "case": CASES[0].to_json()}) + "\n"
    lines.insert(3, started)
    whole = "".join(lines).encode()
    ends = [len("".join(lines[: i + 1])) for i in range(len(lines))]
    path = tmp_path / "run.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        if cut < ends[0] - 1:  # the header itself, its line feed aside
            refusal(path)
            continue
        cut_run = load(path)
        summarise_run(cut_run)
        # A record counts once its last brace is there; its line feed may be missing.
        complete = sum(cut >= end - 1 for end in ends)
        assert len(cut_run.members) == (complete > 1)
        assert len(cut_run.phases) == (complete > 2)
        assert cut_run.in_flight == (CASES[0] if complete == 4 else None)
        assert len(cut_run.results) == (complete > 4)
        assert cut_run.complete == (complete > 5)
        at_a_line = cut in ends or cut + 1 in ends
        # One problem for the torn line, one for the missing end; neither is kept silent.
        assert len(cut_run.problems) == (not at_a_line) + (complete < 6)
        if not at_a_line:
            number = complete + 1
            assert cut_run.problems[0].startswith(
                f"{path}:{number}: unusable record (cut off): JSONDecodeError: "
            )


def load_lines(tmp_path, *lines):
    path = tmp_path / "run.jsonl"
    header = json.dumps({"record": "header", "schema": "torchcoll/2"})
    path.write_text("\n".join([header, *lines]) + "\n")
    return load(path)


def record(kind, **data):
    return json.dumps({"record": kind, **data})


END = record("end", status="complete")


def changed(**fields):
    return record("case", **{**json.loads(json.dumps(result().to_json())), **fields})


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "not json",
        "null",
        "3",
        '"record"',
        "[]",
        "{}",
        '{"record": []}',
        "[" * 100_000,
        "\x00\x00",
        "9" * 5000,
        record("ranks"),
        record("ranks", ranks=3),
        record("ranks", ranks="ab"),
        record("ranks", ranks=[3]),
        record("phase", name="device"),
        record("phase", name="device", ns=None),
        record("phase", name="device", ns=[None]),
        record("started"),
        record("started", case=None),
        record("started", case={"collective": "all_reduce"}),
        record("started", case={**CASES[0].to_json(), "collective": "of a later version"}),
        record("started", case={**CASES[0].to_json(), "size_bytes": "8"}),
        record("case"),
        record("case", case=CASES[0].to_json()),
        changed(case={**CASES[0].to_json(), "size_bytes": []}),
        changed(time_ns=[[1]]),
        changed(time_ns={"host": [1, 2]}),
        changed(time_ns={"host": [["1"]]}),
        changed(time_ns={"host": [[1.5]]}),
        changed(time_ns={"host": [[None]]}),
        changed(time_ns={"host": [[float("nan")]]}),
        changed(cold_ns=None),
        changed(cold_ns=[[True]]),
        changed(warmup_ns={"0": [1]}),
        changed(verification=3),
        changed(verification={"checked": 3}),
        changed(verification={"checked": 3, "wrong": 0, "wrong_ranks": 4}),
        changed(ranks="2"),
        changed(ranks=1 << 63),
        changed(size_bytes=-1),
        changed(calls_per_sample=0),
        changed(steady_after="3"),
        changed(stop=3),
        changed(communicator=None),
        changed(warnings="ab", reason=1),
        changed(warnings=[1]),
        changed(members=["0"]),
        changed(connect_ns=[None]),
        changed(time_ns={"host": [[10**400]]}),
        changed(verification={"checked": 3, "wrong": "0"}),
        changed(case={**CASES[0].to_json(), "size_bytes": 10**30}),
        changed(case={**CASES[0].to_json(), "coalesce": 0}),
        '{"record": "event", "kind": []}',
        record("event", message={"a": 1}),
        record("end", status=3),
        record("ranks", ranks=[{"host": 3}]),
        record("ranks", ranks=[{"pid": "3"}]),
        record("phase", name="device", ns=[1e308]),
        '{"record": "event", "value": 1e999}',
        changed(size_bytes=None),
        changed(status=None),
        changed(choices="RING"),
        changed(choices=[{"protocol": "LL"}]),
        changed(choices=[{"algorithm": 3}]),
        changed(choices=[{"algorithm": "RING", "channels": "2"}]),
    ],
)
def test_a_broken_record_is_a_problem_and_no_more(tmp_path, line):
    run = load_lines(tmp_path, line, changed(reason="the good one"), END)
    assert [r.reason for r in run.results] == ["the good one"]
    assert len(run.problems) == 1
    assert run.problems[0].startswith(f"{run.path}:2: unusable record: ")
    assert "\n" not in run.problems[0]
    assert run.complete
    assert len(summarise_run(run)) == 1


def test_unknown_records_and_fields_are_ignored(tmp_path):
    case = {**CASES[0].to_json(), "new_in_case": 1}
    verification = {"checked": 5, "wrong": 0, "new_too": 2}
    run = load_lines(
        tmp_path,
        record("weather", sky="blue"),
        "",
        changed(new_in_result=[1], case=case, verification=verification),
        record("event", name="new kind of event"),
        record("end", status="complete", new_in_end=1),
    )
    assert run.problems == []
    assert run.results[0].case == CASES[0]
    assert run.results[0].verification == Verification(5, 0)
    assert run.events == [{"name": "new kind of event"}]


@given(st.binary(max_size=200))
def test_any_bytes_after_the_header_load(tmp_path_factory, garbage):
    path = tmp_path_factory.getbasetemp() / "garbage.jsonl"
    path.write_bytes(b'{"record":"header","schema":"torchcoll/2"}\n' + garbage)
    assert load(path).results == []


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_loaded(tmp_path_factory, garbage):
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(garbage)
    with pytest.raises(UnreadableError):
        load(path)


def test_the_end_is_judged(tmp_path):
    run = load_lines(tmp_path, changed())
    assert run.problems == ["truncated: the file has no end record"]
    run = load_lines(tmp_path, record("end", status="interrupted", reason="SIGTERM in x"))
    assert run.problems == ["interrupted by SIGTERM in x"]
    assert not run.complete
    assert load_lines(tmp_path, record("end", status="interrupted")).problems == [
        "interrupted: no reason given"
    ]
    assert load_lines(tmp_path, record("end", status="failed")).problems == [
        "failed: no reason given"
    ]
    started = record("started", case=CASES[1].to_json())
    run = load_lines(tmp_path, started)
    assert run.in_flight == CASES[1]
    assert run.problems == [
        "truncated: the file has no end record; in flight: all_reduce 2K float32 sum on gloo"
    ]
    assert load_lines(tmp_path, started, changed()).in_flight is None


# What is no result file.
FOREIGN = 'a torchcoll result file, whose first line holds "schema":"torchcoll/2"'


@pytest.mark.parametrize(
    "content",
    [
        b"# nThread 1 nGpus 1 minBytes 8\n",
        b"\x7fELF\x02\x01\x01\x00",
        b"\xff\xfe{\x00}\x00",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b"3\n",
        b'{"record": "header"}\n',
        b'{"record": "header", "schema": 1}\n',
        b'{"record": "header", "schema": null}\n',
        b'{"record": "header", "schema": "other/1"}\n',
        b'{"record": "case", "schema": "torchcoll/2"}\n',
        b'{"record": "header", "schema": "torchcoll/2", "spec": 3}\n',
        b'{"record": "header", "schema": "torchcoll/2", "environment": "x"}\n',
        b'{"record": "header", "schema": "torchcoll/2", "ranks": "x"}\n',
        b'{"record": "header", "schema": "torchcoll/2", "ranks": [1]}\n',
        b"[" * 100_000,
    ],
)
def test_foreign(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    way = f". Where it is output of another tool: torchcoll convert {path} -o RUN.jsonl"
    assert refusal(path, load_own) == error_text("result file", path, FOREIGN) + (
        "" if b'"record"' in content else way
    )


def test_empty(tmp_path):
    path = tmp_path / "file"
    path.touch()
    assert refusal(path, load_own) == error_text(
        "result file",
        path,
        'a torchcoll result file, whose first line holds "schema":"torchcoll/2"; this one is empty',
    )

    assert refusal(path) == error_text("file", path, "output of a benchmark; this one is empty")


def test_missing_and_folder(tmp_path):
    path = tmp_path / "none.jsonl"
    assert refusal(path) == f"file: got {path}, expected a file that exists"
    path = tmp_path / "folder.gz"
    path.mkdir()
    assert refusal(path).startswith(error_text("folder", path, "a folder with result files"))
    with pytest.raises(UnreadableError, match=expecting("a file, not a folder$")):
        load_own(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_not_permitted(tmp_path):
    path = tmp_path / "run.jsonl"
    path.touch(mode=0)
    assert refusal(path) == (error_text("result file", path, "a readable file (Permission denied)"))


@pytest.mark.parametrize(
    ("name", "packed"), [("run.jsonl.gz", True), ("run.jsonl.gz", False), ("run.jsonl", True)]
)
def test_what_is_packed_is_seen_and_not_believed(tmp_path, name, packed):
    text = text_of(a_run()).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if packed else text)
    assert load(tmp_path / name).results == a_run().results


@pytest.mark.parametrize("further", ["run.jsonl.gz.2", "run.jsonl.2.gz", "run.jsonl.2"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_packed_file_has_continuations_too(tmp_path, further, packed):
    first, second = a_run(), a_run()
    first.results, second.results = a_run().results[:1], a_run().results[1:]
    (tmp_path / "run.jsonl.gz").write_bytes(gzip.compress(text_of(first).encode()))
    text = text_of(second).encode()
    (tmp_path / further).write_bytes(gzip.compress(text) if packed else text)
    run = load(tmp_path / "run.jsonl.gz")
    assert run.results == a_run().results
    assert [c.path for c in run.continuations] == [tmp_path / further]


@pytest.mark.parametrize("schema", ["torchcoll/3", "torchcoll/3.1", "torchcoll/10", "torchcoll/"])
def test_another_major_schema(tmp_path, schema):
    path = tmp_path / "file"
    path.write_text(json.dumps({"record": "header", "schema": schema}))
    assert refusal(path) == error_text(
        f"schema of {path}", schema, "torchcoll/2. Install the torchcoll version that wrote it."
    )


def test_an_older_schema_says_what_to_do(tmp_path):
    path = tmp_path / "file"
    path.write_text(json.dumps({"record": "header", "schema": "torchcoll/1"}))
    expected = "torchcoll/2. Measure again: no version that was released wrote it."
    assert refusal(path) == error_text(f"schema of {path}", "torchcoll/1", expected)


@pytest.mark.parametrize("schema", ["torchcoll/2", "torchcoll/2.4"])
def test_the_same_major_schema(tmp_path, schema):
    path = tmp_path / "file"
    path.write_text(json.dumps({"record": "header", "schema": schema, "spec": None}))
    run = load(path)
    assert run.header["schema"] == schema
    assert (run.spec, run.environment, run.labels, run.ranks) == (Spec(), {}, {}, 0)


def test_file_2_and_3_are_merged(tmp_path):
    path = tmp_path / "run.jsonl"
    first = a_run()
    first.results = [result(CASES[0]), result(CASES[1], status="timeout")]
    first.end, first.in_flight, first.events = None, CASES[2], [{"name": "one"}]
    second = a_run()
    second.results, second.end, second.events = [result(CASES[1], first=7)], None, []
    third = a_run()
    third.results, third.events = [result(CASES[2])], [{"name": "three"}]
    save(first, path)
    assert load(path).problems == [
        "truncated: the file has no end record; in flight: all_reduce 4K float32 sum on gloo"
    ]
    save(second, tmp_path / "run.jsonl.2")
    save(third, tmp_path / "run.jsonl.3")
    run = load(path)
    assert [r.case for r in run.results] == list(CASES)
    assert [r.status for r in run.results] == ["ok"] * 3
    assert run.results[1].cold_ns[0][0] == 7  # the later one counts
    assert run.events == [{"name": "one"}, {"name": "three"}]
    assert run.complete
    assert (run.problems, run.in_flight) == ([], None)
    assert [c.path.name for c in run.continuations] == ["run.jsonl.2", "run.jsonl.3"]
    assert [[r.case for r in own] for _, own in run.all_runs()] == [[c] for c in CASES]
    # ... and saved again they are three files again
    save(run, tmp_path / "again.jsonl")
    again = load(tmp_path / "again.jsonl")
    assert (again.results, again.events, again.end) == (run.results, run.events, run.end)
    assert [len(own) for _, own in again.all_runs()] == [1, 1, 1]


def test_an_event_that_was_overcome_is_marked(tmp_path):
    path = tmp_path / "run.jsonl"
    first, second = a_run(), a_run()
    first.events = [{"kind": "signal", "message": "SIGINT"}, {"kind": "warning", "message": "w"}]
    first.end = {"status": "interrupted", "reason": "SIGINT"}
    second.events, second.results = [], []
    save(first, path)
    assert load(path).events == first.events
    save(second, tmp_path / "run.jsonl.2")
    assert load(path).events == [{**first.events[0], "resumed": True}, first.events[1]]
    assert load(path).problems == []


def test_no_file_is_loaded_twice(tmp_path, monkeypatch):
    path, other = tmp_path / "run.jsonl", tmp_path / "other.jsonl"
    for name in (path, tmp_path / "run.jsonl.2", other):
        save(a_run(), name)
    monkeypatch.chdir(tmp_path)
    runs = load_all(["run.jsonl.2", path, "other.jsonl", "./run.jsonl"])
    assert [str(run.path) for run in runs] == [str(path), "other.jsonl"]
    assert runs[0].problems == [
        "./run.jsonl was named twice: it is shown once",
        f"{path}.2 is a part of {path}: it is shown once",
    ]
    assert [str(run.path) for run in load_all(["run.jsonl.2"])] == ["run.jsonl.2"]
    assert load_all([runs[0], runs[0]]) == [runs[0], runs[0]]  # a Run is what it is


def test_a_continuation_cut_before_its_header_is_a_problem(tmp_path):
    path = tmp_path / "run.jsonl"
    first = a_run()
    first.end = None
    save(first, path)
    (tmp_path / "run.jsonl.2").touch()
    last = a_run()
    last.results = []
    save(last, tmp_path / "run.jsonl.3")
    run = load(path)
    assert run.results == first.results
    assert run.complete
    assert run.problems == [
        error_text(
            "result file",
            f"{path}.2",
            'a torchcoll result file, whose first line holds "schema":"torchcoll/2"; this '
            "one is empty",
        )
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_no_nan(tmp_path, number):
    writer = Writer(tmp_path / "run.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.write("event", {"value": number})
    writer.close()
    assert writer.path.read_bytes() == b""  # not even a part of the line


def test_any_text_is_kept(tmp_path):
    name = "caf\u00e9 \ud800 \x00 \u2028\n"
    save(Run(header={"argv": [name]}), tmp_path / "run.jsonl")
    assert (tmp_path / "run.jsonl").read_bytes().isascii()
    assert load(tmp_path / "run.jsonl").header["argv"] == [name]


@pytest.mark.parametrize("make", ["touch", "mkdir"])
def test_existing_output_is_refused_and_untouched(tmp_path, make):
    path = tmp_path / "run.jsonl"
    getattr(path, make)()
    for write in (Writer, lambda p: save(a_run(), p)):
        with pytest.raises(UsageError) as caught:
            write(path)
        assert str(caught.value) == error_text(
            "output", path, "a file that does not exist. Name another file or remove it."
        )

    assert not path.is_file() or path.read_bytes() == b""


UNWRITABLE = "Name another with --output, or none with --no-output."


def test_unwritable(in_tmp_path):
    with pytest.raises(UsageError) as caught:
        save(a_run(), "x" * 300)
    assert str(caught.value) == (
        error_text("output", f"{'x' * 117}...", "a file that can be written (File name too long). ")
        + UNWRITABLE
    )


def test_a_short_write_is_continued(tmp_path):
    """A raw write may take a part only; the rest must follow."""

    class Hesitant:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            return self.file.write(bytes(data[:7]))

    writer = Writer(tmp_path / "run.jsonl")
    writer._file = Hesitant(writer._file)
    writer.write("header", {"schema": SCHEMA, "run_id": "a" * 50})
    writer.close()
    assert load(writer.path).header["run_id"] == "a" * 50


@pytest.mark.parametrize(
    ("status", "expected"),
    [("ok", True), ("unsupported", True), ("skipped", True), ("wrong", False), ("oom", False)],
)
def test_what_makes_a_command_fail(status, expected):
    assert result(status=status).expected is expected


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_is_too_long_is_cut_and_told(tmp_path, packed):
    path, content = tmp_path / "a.log", b"1234567890\nab\n"
    path.write_bytes(gzip.compress(content) if packed else content)
    problems = []
    assert list(lines_of(path, problems, longest=4)) == [b"1234", b"ab\n"]
    assert problems == [f"{path}:1: longer than 4 B: cut there"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("longest", [3, 5, 16, 4096, 1 << 26])
def test_lines_are_those_of_the_file_wherever_its_pieces_end(tmp_path, packed, longest):
    """Lines of 0 to 40 bytes and one of 20 000, which no piece holds; a \\r is no end of a line."""
    lines = [b"%d\r" % number + b"x" * (number % 41) for number in range(3000)]
    lines[1500] = b"y" * 20_000
    path = tmp_path / "a.log"
    for content in (b"\n".join(lines), b"\n".join(lines) + b"\n"):
        path.write_bytes(gzip.compress(content) if packed else content)
        problems, whole = [], io.BytesIO(content).readlines()
        assert list(lines_of(path, problems, longest=longest)) == [line[:longest] for line in whole]
        long = [number for number, line in enumerate(whole, 1) if len(line) > longest]
        assert [text.split(":")[1] for text in problems] == [str(number) for number in long]


def test_what_had_failed_is_made_up_for_by_resume(tmp_path):
    run, again = a_run(), a_run()
    run.results[2] = CaseResult(CASES[2], "failed", 2, "out of memory")
    again.results = [result(CASES[2])]
    path = tmp_path / "run.jsonl"
    save(run, path)
    save(again, tmp_path / "run.jsonl.2")
    found = load(path)
    assert [(r.case, r.status) for r in found.results] == [
        (CASES[0], "ok"),
        (CASES[1], "wrong"),
        (CASES[2], "ok"),
    ]
    assert (found.lost, found.complete) == (0, True)
    # ... also where another one was measured again, and is new to nobody.
    again.results = [result(CASES[1]), result(CASES[2])]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"failed"' not in line))
    (tmp_path / "run.jsonl.2").unlink()
    save(again, tmp_path / "run.jsonl.2")
    assert (len(load(path).results), load(path).lost) == (3, 0)
