"""``torchcoll cold`` and ``torchcoll scaling``: what they print, and one line for each error."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from error_form import error_text
from made_runs import measured
from made_starts import MS, benchmark, start

import torchcoll
from torchcoll.cli import main
from torchcoll.core.file import save
from torchcoll.core.result import Choice
from torchcoll.questions.startup.cold import cold
from torchcoll.questions.startup.show import cold_grids
from torchcoll.report.destination import Destination
from torchcoll.report.grid import print_grids

NODES = (1, 2, 4, 8, 16, 32, 64)


@pytest.fixture
def seven_jobs(tmp_path):
    """The oneCCL scaling study's experiment: 12 ranks a node, each job two runs.

    2nd call = 1.15 x the 1st; the 3rd is 29000 to 8000 times faster than the 2nd; the 2nd run of
    a job takes as long as the 1st, 2 % more or less.
    """
    for place, nodes in enumerate(NODES):
        faster = 29000 - 3500 * place
        text = ""
        for launch in (1, 2):
            first = 500_000.0 * (place + 2) * (1.02 if (place + launch) % 2 else 1.0)
            calls = [first, 1.15 * first, 1.15 * first / faster, 1.15 * first / faster]
            text += "+ mpiexec ... benchmark -i 1 -w 0\n" + benchmark(calls, 12 * nodes)
        (tmp_path / f"pbs-script.o898748{place}").write_text(text)
    return tmp_path


def lines(capsys):
    out = capsys.readouterr().out
    return [" ".join(line.split()) for line in out.splitlines()]


def test_the_statements_of_the_scaling_study(seven_jobs, capsys):
    assert main(["cold", str(seven_jobs)]) == 0
    shown = lines(capsys)
    # On 768 ranks: two runs, the second 0.98 times as long as the first: 4.08 s and 4.00 s.
    assert shown[:3] == [
        "on 768 ranks the first call takes 4.04 s (4.0x the 1.01 s on 12) and the second 4.65 s; "
        "the third takes 581 us",
        "",
        "all_reduce, 4 bytes, float32, sum, ccl",
    ]
    (calls,) = (line for line in shown if line.startswith("1st, 2nd, 3rd: "))
    assert calls.startswith("1st, 2nd, 3rd: the first rows of the benchmark, each one call of")
    assert "(4, 8, 16, ... bytes); t_max" in calls
    assert "pbs-script.o8987480 #1 1 12 1.020 s 1.173 s 40.45 us" in shown
    assert "pbs-script.o8987480 #2 2 12 1.000 s 1.150 s 39.66 us" in shown
    # By number of ranks: two runs, their geometric mean.
    assert any(line.startswith("12 2 1.010 s 1.00 s to 1.02 s 1.161 s") for line in shown)
    second = (
        "the 2nd call takes 1.15 times the 1st and 29,000 (12 ranks) to 8,000 (768 ranks) times"
    )
    assert f"{second} the 3rd" in shown
    (whole,) = (line for line in shown if line.startswith("the 2nd run of a job takes 0.9"))
    assert whole.endswith(" in 7 jobs)")
    assert "14 of 14 runs: import: the output of 2 runs, one after the other" in shown


def test_their_growth_is_told_by_scaling(seven_jobs, capsys):
    assert main(["scaling", str(seven_jobs), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (fit,) = found["fits"]
    # 0.5 s more each time the ranks double.
    assert (fit["figure"], fit["result"]) == ("1st call of the run", "log2 n")
    assert fit["laws"][0]["slope_ns"] == pytest.approx(0.505e9, rel=0.02)
    assert [row["launch_first_call_ns"] for row in found["rows"][:1]] == [
        pytest.approx(1.01e9, rel=1e-3)
    ]


def saved(tmp_path):
    """Two jobs of two runs, and one run of four ranks, as files."""
    more = measured(1000, size_bytes=4096, cold_ns=[[60_000, 1000, 900]] * 2, ordinal=20)
    more.choices = [Choice("TREE", "LL")]
    phases = {
        "import_torch": [800 * MS, 900 * MS],
        "communicator": [10 * MS, 30 * MS],
        "nccl_init": [9 * MS, 20 * MS],
    }
    for job in ("71", "72"):
        for k, ms in enumerate((40, 42) if job == "71" else (44, 43)):
            launch = start([ms, 4, 2], 2, 1000, more, job=job, utc=f"{job}:{k}", phases=phases)
            launch.header["spec"]["labels"] = {"cell": "auto", "run": str(k + 1)}
            save(launch, tmp_path / f"auto-{job}-{k + 1}.jsonl")
    save(start([90, 4, 2], 4, job="73", utc="73:0", end=None), tmp_path / "four.jsonl")
    return tmp_path


def test_a_folder_of_launches(tmp_path, capsys):
    assert main(["cold", str(saved(tmp_path))]) == 0
    shown = lines(capsys)
    # 40 ms on rank 1, 20 ms on the other; the connect took 30 ms at most.
    row = "auto-71-1.jsonl 71 1 auto 2 1 40.00 ms 4.000 ms 2.000 ms 1.000 us 40000"
    # Connected beside a steady call of 1 us: 70 ms less that.
    assert f"{row} 70.00 ms 70.00 ms 1 20.00 ms" in shown
    # 72 / 70 and 73 / 74: about as long, so the four runs are one line.
    assert "the 2nd run of a job takes 1.007 times the 1st (0.986 to 1.029 in 2 jobs)" in shown
    assert any(line.startswith("2 1 4 42.22 ms 40.0 ms to 44.0 ms") for line in shown)
    assert "import torch 900 ms 900 ms 1 (+100 ms) auto-71-1.jsonl" in shown
    assert "communicator 30.0 ms 30.0 ms 1 (+20.0 ms) auto-71-1.jsonl" in shown
    assert f"{tmp_path}/four.jsonl: truncated: the file has no end record" in shown
    assert "; import torch takes most of the start: 900 ms" in shown[0]
    header, note = (
        next(n for n, line in enumerate(shown) if line.startswith(begin))
        for begin in ("set-up phase", "(+): longer than")
    )
    assert header < note
    late = "2 4K 20 TREE/LL 60.00 us 1.000 us 60.000 59.00 us 4 of 4 first of TREE/LL"
    assert late in shown


def test_long_names_are_numbers_on_a_narrow_terminal(tmp_path):
    """40 of 80 columns for a name would leave three tables for one."""
    for name in (
        "20261122T181500Z-all_reduce-gloo-ccl-2ranks",
        "20261122T191500Z-all_reduce-2ranks",
    ):
        save(start([40, 4, 2], 2, 1000), tmp_path / f"{name}.jsonl")
    out = io.StringIO()
    print_grids([("", cold_grids(cold(str(tmp_path))))], "table", Destination(out, 80))
    text = out.getvalue()
    assert re.search(r"\n#1 +2 .*40\.00 ms +4\.000 ms", text)
    assert "\n#1: 20261122T181500Z-all_reduce-gloo-ccl-2ranks.jsonl\n#2: 20261122T191500Z" in text
    wide = io.StringIO()
    print_grids([("", cold_grids(cold(str(tmp_path))))], "table", Destination(wide, 200))
    assert "#1" not in wide.getvalue() and "2ranks.jsonl      2  " in wide.getvalue()


def test_json_and_csv_have_base_units(tmp_path, capsys):
    folder = str(saved(tmp_path))
    assert main(["cold", folder, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "torchcoll-cold/1"
    row = found["rows"][0]
    names = ("job", "place_in_job", "first_call_ns", "first_result_ns", "second_over_first")
    assert [row[name] for name in names] == ["71", 1, 40 * MS, 70 * MS, 0.1]
    assert row["connect_ns"] == 70 * MS - 1000
    assert row["communicator_slowest_rank"] == 1
    assert [one["in_job"] for one in found["by_ranks"]] == ["", ""]
    assert found["by_ranks"][0]["again"] == [pytest.approx(72 / 70), pytest.approx(73 / 74)]
    assert found["late"][0]["extra_ns"] == pytest.approx(59_000)
    assert main(["cold", folder, "--format", "csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [int(line["first_call_ns"]) // MS for line in table] == [40, 42, 44, 43, 90]


def test_show_prints_what_cold_returns(tmp_path):
    out = io.StringIO()
    torchcoll.show(torchcoll.cold(saved(tmp_path)), format="markdown", file=out)
    expected = "- on 4 ranks the first call takes 90.0 ms (2.1x the 42.2 ms on 2), 90,000 times"
    assert out.getvalue().startswith(expected)
    assert "\n\n- all_reduce, 1K, float32, sum, gloo\n- time = max over ranks" in out.getvalue()
    assert "| run | job |" in out.getvalue()


def test_a_scaling_table(tmp_path, capsys):
    for ranks in (2, 4, 8):
        for k, factor in enumerate((0.999, 1.001)):
            launch = start([ranks, 1, 1], ranks, round(10_000 * ranks * factor))
            save(launch, tmp_path / f"{ranks}-{k}.jsonl")
    assert main(["scaling", str(tmp_path), "--sizes", "1K"]) == 0
    shown = lines(capsys)
    # 1024 B in 20 us on 2 ranks are 0.0512 GB/s; on 8, 1024 x 1.75 / 80 us.
    assert "1K 2 1 2 20.00 us 20.0 us to 20.0 us 0.051 2.000 ms" in shown
    assert "1K 8 1 2 80.00 us 79.9 us to 80.1 us 0.022 8.000 ms" in shown
    assert "start of the run: all_reduce, 1K, float32, sum, gloo" in shown
    (time,) = (line for line in shown if line.startswith("1K time 2"))
    assert time.startswith("1K time 2 to 8 n 4.000 (3.9")


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["cold", "EMPTY"], "a folder with result files", 3),
        (["cold", "DIR", "--format", "xml"], error_text("format", "xml", "one of table"), 2),
        (["scaling", "DIR", "--sizes", "1KB"], error_text("sizes", "1KB"), 2),
        (["scaling", "DIR", "--sizes", "3K"], error_text("sizes", "3K", "sizes that were"), 2),
        (["scaling", "DIR", "--format", "xml"], error_text("format", "xml", "one of table"), 2),
    ],
)
def test_bad_input_is_one_line(arguments, text, code, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    save(start([3, 2, 1]), tmp_path / "full" / "a.jsonl")
    places = {"DIR": str(tmp_path / "full"), "EMPTY": str(tmp_path / "empty")}
    assert main([places.get(word, word) for word in arguments]) == code
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1


def test_means_are_no_first_calls(tmp_path, capsys):
    path = tmp_path / "bench.txt"
    path.write_text(benchmark([900.0, 30.0], 4, iters=20, warmup=5))
    assert main(["cold", str(path)]) == 3
    assert error_text("first calls", "none in 1 file", "runs with cold") in capsys.readouterr().err


def test_the_second_call_is_said_and_each_run_is_listed_once(capsys):
    """One run on each number of ranks and place in a job: a table by ranks would repeat it."""
    folder = Path(__file__).parents[2] / "results" / "oneccl-cold-scaling"
    assert main(["cold", str(folder)]) == 0
    shown = lines(capsys)
    assert shown[0] == (
        "on 768 ranks the first call takes 2.68 s (1.34x the 2.00 s on 12) and the second 3.08 s; "
        "the third takes 385 us"
    )
    assert sum(" 768 2.680 s 3.082 s" in line for line in shown) == 1
    assert [line for line in shown if line.startswith("the 2nd ")] == [
        "the 2nd call takes 1.15 times the 1st and 29,000 (12 ranks) to 8,000 (768 ranks) times "
        "the 3rd",
        "the 2nd run of a job takes 1.010 times the 1st (1.010 in 7 jobs)",
    ]


def test_both_tables_leave_out_the_same_columns(tmp_path):
    """A table of the runs and one of the means over them, on a terminal of 80 columns."""
    for job in ("71", "72"):
        for number in (1, 2):
            launch = start([40 + number, 4, 2], 2, 1000, job=job, utc=f"{job}:{number}")
            save(launch, tmp_path / f"{job}-{number}.jsonl")
    out = io.StringIO()
    print_grids([("", cold_grids(cold(str(tmp_path))))], "table", Destination(out, 80))
    hidden = re.findall(r"not shown in 80 columns: (.*?) \(use", " ".join(out.getvalue().split()))
    only_here = {"slowest rank", "excess over other ranks", "range over runs"}
    runs, means = ({*names.split(", ")} - only_here for names in hidden)
    assert runs == means == {"hosts", "library setup"}


def test_three_slow_calls_are_three_in_the_sentence(tmp_path, capsys):
    """4.4, 5.1 and 4.5 ms, then 0.25 ms: the middle one of three is 18 times a steady call."""
    save(start([4.4, 5.1, 4.5], 2, 250_000), tmp_path / "three.jsonl")
    assert main(["cold", str(tmp_path)]) == 0
    expected = (
        "on 2 ranks the first 3 calls take 4.40 ms to 5.10 ms, 18 times a steady call (250 us)"
    )
    assert lines(capsys)[0].startswith(expected)
