"""Recognition of formats, bad input, and the commands ``convert`` and ``show``."""

import csv
import gzip
import io
import json
import sys
import tracemalloc
from pathlib import Path

import fuzz
import pytest
from error_form import error_line, error_tail, error_text
from foreign_files import (
    DEEPSPEED,
    IMB,
    ONECCL,
    OSU,
    PARAM,
    ROW,
    SMALL,
    nccl_json,
    text,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcoll.cli import main
from torchcoll.core import opening
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.file import save
from torchcoll.questions.show.frames import table
from torchcoll.reading import base, registry
from torchcoll.reading.base import ImportOptions
from torchcoll.reading.command import parse_columns
from torchcoll.reading.inputs import load

FORMATS = {
    "nccl-tests": text(),
    "nccl-tests-json": json.dumps(nccl_json()),
    "oneccl": ONECCL.format(names="allreduce"),
    "imb": IMB.format(name="Allreduce"),
    "osu": OSU.format(kind="", name="Allreduce"),
    "ucc": fuzz.seed("ucc.txt"),
    "param": PARAM,
    "deepspeed": DEEPSPEED,
    "pairs": "mpirun -H a,b osu_bw\n# OSU MPI Bandwidth Test v7.3\n1048576 24310.5\n",
    "plain": "| collective | size | time (us) |\n|---|---|---|\n| reduce | 1K | 2.5 |\n",
}


@pytest.mark.parametrize("name", registry.importers())
def test_each_format_is_recognised(imported, name):
    result = imported(FORMATS[name])
    assert (result.importer, len(result.runs)) == (name, 1)


@pytest.mark.parametrize("name", FORMATS)
def test_after_much_noise(imported, name):
    """The first line of the format comes after more lines than one window of sniffing has."""
    noise = "node1:1:2 [3] NCCL INFO Channel 05/24 : 3[e3000] -> 4[8a000] via P2P/IPC\n" * 3000
    if name != "nccl-tests-json":
        assert imported(noise + FORMATS[name] + noise).importer == name


NOISE_BYTES = 4_000_000


def test_noise_takes_no_memory(tmp_path):
    line = "node1:1:2 [3] NCCL INFO Channel 05/24 : 3[e3000] -> 4[8a000] via P2P/IPC/read\n"
    path = tmp_path / "noise.log"
    path.write_text(line * (NOISE_BYTES // len(line)) + text())
    registry.importers()
    tracemalloc.start()
    result = registry.import_file(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.rows == 2
    assert peak < NOISE_BYTES  # pieces of 1 MiB, and not all lines


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "output of a benchmark; this one is empty"),
        (b" \n\n", "output of a benchmark; this one is empty"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "text; this one is binary"),
        (b"dear diary\n", "It begins with 'dear diary'."),
        (b"\x1f\x8b\x08broken", "a readable file"),
    ],
)
def test_what_cannot_be_imported_is_one_line_and_exit_3(tmp_path, capsys, content, expected):
    path = tmp_path / "x.log"
    path.write_bytes(content)
    for command in ("convert", "show"):
        assert main([command, str(path)]) == 3
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("torchcoll: error: ") and expected in err


def test_missing_files_and_folders(tmp_path, capsys):
    for path, expected in (
        (tmp_path, "a folder with result files"),
        (tmp_path / "no", "that exists"),
    ):
        assert main(["convert", str(path)]) == 3
        assert expected in capsys.readouterr().err


def test_encodings(imported):
    latin = "# Gerät\n".encode("latin-1") + "# Gerät\n".encode() + text().encode()
    assert imported(latin).rows == 2
    assert imported(text().encode("utf-16")).rows == 2
    assert imported(b"\xef\xbb\xbf" + text().replace("\n", "\r\n").encode()).rows == 2


def test_packed_and_stdin(imported, monkeypatch):
    assert imported(gzip.compress(text().encode()), "x.log.gz").rows == 2
    half = gzip.compress(text().encode() * 50)
    result = imported(half[: len(half) // 2], "x.log.gz")
    assert any("cut off or damaged: " in warning for warning in result.warnings)
    for packed in (text().encode(), gzip.compress(text().encode())):
        monkeypatch.setattr(opening, "_stdin", [])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
        result = registry.import_file("-")
        assert (result.rows, result.runs[0].source["file"]) == (2, "stdin")


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
@settings(max_examples=40)
def test_no_cut_and_no_change_is_a_traceback(tmp_path_factory, name, data):
    whole = FORMATS[name]
    cut = data.draw(st.integers(0, len(whole)))
    odd = data.draw(
        st.sampled_from(["", "\x00", "9" * 400, "inf", "nan", "|", ",", "{", "-1", "\n"])
    )
    path = tmp_path_factory.getbasetemp() / "cut.log"
    path.write_text(whole[:cut] + odd + (whole[cut:] if data.draw(st.booleans()) else ""))
    try:
        result = registry.import_file(str(path))
    except UnreadableError:
        return
    for run in result.runs:
        target = path.with_suffix(".jsonl")
        target.unlink(missing_ok=True)
        registry_saved(run, target)


def registry_saved(run, path):

    save(run, path)
    loaded = load(path)
    assert loaded.results == run.results
    assert not [p for p in loaded.problems if "unusable" in p]


def test_import_reports_what_it_read_and_refused(tmp_path, capsys):
    path = tmp_path / "a.log"
    path.write_text(text(SMALL + ROW[:60] + "\n" + SMALL, foot=""))
    out = tmp_path / "run.jsonl"
    assert main(["convert", str(path), "-o", str(out), "--label", "kernel=generic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{path}: nccl-tests: 2 of 3 rows read, 4 cases",
        f"{path}:13: refused: half a row: 6 fields of 13",
        f"{path}: truncated: the output stops before its last lines",
        f"written: {out}",
    ]
    run = load(out)
    assert (len(run.results), run.labels) == (4, {"kernel": "generic"})
    # What was refused stays with the run, and a table shows it.
    assert main(["show", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "imported from nccl-tests 2.19.6 text: all_reduce, float32, sum" in shown
    assert f"import: refused: {path}:13: half a row" in shown
    assert "truncated: the output stops before its last lines" in shown


def test_nothing_read_is_exit_3(tmp_path, capsys):
    path = tmp_path / "a.log"
    path.write_text(ONECCL.format(names="allreduce bcast"))
    assert main(["convert", str(path)]) == 3
    captured = capsys.readouterr()  # stdout is for what was read
    assert captured.out == ""
    assert captured.err.startswith(f"torchcoll: error: {path}:")
    assert captured.err.count("\n") == 1 and ": the time is the sum over" in captured.err
    assert main(["show", str(path)]) == 3
    assert "the sum over several collectives" in capsys.readouterr().err


def test_several_runs_are_several_files_and_none_is_overwritten(tmp_path, capsys):
    path = tmp_path / "a.log"
    path.write_text(text() + text(program="reduce_perf"))
    out = tmp_path / "run.jsonl"
    assert main(["convert", str(path), "-o", str(out)]) == 0
    assert load(tmp_path / "run-2.jsonl").results[0].case.collective == "reduce"
    out.unlink()
    assert main(["convert", str(path), "-o", str(out)]) == 2
    assert error_tail("run-2.jsonl", "a file that does not exist") in capsys.readouterr().err
    assert not out.exists()


def test_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.log"
    path.write_text(text())
    out = tmp_path / "a.parquet"
    assert main(["convert", str(path), "-o", str(out)]) == 0
    frame = pandas.read_parquet(out)
    assert frame["median_ns"].tolist() == [11520, 11400, 24310, 24070]
    # Columns of unknowns have their type all the same: files can be read as one dataset.
    types = {name: str(frame[name].dtype) for name in ("group", "p99_ns", "channels", "calls")}
    assert types == {"group": "string", "p99_ns": "Float64", "channels": "Int64", "calls": "Int64"}


def test_an_unknown_reduction_over_ranks_is_not_the_maximum(tmp_path, capsys):
    table = tmp_path / "a.csv"
    table.write_text("Size,Algbw (GB/s)\n1M,100\n")
    arguments = [
        "--collective",
        "broadcast",
        "--ranks",
        "8",
        "--map",
        "size=Size,algbw=Algbw (GB/s)",
    ]
    assert main(["convert", str(table), *arguments, "-o", str(tmp_path / "a.jsonl")]) == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "a.jsonl"), "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["over_ranks"], row["busbw_gbps"]) == ("", "100.0")


COUNTS = ("ranks", "count", "bytes_in", "bytes_out", "calls")


@pytest.mark.parametrize(("ranks", "expected"), [([], None), (["--ranks", "8"], 8)])
def test_an_unknown_number_is_not_0(tmp_path, capsys, ranks, expected):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "a.csv"
    path.write_text("Size,Algbw (GB/s)\n1M,100\n")
    arguments = ["--collective", "broadcast", "--map", "size=Size,algbw=Algbw (GB/s)"]
    run = tmp_path / "a.jsonl"
    assert main(["convert", str(path), *arguments, *ranks, "-o", str(run)]) == 0
    capsys.readouterr()
    assert main(["show", str(run), "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["ranks"], row["count"], row["calls"]) == (str(expected or ""), "", "")
    assert main(["show", str(run), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["ranks"], row["count"], row["calls"]) == (expected, None, None)
    (row,) = table(load(run)).to_dict("records")
    assert row["ranks"] == expected if expected else pandas.isna(row["ranks"])
    pytest.importorskip("pyarrow")
    out = tmp_path / "a.parquet"
    assert main(["convert", str(run), "-o", str(out)]) == 0
    frame = pandas.read_parquet(out)
    assert {str(frame[name].dtype) for name in COUNTS} == {"Int64"}
    assert bool(frame["calls"].isna()[0]) and bool(frame["ranks"].isna()[0]) is (not expected)


def test_rows_are_not_read_back(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(text())
    for ending in ("csv", "json"):
        out = tmp_path / f"out.{ending}"
        assert main(["convert", str(path), "-o", str(out)]) == 0
        assert main(["convert", str(out)]) == 3


def test_a_result_file_is_converted(tmp_path, capsys):
    """Also to another result file: a run and its --resume become one."""
    path, run, again = tmp_path / "a.log", tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    path.write_text(text())
    assert main(["convert", str(path), "-o", str(run)]) == 0
    capsys.readouterr()
    assert main(["convert", str(run)]) == 0
    assert capsys.readouterr().out.endswith(f"{run}: result file: 4 cases\n")
    assert main(["convert", str(run), "-o", str(again)]) == 0
    assert [r.case for r in load(again).results] == [r.case for r in load(run).results]


def test_a_result_file_on_stdin_with_its_resumed_run_and_its_own_facts(
    tmp_path, monkeypatch, capsys
):
    path, run, out = tmp_path / "a.log", tmp_path / "a.jsonl", tmp_path / "a.csv"
    path.write_text(text())
    assert main(["convert", str(path), "-o", str(run)]) == 0
    (tmp_path / "a.jsonl.2").write_bytes(run.read_bytes())
    assert main(["convert", str(run), f"{run}.2", "-o", str(out)]) == 0
    twice = out.read_text().count("\n") - 1
    assert twice == len(load(run).results)  # FILE.2 belongs to FILE and is read once
    (tmp_path / "a.jsonl.2").unlink()
    monkeypatch.setattr(opening, "_stdin", [])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(run.read_bytes())))
    assert main(["convert", "-", "-o", str(out), "--force"]) == 0
    assert out.read_text().count("\n") == 5
    capsys.readouterr()
    for option, value in (("--label", "a=b"), ("--collective", "broadcast"), ("--ranks", "4")):
        assert main(["convert", str(run), option, value]) == 2
        assert "a result file has its own" in capsys.readouterr().err


def test_forced_formats_and_wrong_words(imported):
    with pytest.raises(UsageError, match=error_text("from", "xml", "one of nccl-tests-json")):
        imported(text(), importer="xml")
    assert imported(text(), importer="oneccl").runs == []
    with pytest.raises(UsageError, match=error_text("ranks", "0")):
        ImportOptions(ranks=0)
    with pytest.raises(UsageError, match=error_text("collective", "all_reduced")):
        ImportOptions(collective="all_reduced")


def test_map():
    assert parse_columns("size=Size, algbw=Algbw (GB/s)") == {
        "size": "Size",
        "algbw": "Algbw (GB/s)",
    }
    assert parse_columns(r"time=t\, mean") == {"time": "t, mean"}
    assert parse_columns(None) == {}
    with pytest.raises(UsageError, match=error_text("map", "size")):
        parse_columns("size")


IMPORTER = """
from torchcoll.core.result import Reported
from torchcoll.reading.base import Imported, make_result, make_run

NAME = "diary"

def sniff(head):
    return any(line.startswith("dear diary") for line in head)

def read(lines, options):
    found = Imported()
    results = []
    for number, line in lines:
        if line[:1].isdigit():
            size, us = line.split()
            results.append(make_result("all_reduce", int(size), Reported(float(us) * 1e3)))
            found.rows += 1
    found.runs.append(make_run(results, options, {"tool": "diary"}))
    return found
"""


@pytest.fixture
def third_party(tmp_path, monkeypatch):
    """A distribution with one importer, as pip would install it."""
    (tmp_path / "diary_importer.py").write_text(IMPORTER)
    info = tmp_path / "diary-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: diary\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchcoll.importers]\ndiary = diary_importer\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.importers.cache_clear()
    yield tmp_path
    registry.importers.cache_clear()
    sys.modules.pop("diary_importer", None)


def test_a_third_party_adds_one_file_and_an_entry_point(third_party, imported, capsys):
    result = imported("dear diary\n1024 2.5\n")
    assert (result.importer, result.rows) == ("diary", 1)
    assert main(["show", str(third_party / "x.log")]) == 0
    assert "imported from diary: all_reduce" in capsys.readouterr().out


def test_a_broken_third_party_is_named(third_party, imported):
    (third_party / "diary_importer.py").write_text("1 / 0")
    with pytest.raises(
        UnreadableError, match=error_text(r"entry point diary of torchcoll\.importers", "Zero")
    ):
        imported(text())


WORDS = st.sampled_from(
    [
        *("#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "\n"),
        *("1048576", "262144", "float", "sum", "-1", "24.31", "43.13", "0", "N/A", "1e999", "-5"),
        *("Rank  0 on h device  0", "# Avg bus bandwidth : x", "NCCL INFO", "h:1:2 [0] NCCL INFO"),
        *("Collective test starting: all_reduce_perf", "#ranks,", "t_avg[usec]", "#elem_count"),
        *("COMMS-RES-all_reduce-float32", "# OSU MPI Allreduce Latency Test v7", "(us)", "|", ","),
        "---- Performance of all_reduce on 8 devices ----",
        "Size",
        "16x4",
        "{",
        "}",
        '"results"',
        '"coll_exec_time_us"',
        '"nccl_version"',
        "numCycle",
        "\t",
        "9" * 30,
        "\ud7ff",
        "  ",
    ]
)


@pytest.mark.parametrize("name", list(registry.importers()))
@given(tokens=st.lists(WORDS, max_size=60))
@settings(max_examples=60)
def test_any_words_are_read_or_refused(tmp_path_factory, name, tokens):
    path = tmp_path_factory.getbasetemp() / "words.log"
    path.write_text(" ".join(tokens), encoding="utf-8")
    try:
        result = registry.import_file(str(path), ImportOptions(collective="all_reduce"), name)
    except UnreadableError:
        return
    for run in result.runs:
        target = path.with_suffix(".jsonl")
        target.unlink(missing_ok=True)
        registry_saved(run, target)


def test_rows_share_nothing_that_can_be_changed(tmp_path):
    """Changes to one row must not appear in other rows, or in files that are read later."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(
            "collective,ranks,size,time_us\nall_reduce,2,1024,10\nall_reduce,2,4096,10\n"
        )
    first, second = load(tmp_path / "a.csv").results
    first.time_ns["host"] = [[1]]
    first.spent_ns["case"] = 1
    for case_result in (second, *load(tmp_path / "b.csv").results):
        assert (case_result.cold_ns, case_result.members, case_result.choices) == ((), (), ())
        assert (case_result.time_ns, case_result.spent_ns) == ({}, {})


def test_a_number_of_more_digits_than_python_reads():
    """Python accepts at most 4,300 digits, also in groups of three."""
    assert base.whole("9" + ",999" * 2000) is None
    assert base.whole("9" * 6000) is None
    assert base.whole("1,048,576") == 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        '{"schemaVersion": 1, "distributedInfo": {"rank": 0},\n "traceEvents": [\n{"ph": "X"}]}',
        '{"version": "2.5", "pg_config": {"0": {}}, "entries": [{"a": 1}]}',
    ],
)
@pytest.mark.parametrize("command", ["show", "compare"])
def test_what_a_training_sent_is_for_another_command(tmp_path, capsys, command, text):
    path = tmp_path / "rank0.json"
    path.write_text(text)
    assert main([command, str(path), str(path)]) == 3
    err = capsys.readouterr().err
    assert err == error_line(
        "file",
        path,
        f"results; this is what a training sent. torchcoll trace {path} reads it.\n",
    )


@pytest.mark.parametrize(("name", "quoted"), [("-", "-"), ("my step.json", "'my step.json'")])
def test_the_command_that_reads_it_can_be_typed(tmp_path, monkeypatch, name, quoted):
    """A blank in the name, and stdin, which has none."""
    monkeypatch.chdir(tmp_path)

    def error_of(text):
        Path("my step.json").write_text(text)
        monkeypatch.setattr(opening, "_stdin", [])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        with pytest.raises(UnreadableError) as caught:
            registry.import_file(name)
        return str(caught.value)

    assert error_of('{"traceEvents": [{"ph": "X"}]}').endswith(
        f"torchcoll trace {quoted} reads it."
    )
    assert "model predict reads it" in error_of('{"schema": "torchcoll-model/2"}')
