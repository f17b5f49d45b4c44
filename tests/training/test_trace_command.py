"""``torchcoll trace``: recognition of files, several files, bad input."""

import dataclasses
import json
import pickle

import pytest
from error_form import error_text
from foreign_traces import CONFIG, INFO, entry, kernel, param
from sent import call, ddp, traffic

from torchcoll.cli import main
from torchcoll.core.traffic import Traffic
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traces import read_traffic
from torchcoll.parts.training.traffic_table import summarise_traffic


def error(capsys, *arguments):
    """The single error line of a command that fails with this exit code."""
    code = main(["trace", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return code, err.removeprefix("torchcoll: error: ").rstrip()


@pytest.fixture
def captured(tmp_path):
    """A folder as a capture writes it, and the joined traffic of its ranks."""
    whole = traffic(ddp, steps=4)
    for rank in range(2):
        rank_traffic = dataclasses.replace(
            whole, calls={rank: whole.calls[rank]}, steps={rank: whole.steps[rank]}
        )
        rank_traffic.save(tmp_path / "run" / f"traffic-rank{rank}.jsonl")
    return tmp_path / "run", whole


def test_a_folder_of_captured_ranks(captured, tmp_path, capsys):
    folder, whole = captured
    output = tmp_path / "all.jsonl"
    assert main(["trace", str(folder), "-o", str(output)]) == 0
    out, err = capsys.readouterr()
    assert err == f"written: {output}\n"
    assert out.startswith(
        "a step of 100 ms has a collective in flight for 35.2 ms (35 %); each rank sends 84 MiB a "
        "step in 4 all_reduce, 1 broadcast\nno rank is late (the ranks came to each call at the "
        "same time"
    )
    assert f"\n\n{folder}: capture, 2 ranks, gloo, group 0," in out
    assert Traffic.load(output).calls == whole.calls
    assert main(["trace", str(output), "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") == 4
    assert main(["trace", str(folder), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["traffic"]["path"] == str(folder)


def test_an_output_that_exists_is_kept(captured, tmp_path, capsys):
    output = tmp_path / "all.jsonl"
    output.write_text("mine")
    code, text = error(capsys, captured[0], "-o", output)
    assert (code, text.startswith(error_text("output", output, "a file that does not"))) == (2, 1)
    assert output.read_text() == "mine"


def test_the_same_traffic_whatever_the_source(tmp_path):
    """Two all_reduce of 12 floats on two ranks: as a trace, as a dump, as a capture."""
    for rank in range(2):
        events = [param("allreduce", 1000 * i, i, 12, 12, Seq=i) for i in (1, 2)]
        events += [kernel("nccl", 1000 * i + 100, 2500, i) for i in (1, 2)]
        info = INFO | {"rank": rank}
        trace = {"traceEvents": events, "distributedInfo": info}
        (tmp_path / f"trace{rank}.json").write_text(json.dumps(trace))
        dump = {"version": "2.10", "pg_config": {"0": CONFIG["0"]}}
        dump["entries"] = [entry("all_reduce", i) for i in (1, 2)]
        (tmp_path / f"fr{rank}.json").write_text(json.dumps(dump))
    traced, dumped = (
        read_traffic(sorted(tmp_path.glob(f"{name}*.json"))) for name in ("trace", "fr")
    )
    assert traced.groups == dumped.groups
    for rank in range(2):
        untold = {"exposed_ns": None, "began_ns": None}  # by a dump
        calls = [dataclasses.replace(first, **untold) for first in traced.calls[rank]]
        assert calls == dumped.calls[rank]
    first, second = (summarise_traffic(Ledger(traffics)).rows for traffics in (traced, dumped))
    # Only the trace tells that the second kernel was queued behind the first.
    untold = {"exposed_ns": None, "transfer_per_step_ns": None}
    assert [dataclasses.replace(row, **untold) for row in first] == [
        dataclasses.replace(row, **untold) for row in second
    ]


def test_the_algorithm_that_kernels_are_named_after(tmp_path, capsys):
    """Names as NCCL 2.27 has them; a send has no algorithm."""
    names = (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    )
    events = [param("allreduce", 1000 * i, i, 12, 12, Seq=i) for i in (1, 2)]
    events += [param("all_to_all", 3000, 3, 12, 12, Seq=3)]
    events += [kernel(name, 1000 * i + 100, 200, i) for i, name in enumerate(names, 1)]
    path = tmp_path / "trace0.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": INFO}))
    output = tmp_path / "kept.jsonl"
    assert main(["trace", str(path), "-o", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "algorithm: a hint (?) by the names of the kernels, some of which run others too" in lines
    )
    (reduced,) = (line for line in lines if line.startswith("all_reduce "))
    (moved,) = (line for line in lines if line.startswith("all_to_all "))
    assert reduced.endswith("  RING/LL?, TREE/LL?") and moved.endswith("  -")
    kept = Traffic.load(output)
    assert [call.algorithm for call in kept.calls[0]] == ["RING/LL", "TREE/LL", ""]
    assert main(["trace", str(output), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["algorithm"] for row in rows] == ["RING/LL, TREE/LL", None]


def test_a_pickle_is_read_as_its_json(tmp_path, capsys):
    """Both forms of one dump, named as the watchdog names them and as a person does."""
    dump = {"version": "2.10", "pg_config": {"0": CONFIG["0"]}}
    dump["entries"] = [entry("all_reduce", i, process_group=("0", "default_pg")) for i in (1, 2)]
    for rank in range(2):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        (tmp_path / "json").mkdir(exist_ok=True)
        (tmp_path / "json" / f"fr{rank}.json").write_text(json.dumps(dump))
        (tmp_path / f"{rank}").mkdir()
        (tmp_path / f"{rank}" / f"fr_{rank}.pickle").write_bytes(pickle.dumps(dump, protocol=4))
    expected = read_traffic([tmp_path / "json"]).calls
    assert len(expected[1]) == 2
    assert read_traffic([tmp_path]).calls == expected
    named = [tmp_path / f"{rank}" / f"fr_{rank}.pickle" for rank in range(2)]
    assert read_traffic(named).calls == expected
    assert main(["show", str(tmp_path / "nccl_trace_rank_0")]) == 3
    assert "nccl_trace_rank_0 reads it" in capsys.readouterr().err


KINDS = (
    "a traffic file of torchcoll, a Kineto trace, a Flight Recorder dump or a file of NCCL "
    "Inspector"
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"results": []}', KINDS),
        (b"[1, 2]", KINDS),
        (b"dear diary", KINDS),
        (b"\xff\xfe\x00", KINDS),
        (b"", KINDS),
        (b"[" * 100_000, KINDS),
        (b'{"traceEvents": []}', "record_param_comms or c10d:: events. Profile a step"),
        (b"\x1f\x8b\x08broken", "a whole file"),
    ],
)
def test_other_files_are_one_line_and_exit_3(tmp_path, capsys, content, expected):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    code, text = error(capsys, path)
    assert (code, expected in text) == (3, True)


def test_missing_files_and_empty_folders(tmp_path, capsys):
    assert error(capsys, tmp_path / "no.json") == (
        3,
        f"file: got {tmp_path / 'no.json'}, expected a file that exists",
    )
    (tmp_path / "README").write_text("nothing")
    assert error(capsys, tmp_path) == (
        3,
        error_text(
            "folder",
            tmp_path,
            "files .json, .jsonl, .json.gz, .jsonl.gz, dumps of the Flight Recorder or "
            "NCCL Inspector's in it",
        ),
    )


def test_an_unknown_format(tmp_path, capsys):
    assert error(capsys, tmp_path, "--format", "html") == (
        2,
        error_text("format", "html", "one of table, markdown, csv, json"),
    )


def test_files_that_do_not_belong_together(captured, tmp_path, capsys):
    folder, whole = captured
    for rank in range(2):
        whole.save(folder / f"again{rank}.jsonl")
    code, text = error(capsys, folder)
    assert (code, "rank 0 twice" in text) == (2, True)
    data = {"traceEvents": [param("allreduce", 0, 7)], "distributedInfo": INFO | {"rank": 1}}
    (tmp_path / "t.json").write_text(json.dumps(data))
    code, text = error(capsys, folder / "traffic-rank0.jsonl", tmp_path / "t.json")
    assert (code, "kineto of 2 ranks" in text) == (2, True)


def test_a_group_that_one_file_does_not_tell(tmp_path):
    """In one of the files the list of its ranks was shortened."""
    for rank, ranks in enumerate(("[0, 1]", "[0, ..., 1]")):
        entry = param("allreduce", 0, 7, Process_Group_Ranks=ranks, Process_Group_Name="4")
        data = {"traceEvents": [entry], "distributedInfo": INFO | {"rank": rank}}
        (tmp_path / f"{rank}.json").write_text(json.dumps(data))
    assert read_traffic([tmp_path]).groups["4"].ranks == (0, 1)


def test_problems_go_to_stderr_with_csv_and_json(tmp_path, capsys):
    path = tmp_path / "cut.jsonl"
    traffic(lambda rank: [call()]).save(path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert main(["trace", str(path), "--format", "csv"]) == 0
    assert capsys.readouterr().err == (
        f"torchcoll: warning: {path}: truncated: the file has no end record\n"
    )


def test_a_file_that_was_cut_is_written_with_a_note(captured, tmp_path, capsys):
    cut = tmp_path / "cut.jsonl"
    lines = (captured[0] / "traffic-rank0.jsonl").read_text().splitlines(keepends=True)
    cut.write_text("".join(lines[:-1]))  # without its end
    assert main(["trace", str(cut), "-o", str(tmp_path / "again.jsonl")]) == 0
    capsys.readouterr()
    written = Traffic.load(tmp_path / "again.jsonl")
    assert written.notes[-1] == f"{cut}: truncated: the file has no end record"
    assert main(["trace", str(tmp_path / "again.jsonl")]) == 0
    assert "truncated" in capsys.readouterr().out


def test_a_file_without_ranks(captured, tmp_path, capsys):
    header = (captured[0] / "traffic-rank0.jsonl").read_text().splitlines(keepends=True)[0]
    (tmp_path / "header.jsonl").write_text(header)
    assert main(["trace", str(tmp_path / "header.jsonl")]) == 0
    assert "header.jsonl: capture, rank none of 2\nno calls\n" in capsys.readouterr().out
