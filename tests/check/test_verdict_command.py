"""``torchcoll check``: what it is measured by, gates, JUnit and health events."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from error_form import error_line, error_text
from judged import GIB, case_of, launch
from made_runs import COMPLETE

import torchcoll
from torchcoll.cli import main
from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.core.result import CaseResult, Run, Verification


@pytest.fixture
def path(tmp_path):
    save(launch(case_of(300)), tmp_path / "a.jsonl")
    return str(tmp_path / "a.jsonl")


def first(capsys):
    return capsys.readouterr().out.splitlines()[0]


def test_fabric(path, capsys):
    assert main(["check", path, "--fabric", "nvswitch-h200"]) == 0
    assert first(capsys).startswith("WARN 300 GB/s busbw at 1G, 80.9 % of the ring limit of nvswi")
    assert main(["check", path, "--fabric", "nvswitch-h200", "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("- WARN 300 GB/s busbw at 1G, 80.9 % of the ring limit of nv")
    assert main(["check", path, "--fabric", "nvswitch-h200", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"]["word"], document["verdict"]["fabric"]) == ("WARN", "nvswitch-h200")
    assert list(document) == ["schema", "run", "verdict", "answer"]
    assert document["answer"]["level"] == "doubt"
    assert document["answer"]["headline"].startswith("WARN 300 GB/s busbw at 1G, 80.9 %")


def test_ranks_that_every_busbw_contradicts(tmp_path, capsys):
    """busbw / algbw is 1.75, that of all_reduce on 8 ranks."""
    sizes = [1 << power for power in (26, 28, 30)]
    rows = [f"{n} {n // 4} float sum -1 {n / 2e5:.2f} 200.00 350.00 0" for n in sizes]
    log = tmp_path / "nccl.log"
    heading = "# size count type redop root time algbw busbw #wrong"
    log.write_text("\n".join(["# Collective test starting: all_reduce_perf", heading, *rows, ""]))
    assert main(["check", str(log), "--ranks", "8"]) == 0
    for words in (["--ranks", "4"], ["--ranks", "4", "--gate"]):
        capsys.readouterr()
        assert main(["check", str(log), *words]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(error_line("ranks", "4", "8, as every busbw of nccl.log shows"))


def test_fabrics_that_cannot_be(path, capsys):
    for code, words, message in (
        (2, ["--fabric", "x"], error_text("fabric", "x", "one of ethernet, ")),
        (
            2,
            ["--fabric", "ib-ndr:8"],
            error_text("fabric", "ib-ndr:8 for a run on 1 host", "a fabric "),
        ),
        (
            2,
            ["--baseline", path, "--fabric", "ib-ndr:8"],
            error_text("baseline", "a run with a fabric"),
        ),
    ):
        assert main(["check", path, *words]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"torchcoll: error: {message}") and err.count("\n") == 1


def test_against(path, tmp_path, capsys):
    save(launch(case_of(375)), tmp_path / "base.jsonl")
    assert main(["check", path, "--baseline", str(tmp_path / "base.jsonl")]) == 0
    assert first(capsys).startswith(
        "WARN 80.0 % of the speed of base.jsonl in the median of 1 case in"
    )
    save(launch(case_of(375), device="NVIDIA H100"), tmp_path / "h100.jsonl")
    assert main(["check", path, "--baseline", str(tmp_path / "h100.jsonl")]) == 2
    assert capsys.readouterr().err == (
        error_line("baseline", "devices NVIDIA H100", "NVIDIA H200, as this run has\n")
    )
    assert main(["check", path, "--baseline", str(tmp_path / "none.jsonl")]) == 3


def test_against_a_file_of_before(path, tmp_path, capsys):
    """It does not tell how buffers are reused, which had one way."""
    lines = [json.loads(line) for line in Path(path).read_bytes().splitlines()]
    for line in lines:
        del line["line"], line["crc"]
        if "case" in line:
            del line["case"]["buffer_reuse"]
    old = tmp_path / "old.jsonl"
    old.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["check", path, "--baseline", str(old)]) == 0
    assert first(capsys).startswith("PASS 100.0 % of the speed of old.jsonl")


def test_against_a_file_of_several_runs(path, tmp_path, capsys):
    table = "Collective,Size,Time (us),Ranks\nall_reduce,1M,10,2\nall_reduce,1M,20,4\n"
    (tmp_path / "two.csv").write_text(table)
    assert main(["check", path, "--baseline", str(tmp_path / "two.csv")]) == 2
    assert capsys.readouterr().err == (
        error_line("baseline", f"2 runs in {tmp_path / 'two.csv'}", "a file of one run\n")
    )


def test_gate(path, tmp_path, capsys):
    assert main(["check", path, "--gate"]) == 2  # nothing was judged
    assert main(["check", path, "--gate", "--fabric", "nvswitch-h200"]) == 0  # a warning
    save(launch(case_of(200)), tmp_path / "slow.jsonl")
    slow = str(tmp_path / "slow.jsonl")
    assert main(["check", slow, "--gate", "--fabric", "nvswitch-h200"]) == 1
    fabric = ["--fabric", "nvswitch-h200"]
    assert main(["check", path, slow, "--gate", *fabric, "--format", "json"]) == 1
    assert main(["check", slow, "--fabric", "nvswitch-h200"]) == 0
    capsys.readouterr()


def test_several_runs_are_one_sentence_and_a_verdict_each(path, tmp_path, capsys):
    save(launch(case_of(200)), tmp_path / "slow.jsonl")
    assert main(["check", path, str(tmp_path / "slow.jsonl"), "--fabric", "nvswitch-h200"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # 200 GB/s of the 370.8 of 18 links, each 20.6: 53.9 %.
    assert lines[0].startswith("2 runs: 1 FAIL, 1 WARN: slow.jsonl: 200 GB/s")
    assert lines[lines.index(path) + 3].startswith("WARN 300 GB/s busbw at 1G, 80.9 %")


def test_a_folder_is_its_runs(path, tmp_path, capsys):
    assert main(["check", str(tmp_path), "--fabric", "nvswitch-h200"]) == 0
    assert first(capsys).startswith("WARN 300 GB/s")


EVIL = '\x1b[2J\x07<&">\ud800'


def test_junit(tmp_path, capsys):
    run = launch(
        case_of(365),
        CaseResult(case_of(1, size_bytes=8).case, "unsupported", 8, EVIL),
        CaseResult(case_of(1, size_bytes=16).case, "oom", 8, EVIL),
        case_of(365, size_bytes=2 * GIB, status="wrong", verification=Verification(8, 3)),
        nvlinks=18,
        to_switch=True,
    )
    save(run, tmp_path / "a<b.jsonl")
    out = tmp_path / "junit.xml"
    assert main(["check", str(tmp_path / "a<b.jsonl"), "--junit", str(out), "--gate"]) == 1
    (suite,) = ElementTree.parse(out).getroot()
    assert suite.tag == "testsuite" and suite.get("name") == str(tmp_path / "a<b.jsonl")
    counts = [suite.get(name) for name in ("tests", "failures", "skipped")]
    assert counts == ["5", "3", "1"]
    stated = [(t.get("name"), [(c.tag, c.get("message")) for c in t]) for t in suite]
    assert [name for name, _ in stated] == [
        "verdict",
        *(
            f"collective=all_reduce size_bytes={size} dtype=float32 op=sum in_place=true "
            "backend=nccl"
            for size in (GIB, 8, 16, 2 * GIB)
        ),
    ]
    # Seconds of a call: 1 GiB x 7/4 at 365 GB/s of busbw. What did not run has none.
    assert [t.get("time") for t in suite] == [
        None,
        "0.005148077",
        None,
        None,
        "0.010296154",
    ]
    assert [child[0][0] if child else "" for _, child in stated] == [
        "failure",
        "",
        "skipped",
        "failure",
        "failure",
    ]
    assert stated[0][1][0][1].startswith(
        "FAIL 1 of 4 cases wrong: all_reduce 2G (3 of 8 elements); 1 of 4 cases"
    )
    assert stated[2][1][0][1] == 'unsupported:  [2J <&"> '
    assert stated[4][1][0][1] == "wrong: wrong"
    capsys.readouterr()


def test_a_warning_is_in_junit_although_the_test_passed(tmp_path):
    save(launch(case_of(365), nvlinks=18, to_switch=True), tmp_path / "a.jsonl")
    out = tmp_path / "junit.xml"
    assert main(["check", str(tmp_path / "a.jsonl"), "--junit", str(out), "--gate"]) == 0
    (suite,) = ElementTree.parse(out).getroot()
    verdict, case = suite
    assert suite.get("failures") == "0"
    assert verdict.findtext("system-out").startswith("WARN 365 GB/s busbw at 1G, 77 % of NVLS")
    assert len(case) == 0


def test_junit_names_tell_cases_apart(tmp_path):
    """Build servers know a test again by its name: two of one name are one to them."""
    cases = [
        case_of(300, in_place=True),
        case_of(300, in_place=False),
        case_of(300, in_place=True, coalesce=4),
        case_of(300, in_place=True, backend="gloo"),
    ]
    run = launch(*cases, cases[0])
    save(run, tmp_path / "a.jsonl")
    out = tmp_path / "junit.xml"
    assert main(["check", str(tmp_path / "a.jsonl"), "--junit", str(out)]) == 0
    names = [test.get("name") for test in ElementTree.parse(out).getroot()[0]]
    assert len(set(names)) == 6
    assert sum("in_place=false" in name for name in names) == 1
    assert names[-1] == f"{names[1]} repeat=2"


def test_a_gate_of_which_one_run_fails_and_another_has_no_reference(path, tmp_path, capsys):
    save(launch(case_of(200)), tmp_path / "slow.jsonl")
    save(launch(case_of(200, backend="gloo")), tmp_path / "gloo.jsonl")
    files = [str(tmp_path / "slow.jsonl"), str(tmp_path / "gloo.jsonl")]
    assert main(["check", *files, "--gate", "--fabric", "nvswitch-h200"]) == 1
    assert capsys.readouterr().err.startswith(
        error_text("torchcoll: warning: gate", "1 of 2 runs without")
    )


def test_a_warning_of_the_machine_is_no_reference(tmp_path, capsys):
    """Nothing was measured by anything, whatever else there is to say of the run."""
    busy = {"kind": "machine", "message": "node1: other processes used 1.2 of 2 cores"}
    path, health = str(tmp_path / "busy.jsonl"), tmp_path / "health.jsonl"
    save(launch(case_of(3, backend="gloo", device="cpu"), events=[busy]), path)
    assert main(["check", path, "--gate", "--health", str(health)]) == 2
    stated = capsys.readouterr()
    assert error_text("gate", "1 of 1 run without a reference") in stated.err
    text = " ".join(stated.out.split())
    assert "Next: measure again without what disturbed it, then torchcoll check FILE" in text
    assert "--baseline EARLIER-RUN" in text
    assert json.loads(health.read_text())["healthy"] is None


def test_a_gate_that_judged_nothing_says_so(path, tmp_path, capsys):
    out = tmp_path / "junit.xml"
    assert main(["check", path, "--gate", "--junit", str(out)]) == 2
    stated = capsys.readouterr()
    assert stated.err == (
        error_line(
            "gate",
            "1 of 1 run without a reference",
            "runs that can be judged. State what they are measured by: --fabric or "
            "--baseline RUN.\n",
        )
    )
    assert "NO REFERENCE" in stated.out  # the table is shown all the same
    (suite,) = ElementTree.parse(out).getroot()
    assert suite.get("skipped") == "1"
    assert [child.tag for child in suite[0]] == ["skipped"]


def test_health(path, tmp_path, capsys):
    run = launch(
        case_of(365),
        hosts=2,
        header={"start_utc": "2026-11-20T12:00:00+00:00", "job_id": "77"},
        events=[
            {"kind": "suspect", "message": "node1 is slow", "host": "node1"},
            {"kind": "suspect", "message": "node1 again", "host": "node1"},
        ],
    )
    save(run, tmp_path / "sick.jsonl")
    out = tmp_path / "health.jsonl"
    assert main(["check", path, str(tmp_path / "sick.jsonl"), "--health", str(out)]) == 0
    well, sick = map(json.loads, out.read_text().splitlines())
    assert well["healthy"] is None and well["verdict"] == "NO REFERENCE"  # nobody can tell
    assert well["hosts"] == ["node0"] and well["suspects"] == [] and well["job"] is None
    assert sick == {
        "schema": "torchcoll-health/1",
        "healthy": False,
        "verdict": "FAIL",
        "message": "FAIL node1 is slow; node1 again",
        "causes": [],
        "hosts": ["node0", "node1"],
        "suspects": ["node1"],
        "start_utc": "2026-11-20T12:00:00+00:00",
        "job": "77",
        "file": str(tmp_path / "sick.jsonl"),
    }
    capsys.readouterr()


def test_causes_of_a_failure_are_in_the_health_event(tmp_path, capsys):
    save(launch(case_of(900)), tmp_path / "a.jsonl")
    out = tmp_path / "health.jsonl"
    path = str(tmp_path / "a.jsonl")
    assert main(["check", path, "--health", str(out)]) == 0
    # 450 GB/s of an H200's links, reduced by its switches: 787.5 on 8 ranks.
    cause = "busbw beyond all links of one H200 (450 GB/s in one direction): likely the time of"
    (stated,) = json.loads(out.read_text())["causes"]
    assert stated.startswith(cause)
    assert first(capsys) == (
        "FAIL 1 of 1 case implausible: busbw up to 900 GB/s, 1.39 times the 649 GB/s limit of the "
        "links of one H200"
    )
    assert main(["show", path, "--columns", "size_bytes,busbw_gbps"]) == 0
    assert f"\nimplausible: {cause}" in capsys.readouterr().out


def test_pairs_are_shown_as_pairs(path, tmp_path, capsys):
    results = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        asked = Case(
            "sendrecv", 1 << 20, "float32", None, None, False, "synchronized", "gloo", "cpu"
        )
        asked = Case.from_json(asked.to_json() | {"group": f"pair/{a}-{b}"})
        times = {"host": [[100_000] * 3] * 2}
        results.append(
            CaseResult(asked, "ok", 2, size_bytes=1 << 20, time_ns=times, members=[a, b])
        )
    members = [{"rank": rank, "host": f"n{rank}"} for rank in range(3)]
    run = Run({"ranks": 3, "run_id": "p"}, members, results=results, end=COMPLETE)
    save(run, tmp_path / "pairs.jsonl")
    pairs = str(tmp_path / "pairs.jsonl")
    assert main(["show", pairs, path]) == 0
    text = capsys.readouterr().out
    # 1 MiB in 0.1 ms.
    assert "\n   1  10.486          10.486\n" in text and "pair/0-1" not in text
    # One answer of both, then each file by itself.
    assert text.startswith("2 runs: ") and f"\n{path}\n" in text
    found = "no rank or link is slow (a loss of 20 % of speed would have been found)\n"
    assert "NO REFERENCE for gloo on cpu" in text.partition(found)[2]
    # A view that was chosen is of the rows.
    assert main(["show", pairs, "--columns", "group,size_bytes"]) == 0
    assert "pair/0-1" in capsys.readouterr().out


def test_a_file_that_cannot_be_written(path, tmp_path, capsys):
    for what in ("junit", "health"):
        assert main(["check", path, f"--{what}", str(tmp_path)]) == 2
        assert capsys.readouterr().err == (
            error_line(what, tmp_path, "a file that can be written (Is a directory)\n")
        )


def test_from_python(path):
    verdict = torchcoll.check(path, fabric="nvswitch-h200")
    assert verdict.word == "WARN"
    assert verdict.line.startswith("WARN 300 GB/s busbw at 1G, 80.9 % of the ring limit of nv")
    assert repr(verdict).startswith("<WARN 300 GB/s busbw at 1G")
    same = torchcoll.check(launch(case_of(300)), baseline=path)
    assert same.line.startswith("PASS 100.0 % of the speed of a.jsonl")


@pytest.mark.parametrize("source", [3, None, ["a.jsonl"]])
def test_what_is_no_run(source):
    text = error_text("^source", type(source).__name__, "a Run or its file")
    with pytest.raises(UsageError, match=text):
        torchcoll.check(source)
