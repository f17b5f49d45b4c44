"""Views of ``show`` beside the table: markdown, csv, json, per rank, calls, pivot."""

from __future__ import annotations

import csv
import io
import json

from handmade import case, not_run, result, run

# The names of DESIGN section 8, in its order.
VALUES = {
    "collective": "all_reduce",
    "backend": "gloo",
    "library": "gloo of torch 2.13.0",
    "device": "cpu",
    "ranks": 8,
    "dtype": "float32",
    "op": "sum",
    "root": None,
    "in_place": True,
    "group": None,
    "buffers": "default",
    "asynchronous": False,
    "coalesce": 1,
    "cadence": "isolated",
    "clock": "host",
    "nbytes_requested": 67108864,
    "nbytes": 67108864,
    "count": 16777216,
    "nbytes_in": 67108864,
    "nbytes_out": 67108864,
    "first_call_ns": 5000000,
    "second_call_ns": 1100000,
    "median_ns": 1000000,
    "low_ns": 910000,
    "high_ns": 1090000,
    "p99_ns": None,
    "calls": 21,
    "algbw_gbps": 67.108864,
    "busbw_gbps": 117.440512,
    "verified": "correct",
    "status": "ok",
    "reason": "",
}
NAMES = list(VALUES)


def test_json_has_the_names_of_the_design_and_base_units(shown):
    document = json.loads(shown(run(result()), format="json"))
    assert list(document) == ["schema", "run", "rows"]
    assert document["schema"] == "torchcoll-rows/1"
    assert document["run"]["status"] == "complete"
    assert document["run"]["ranks"] == 8
    (row,) = document["rows"]
    assert list(row) == NAMES
    assert row == VALUES


def test_json_of_several_runs_and_of_a_truncated_one(shown):
    cut = run(not_run("oom"), end=None, problems=["truncated: the file has no end record"])
    first, second = json.loads(shown(run(result()), cut, format="json"))
    assert first["rows"][0]["median_ns"] == 1000000
    assert second["run"]["status"] == "truncated"
    assert second["run"]["problems"] == ["truncated: the file has no end record"]
    assert second["rows"][0]["median_ns"] is None


def test_json_of_chosen_columns_and_percentiles(shown):
    text = shown(run(result()), format="json", columns="nbytes,median_ns", percentiles="0,50,99.9")
    # The last of 21 calls is 1.10 ms, the one before 1.09 ms: 99.9 % is 0.98 of the way.
    (row,) = json.loads(text)["rows"]
    assert row.pop("p99.9_ns") == 1099800
    assert row == {"nbytes": 67108864, "median_ns": 1000000, "p0_ns": 900000, "p50_ns": 1000000}


def test_csv_has_every_field_and_nothing_for_unknown(shown):
    (row,) = csv.DictReader(io.StringIO(shown(run(result()), format="csv")))
    assert list(row) == NAMES
    numbers = {"median_ns": "1000000.0", "low_ns": "910000.0", "high_ns": "1090000.0"}
    expected = {k: "" if v is None else str(v) for k, v in VALUES.items()} | numbers
    assert row == expected


def test_csv_of_several_files_names_them(shown):
    one, two = run(result()), run(not_run("oom", "no, none"), header={"run_id": "r2"})
    rows = list(csv.DictReader(io.StringIO(shown(one, two, format="csv"))))
    assert [row["file"] for row in rows] == ["r1", "r2"]
    assert rows[1]["reason"] == "no, none"


def test_markdown(shown):
    text = shown(run(result(), not_run("unsupported", "a | b")), format="markdown")
    assert text.startswith("- torchcoll 0.1.0: all_reduce, float32, sum, in place\n- backend: ")
    assert text.split("\n\n", 1)[1] == (
        "| size | first call | median | low p5 | high p95 | calls | algbw GB/s | busbw GB/s "
        "| verified |\n"
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- |\n"
        "| 64M | 5.000 ms\\* | 1.000 ms | 910.0 us | 1.090 ms | 21 | 67.109 | 117.441 "
        "| correct |\n"
        "| 64M | - | - | - | - | 0 | - | - | unsupported [1] |\n"
        "\n"
        "- [1] a \\| b\n"
        "- \\* first call over 3 times the median\n"
    )


def test_per_rank_says_who_is_late(shown):
    # Rank 1 is 100 us behind in all calls but the last, in which ranks 0 and 2 are the longest.
    times = [[50_000] * 3 + [90_000], [150_000] * 3 + [60_000], [60_000] * 3 + [90_000]]
    launch = run(result(3, time_ns={"host": times}), ranks=3)
    assert shown(launch, per_rank=True).split("\n\n", 1)[1] == (
        "all_reduce 64M float32 sum on gloo, in place, host clock\n"
        "\n"
        "rank  host  device    median    behind     longest\n"
        "                               fastest  % of calls\n"
        "   0  vm    cpu     50.00 us      0 ns          25\n"
        "   1  vm    cpu     150.0 us  100.0 us          75\n"
        "   2  vm    cpu     60.00 us  10.00 us          25\n"
    )


