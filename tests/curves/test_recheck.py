"""``torchcoll algorithms --check``: what is launched again, what is said of it, and exit codes.

What it starts from is made by hand (forced cells need NCCL); the runs of the check are real
processes, the last one measures on gloo.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from error_form import error_line, error_text, expecting

from torchcoll import load
from torchcoll.cli import main
from torchcoll.machine import processes
from torchcoll.parts.curves.forced_check import recheck
from torchcoll.parts.experiments.axes import Cell

FAKE = Path(__file__).parents[1] / "fake_launch.py"
RING, TREE = "allreduce:ring", "allreduce:tree"
VARIABLES = {"auto": {}, "ring": {"NCCL_ALGO": RING}, "tree": {"NCCL_ALGO": TREE}}
CASE = {
    **{
        "collective": "all_reduce",
        "size_bytes": 1024,
        "dtype": "float32",
        "op": "sum",
        "root": None,
    },
    **{"in_place": True, "mode": "back-to-back", "backend": "nccl", "device": "cuda"},
}


def write_launch(path, cell, launch, time_ns, choice):
    header = {
        **{"record": "header", "schema": "torchcoll/2", "ranks": 2},
        "spec": {"labels": {"cell": cell, "run": str(launch)}},
        "environment": {
            "variables": VARIABLES[cell.split("-")[0]],
            "libraries": {"nccl": "nccl 2.28.3"},
        },
    }
    case = {
        **{"record": "case", "case": CASE, "status": "ok", "ranks": 2, "size_bytes": 1024},
        "time_ns": {"device": [[time_ns] * 3] * 2},
        "verification": {"checked": 512, "wrong": 0},
        "choices": [choice] if choice else [],
    }
    end = {"record": "end", "status": "complete", "exit_code": 0, "wall_s": 0.1}
    path.write_text("".join(json.dumps(one) + "\n" for one in (header, case, end)))


def write_matrix(*words, runs=2, choice=None, cells=None, command=None):
    """Ring takes 100 us, tree and AUTO 200 us."""
    folder = Path("D")
    folder.mkdir()
    cells = cells or [
        {"name": name, "axes": {}, "variables": {"NCCL_ALGO": None, **own}, "arguments": []}
        for name, own in VARIABLES.items()
    ]
    for cell in cells:
        for launch in range(1, runs + 1):
            name = cell["name"]
            time_ns = 100_000 * (1 if name.startswith("ring") else 2) + launch
            write_launch(folder / f"{name}-{launch}.jsonl", name, launch, time_ns, choice)
    command = command or [sys.executable, "-S", str(FAKE), *words]
    spec = {"command": command, "cells": cells, "runs": runs, "seed": 0}
    record = {"record": "matrix", "schema": "torchcoll-matrix/1", "spec": spec}
    (folder / "manifest.jsonl").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    return spec


@pytest.fixture(autouse=True)
def _here(in_tmp_path, monkeypatch):
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_PLUGIN"):
        monkeypatch.delenv(name, raising=False)


def checked(*options):
    return main(["algorithms", "D", *(options or ("--export-env",)), "--check"])


def folder():
    (path,) = Path("D").glob("check-*")
    return path


def launched():
    lines = (folder() / "manifest.jsonl").read_text().splitlines()[1:]
    return [(r["cell"], r["run"], r["status"]) for r in map(json.loads, lines)]


def test_the_exported_variables_are_launched_against_auto(capsys):
    write_matrix()
    assert checked() == 0
    out, err = capsys.readouterr()
    assert sorted(launched()) == [
        (name, launch, "ok") for name in ("auto", "exported") for launch in (1, 2)
    ]
    # Run 1 of both comes before run 2 of any.
    assert [launch for _, launch, _ in launched()] == [1, 1, 2, 2]
    variables = {
        name: load(folder() / f"{name}-1.jsonl").environment["variables"]
        for name in ("auto", "exported")
    }
    assert variables["exported"]["NCCL_ALGO"] == RING
    assert "NCCL_ALGO" not in variables["auto"]
    assert "[4/4]" in err
    lines = out.splitlines()
    assert [line for line in lines if line[0] != "#"] == [f"export NCCL_ALGO={RING}"]
    (row,) = (line for line in lines if line.startswith("#    8  "))
    assert row.split()[2:7] == ["1.000", "us", "1.000", "us", "1.000"]
    assert "what ran is not known: the runs kept no log of the library" in lines[-1]


def test_readers_of_the_matrix_do_not_see_the_check(capsys):
    write_matrix()
    assert main(["algorithms", "D", "--format", "json"]) == 0
    before = capsys.readouterr().out
    assert checked() == 0
    capsys.readouterr()
    assert main(["algorithms", "D", "--format", "json"]) == 0
    assert capsys.readouterr().out == before


def test_the_same_command_again_launches_what_is_missing(capsys):
    write_matrix()
    assert checked() == 0
    os.remove(folder() / "exported-2.jsonl")
    capsys.readouterr()
    assert checked() == 0
    done = "3 of 4 runs are done\n[4/4] NCCL_ALGO=allreduce:ring, run 2: ok"
    assert done in capsys.readouterr().err
    assert len(launched()) == 5


def test_interrupted(capsys, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    write_matrix("once=stop")
    assert checked() == 130
    out, err = capsys.readouterr()
    assert out.endswith(f"export NCCL_ALGO={RING}\n")
    assert err.endswith(f"torchcoll: {folder()}: the same command again goes on\n")
    assert checked() == 0
    assert sorted(status for _, _, status in launched()) == ["interrupted", *["ok"] * 4]


def test_launches_that_were_added_to_the_matrix_are_added_to_the_check():
    write_matrix(runs=1)
    assert checked() == 0
    record = {"record": "run", "cell": "ring", "run": 2, "file": None}
    with open("D/manifest.jsonl", "a") as manifest:
        print(json.dumps(record), file=manifest)
    assert checked() == 0
    assert [launch for _, launch, _ in launched()] == [1, 1, 2, 2]


def test_another_setting_has_another_folder():
    write_matrix()
    assert checked() == 0
    for path in Path("D").glob("ring-*.jsonl"):
        path.unlink()
    assert checked() == 0  # tree wins now
    assert len(list(Path("D").glob("check-*"))) == 2


def test_what_forces_in_the_shell_is_unset_for_auto(monkeypatch):
    write_matrix()
    monkeypatch.setenv("NCCL_ALGO", "allreduce:nvls")
    assert checked() == 0
    assert "NCCL_ALGO" not in load(folder() / "auto-1.jsonl").environment["variables"]


def test_a_setting_that_turns_out_slower_fails(capsys):
    write_matrix("slow=NCCL_ALGO", runs=3)
    assert checked() == 1
    out = capsys.readouterr().out
    (row,) = (line for line in out.splitlines() if line.startswith("#    8  "))
    # 2001 to 2003 ns against 1001 to 1003 ns: 1002 / 2002 is 0.5005.
    assert row.split()[6] == "0.500"
    assert "slower (p " in row
    assert " is 2.0x slower than auto (8, at least " in out


def test_another_algorithm_than_the_exported_one_fails(capsys):
    write_matrix("ran=TREE/LL")
    assert checked() == 1
    out = capsys.readouterr().out
    assert "# the library's log: as exported in 0 of 2 cases" in out
    assert "# NOT AS EXPORTED: all_reduce ran TREE/LL, not RING, at 8" in out


def test_the_exported_algorithm_ran(capsys):
    write_matrix("ran=RING/LL")
    assert checked() == 0
    assert "# the library's log: as exported in 2 of 2 cases\n" in capsys.readouterr().out


def test_a_launch_that_fails(capsys):
    write_matrix("once=refuse")
    assert checked() == 1
    out, err = capsys.readouterr()
    assert ": failed, " in err and error_text("sizes", "1KB", "a number") in err
    assert "# base: auto (" in out  # what there is is compared


def test_no_launch_that_works(capsys):
    write_matrix("refuse")
    assert checked() == 1
    err = capsys.readouterr().err
    assert error_text("check", "no result of auto", f"runs. See {folder()}/logs.") in err


LOGGED = {"algorithm": "RING", "protocol": "LL", "channels": 4}


def test_the_tuner_needs_a_plugin(capsys):
    write_matrix(choice=LOGGED)
    assert checked("--export-tuner", "t.csv") == 2
    assert (
        error_line(
            "check",
            "no NCCL_TUNER_PLUGIN in the environment",
            "the path of the plugin that reads the file. Set it and start the same again.",
        )
    ) in capsys.readouterr().err
    assert not list(Path("D").glob("check-*"))


def test_the_tuner_file_is_given_to_one_of_the_cells(capsys, monkeypatch):
    write_matrix("ran=RING/LL", choice=LOGGED)
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "/lib/libnccl-tuner-example.so")
    assert checked("--export-tuner", "t.csv") == 0
    assert checked("--export-tuner", "t.csv") == 0  # again: the same file is no mistake
    assert len(launched()) == 4
    variables = [
        load(folder() / f"{name}-1.jsonl").environment["variables"] for name in ("auto", "exported")
    ]
    assert variables == [
        {},
        {
            "NCCL_TUNER_CONFIG_FILE": str(Path("t.csv").resolve()),
            "NCCL_TUNER_PLUGIN": "/lib/libnccl-tuner-example.so",
        },
    ]
    out = capsys.readouterr().out
    assert "\nthe library's log: as exported in 2 of 2 cases\n" in out


def test_files_without_a_matrix(capsys):
    write_matrix()
    os.remove("D/manifest.jsonl")
    assert checked() == 2
    out, err = capsys.readouterr()
    assert out.endswith(
        "# check: torchcoll matrix --env NCCL_ALGO=,allreduce:ring --runs 6 -o check -- "
        "LAUNCHER ... -m MODULE ...\n"
    )
    assert err == error_line(
        "check",
        "D",
        "the folder of one torchcoll matrix. How these were launched is not known; the "
        "command printed checks it.\n",
    )


def test_a_tuner_file_from_files_without_a_matrix(capsys):
    write_matrix(choice=LOGGED)
    os.remove("D/manifest.jsonl")
    assert checked("--export-tuner", "t.csv") == 2
    out, err = capsys.readouterr()
    assert out.startswith(f"check: torchcoll matrix --env NCCL_TUNER_CONFIG_FILE={os.getcwd()}/t")
    assert " --env NCCL_TUNER_PLUGIN=,/path/of/libnccl-tuner-example.so --runs 6 " in out
    assert error_line("check", "D", "the folder of one torchcoll matrix") in err


def test_two_matrices(capsys):
    write_matrix()
    shutil.copytree("D", "E")
    assert main(["algorithms", "D", "E", "--export-env", "--check"]) == 2
    assert (
        error_text("check", "D E", "the folder of one torchcoll matrix") in capsys.readouterr().err
    )


def test_a_launcher_that_is_not_here(capsys):
    write_matrix(command=["no-such-launcher", "-m", "torchcoll.allreduce"])
    assert checked() == 2
    assert error_text("command", "no-such-launcher", "a program in PATH") in capsys.readouterr().err


def test_a_manifest_of_other_cells(capsys):
    spec = write_matrix()
    record = {"record": "matrix", "schema": "torchcoll-matrix/1", "spec": {**spec, "cells": []}}
    Path("D/manifest.jsonl").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    assert checked() == 3
    assert expecting("one that has the cells of its files") in capsys.readouterr().err
    del record["spec"]["command"]
    Path("D/manifest.jsonl").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    assert checked() == 3
    assert error_text("manifest", "D/manifest.jsonl", "one that torch") in capsys.readouterr().err


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_check_is_for_people(capsys, format):
    write_matrix()
    assert checked("--export-env", "--format", format) == 2
    assert error_text("format", format, "one of table, markdown") in capsys.readouterr().err


def planned(cells, command, learned, values=None):
    spec = {"command": command, "cells": cells, "runs": 3, "seed": 7}
    values = values or {"NCCL_ALGO": RING}
    return recheck(Path("D"), spec, values, {"NCCL_ALGO"}, learned, ["all_reduce"], lambda v: {**v})


def test_axes_and_what_all_cells_set_stay():
    cells = [
        {
            "name": f"{name}-nproc{ranks}",
            "axes": {"nproc": ranks},
            "variables": {"NCCL_ALGO": value, "NCCL_DEBUG": "WARN"},
            "arguments": [],
        }
        for ranks in ("2", "4", "8")
        for name, value in (("auto", None), ("ring", RING))
    ]
    command = [sys.executable, "-m", "torchcoll.allreduce", "--label", "n={nproc}"]
    again = planned(cells, command, ["auto-nproc2", "ring-nproc2", "ring-nproc4"])
    kept = {"NCCL_DEBUG": "WARN"}
    assert again.plan.cells == [
        Cell("auto-nproc2", {"nproc": "2"}, {"NCCL_ALGO": None, **kept}),
        Cell("auto-nproc4", {"nproc": "4"}, {"NCCL_ALGO": None, **kept}),
        Cell("exported-nproc2", {"nproc": "2"}, {"NCCL_ALGO": RING, **kept}),
        Cell("exported-nproc4", {"nproc": "4"}, {"NCCL_ALGO": RING, **kept}),
    ]
    assert (again.plan.runs, again.plan.seed) == (3, 7)
    assert again.by == ()  # the ranks tell these apart


def test_other_axes_and_variables_are_kept_apart_in_the_comparison():
    cells = [
        {
            "name": f"{name}-{mode}-{threads}",
            "axes": {"mode": mode},
            "variables": {"NCCL_ALGO": value, "OMP_NUM_THREADS": threads},
        }
        for mode in ("a", "b")
        for threads in ("1", "2")
        for name, value in (("auto", None), ("ring", RING))
    ]
    command = [sys.executable, "-m", "torchcoll.allreduce", "--label", "n={mode}"]
    again = planned(cells, command, [cell["name"] for cell in cells])
    assert [cell.name for cell in again.plan.cells[4:]] == [
        f"exported-mode_{mode}-OMP_NUM_THREADS{threads}"
        for mode in ("a", "b")
        for threads in ("1", "2")
    ]
    assert again.by == ("label=mode", "OMP_NUM_THREADS")


def test_a_suite_is_narrowed_to_what_the_setting_is_for():
    cells = [
        {"name": "auto", "variables": {}, "arguments": ["--collectives", "all_reduce,all_gather"]},
        {"name": "tree", "variables": {}, "arguments": ["--collectives", "all_reduce"]},
    ]
    again = planned(cells, [sys.executable, "-m", "torchcoll.suite"], ["auto", "tree"])
    assert [(c.name, c.arguments) for c in again.plan.cells] == [
        ("auto", ("--collectives", "all_reduce")),
        ("exported", ("--collectives", "all_reduce")),
    ]


def test_launches_that_measure(python, capfd, monkeypatch):
    """gloo does not read NCCL_ALGO: there is no difference to be found, and none is claimed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    words = ["--sizes", "1K", "-n", "5", "--cold", "1", "--backend", "gloo"]
    write_matrix(command=[python, "-m", "torchcoll.allreduce", *words], runs=1)
    code, (out, err) = checked(), capfd.readouterr()
    assert code == 0, err
    runs = [load(folder() / f"{name}-1.jsonl") for name in ("auto", "exported")]
    assert [run.complete for run in runs] == [True, True]
    assert [run.environment["variables"].get("NCCL_ALGO") for run in runs] == [None, RING]
    assert "\n#   NCCL_ALGO: unset -> allreduce:ring\n" in out
    (row,) = (line for line in out.splitlines() if line.startswith("#   1K  "))
    assert "inconclusive (1 run a side)" in row  # a footnote may follow