def test_per_rank_of_a_stream_warns_and_of_a_missing_clock_says_so(shown):
    launch = run(result(2, case=case(cadence="stream")), not_run("oom", ranks=2), ranks=2)
    text = shown(launch, per_rank=True)
    assert "\nnot aligned: a rank's long time can be its waiting for a late one\n" in text
    assert "\nall_reduce 64M float32 sum on gloo, in place\noom\n" in text
    assert "\nno calls on the device clock\n" in shown(
        run(result(2), ranks=2), per_rank=True, clock="device"
    )


def test_calls_in_order(shown):
    launch = run(
        result(
            2,
            cold_ns=[[5_000_000, 21_000], [4_000_000, 22_000]],
            warmup_ns=[[20_000], [30_000]],
            time_ns={"host": [[20_000, 30_000], [25_000, 20_000]]},
        ),
        ranks=2,
    )
    # The median of 25 and 30 us is 27.5 us: only the first call is over 3 times that.
    assert shown(launch, calls=True).split("\n\n", 1)[1] == (
        "all_reduce 64M float32 sum on gloo, in place, host clock\n"
        "\n"
        "call  kind     completion    fastest  rank   slowest  rank\n"
        "   0  cold       5.000 ms*  4.000 ms     1  5.000 ms     0\n"
        "   1  cold       22.00 us   21.00 us     0  22.00 us     1\n"
        "   2  warm-up    30.00 us   20.00 us     0  30.00 us     1\n"
        "   3  steady     25.00 us   20.00 us     0  25.00 us     1\n"
        "   4  steady     30.00 us   20.00 us     1  30.00 us     0\n"
        "\n"
        "* over 3 times the median of the steady calls\n"
        "call 0 is the first of its communicator\n"
    )
    launch.results[0].connect_ns = [1_000_000, 2_000_000]
    line = "before call 0, its own communicator took 2.00 ms to make (the slowest rank)\n"
    assert shown(launch, calls=True).endswith(line)


def timed(ns, ranks=2, **changed):
    return result(ranks, (ns,), case=case(**changed), time_ns={"host": [[ns]] * ranks})


def test_pivot_by_collective(shown):
    gather = {"collective": "all_gather", "op": None, "in_place": False}
    launch = run(
        timed(1_000, nbytes=1000),
        timed(1_000, nbytes=1 << 20),
        timed(1_000, nbytes=1000, **gather),
        not_run("skipped", ranks=2, nbytes=1 << 20, **gather),
        ranks=2,
    )
    assert shown(launch, pivot="collective") == (
        "torchcoll 0.1.0: all_reduce, all_gather, float32, sum\n"
        "backend: gloo of torch 2.13.0; 2 ranks on vm, cpu\n"
        "median over calls, max over ranks; clock: host; cadence: isolated\n"
        "\n"
        "busbw in GB/s by collective\n"
        "\n"
        "size  all_reduce  all_gather\n"
        "1000       1.000       0.500\n"
        "  1M    1048.576     skipped\n"
    )


def test_pivot_by_label_reads_launches_as_their_median_and_names_what_differs(shown):
    def launch(label, ns, torch):
        made = run(timed(ns, nbytes=1000), ranks=2)
        made.header["spec"]["labels"] = {"driver": label}
        variables = {"NCCL_ALGO": "Ring"} if label == "550" else {}
        made.header["environment"] = {
            "torch": torch,
            "variables": variables | {"SLURM_JOB_ID": str(ns)},
        }
        return made

    text = shown(
        launch("550", 2_000, "2.12"),
        launch("550", 4_000, "2.12"),
        launch("570", 1_000, "2.13"),
        pivot="label=driver",
        metric="time",
    )
    assert text == (
        "3 launches; backend: gloo; device: cpu; ranks: 2\n"
        "median over calls, max over ranks; clock: host; cadence: isolated\n"
        "\n"
        "median time by label=driver, median of 1 to 2 results\n"
        "\n"
        "size       550       570\n"
        "1000  3.000 us  1.000 us\n"
        "\n"
        "differs between the files: torch (2.12, 2.13); NCCL_ALGO (Ring, unset)\n"
    )


def test_pivot_never_mixes_what_it_does_not_show(shown):
    launch = run(
        timed(1_000, nbytes=1000, dtype="float32"),
        timed(2_000, nbytes=1000, dtype="float16"),
        timed(4_000, nbytes=1000, ranks=4, dtype="float16"),
        ranks=2,
    )
    text = shown(launch, pivot="ranks", metric="algbw")
    assert "\nalgbw in GB/s by ranks, dtype float32\n\nsize      2\n1000  1.000\n" in text
    assert (
        "\nalgbw in GB/s by ranks, dtype float16\n\nsize      2      4\n1000  0.500  0.250\n"
    ) in text


def test_pivot_names_the_file_of_a_problem(shown, tmp_path):
    whole, cut = run(timed(1_000), ranks=2), run(timed(1_000), ranks=2)
    cut.path = tmp_path / "cut.jsonl"
    cut.problems = ["truncated: the file has no end record"]
    text = shown(whole, cut, pivot="ranks")
    assert text.endswith(f"\n{cut.path}: truncated: the file has no end record\n")
