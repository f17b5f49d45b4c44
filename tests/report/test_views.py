"""Views of ``show`` beside the table: markdown, csv, json, per rank, calls, pivot."""

import csv
import io
import json

import pytest
from handmade import case, not_run, result, run

from torchcoll.core.file import save

pytestmark = pytest.mark.usefixtures("fixed_columns")

# The names of Row's fields as users of JSON know them, in order.
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
    "buffer_reuse": "same",
    "misalign_bytes": 0,
    "implementation": "own",
    "asynchronous": False,
    "coalesce": 1,
    "rehearsal": False,
    "splits": None,
    "communicator": "shared",
    "mode": "synchronized",
    "clock": "host",
    "size_bytes_requested": 67108864,
    "size_bytes": 67108864,
    "count": 16777216,
    "bytes_in": 67108864,
    "bytes_out": 67108864,
    "first_call_ns": 5000000,
    "second_call_ns": 1100000,
    "statistic": "median",
    "median_ns": 1000000,
    "low_ns": 910000,
    "high_ns": 1090000,
    "p99_ns": None,
    "calls": 21,
    "stop": "time",
    "steady_ns": None,
    "algorithm": None,
    "channels": None,
    "algbw_gbps": 67.108864,
    "busbw_gbps": 117.440512,
    "verified": "correct",
    "status": "ok",
    "reason": "",
}
NAMES = list(VALUES)


def test_json_has_stable_names_and_base_units(shown):
    document = json.loads(shown(run(result(stop="time")), format="json"))
    assert list(document) == ["schema", "run", "verdict", "rows", "answer"]
    assert document["verdict"]["word"] == "NO REFERENCE"
    assert document["schema"] == "torchcoll-rows/1"
    assert document["run"]["status"] == "complete"
    assert document["run"]["ranks"] == 8
    (row,) = document["rows"]
    # Then where it is from, of which this run tells its name alone.
    assert list(row) == [*NAMES, "run_id", "file", "host", "node", "start_utc"]
    assert {name: row[name] for name in NAMES} == VALUES
    assert [row["run_id"], row["file"]] == ["r1", None]


def test_json_of_several_runs_and_of_a_truncated_one(shown):
    cut = run(not_run("oom"), end=None, problems=["truncated: the file has no end record"])
    first, second = json.loads(shown(run(result()), cut, format="json"))
    assert first["rows"][0]["median_ns"] == 1000000
    assert second["run"]["status"] == "truncated"
    assert second["run"]["problems"] == ["truncated: the file has no end record"]
    assert second["rows"][0]["median_ns"] is None


def test_json_of_chosen_columns_and_percentiles(shown):
    text = shown(
        run(result()), format="json", columns="size_bytes,median_ns", percentiles="0,50,99.9"
    )
    # The last of 21 calls is 1.10 ms, the one before 1.09 ms: 99.9 % is 0.98 of the way.
    (row,) = json.loads(text)["rows"]
    assert row.pop("p99.9_ns") == 1099800
    assert row == {"size_bytes": 67108864, "median_ns": 1000000, "p0_ns": 900000, "p50_ns": 1000000}


def test_csv_has_every_field_and_nothing_for_unknown(shown):
    launch = run(result(stop="time"), header={"start_utc": "2026-11-20T12:31:04+00:00"})
    launch.header["spec"]["labels"] = {"driver": "550"}
    (row,) = csv.DictReader(io.StringIO(shown(launch, format="csv", over_ranks="max")))
    assert list(row) == [*NAMES, "over_ranks", "run_id", "start_utc", "label_driver"]
    numbers = {"median_ns": "1000000.0", "low_ns": "910000.0", "high_ns": "1090000.0"}
    expected = {k: "" if v is None else str(v) for k, v in VALUES.items()} | numbers
    expected |= {"over_ranks": "max", "run_id": "r1", "label_driver": "550"}
    assert row == expected | {"start_utc": "2026-11-20T12:31:04+00:00"}


def test_csv_of_files_with_different_labels_and_of_none_that_ran(shown):
    one, two = run(result()), run(result())
    one.header["spec"]["labels"] = {"net": "ib"}
    two.header["spec"]["labels"] = {"driver": "550"}
    rows = list(csv.DictReader(io.StringIO(shown(one, two, format="csv", over_ranks="min"))))
    names = ("file", "label_net", "label_driver", "over_ranks")
    assert [tuple(r[name] for name in names) for r in rows] == [
        ("r1", "ib", "", "min"),
        ("r1", "", "550", "min"),
    ]
    text = shown(run(), format="csv")
    assert text == ",".join([*NAMES, "over_ranks", "run_id", "start_utc"]) + "\n"


def test_markdown(shown):
    text = shown(run(result(), not_run("unsupported", "a | b")), format="markdown")
    answer, header, table = text.split("\n\n", 2)
    assert answer == (
        "- all_reduce on 8 gloo ranks takes 1.00 ms and reaches 117 GB/s of busbw at 64M; "
        "1 of 1 case correct, 1 unsupported; time to first result 5.00 ms; "
        "NO REFERENCE for gloo on cpu within one host\n"
        "- Next: torchcoll check FILE --baseline EARLIER-RUN"
    )
    assert header.startswith("- torchcoll 0.1.0: all_reduce, float32, sum, in place\n- backend: ")
    assert table == (
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


# Rank 1 is 100 us longer in all calls but the last, in which ranks 0 and 2 are the longest.
THREE = [[50_000] * 3 + [90_000], [150_000] * 3 + [60_000], [60_000] * 3 + [90_000]]


def test_per_rank_shows_each_rank_and_what_a_duration_is(shown):
    launch = run(result(3, time_ns={"host": THREE}), ranks=3)
    above, tables = shown(launch, view="ranks").split("\n\n", 1)
    tables, _, answer = tables.rstrip("\n").rpartition("\n")
    assert answer == (
        "rank 1 (vm) is the slowest, 2.7x as long as the median of the others (95.0 us a "
        "call), in 75 % of the calls of 1 of 1 case"
    )
    assert above.endswith(
        "\neach rank's own time includes waiting for the others, so the rank that arrives last has "
        "the shortest time"
    )
    assert "over ranks" not in above
    assert tables == (
        "all_reduce 64M float32 sum on gloo, in place, host clock\n"
        "\n"
        "rank  host  device    median     above the  slowest in\n"
        "                              fastest rank  % of calls\n"
        "   0  vm    cpu     50.00 us          0 ns          12\n"
        "   1  vm    cpu     150.0 us      100.0 us          75\n"
        "   2  vm    cpu     60.00 us      10.00 us          12\n"
    )


def test_per_rank_and_calls_of_a_sub_group_name_the_ranks_of_the_launch(shown):
    part = result(2, time_ns={"host": THREE[:2]}, members=[1, 3], case=case(group="mod:2/1"))
    launch = run(part, ranks=4)
    launch.members[3]["host"] = "other"
    text = shown(launch, view="ranks")
    assert "\nall_reduce 64M float32 sum on gloo, in place, sub-group mod:2/1, host clock\n" in text
    assert [line.split()[:2] for line in text.splitlines()[-4:-2]] == [["1", "vm"], ["3", "other"]]
    (_, first, *_) = (li for li in shown(launch, view="calls").splitlines() if "steady" in li)
    assert first.split()[-4:] == ["1", "150.0", "us", "3"]


def long_rows(text, **cells):
    """Of a csv text: the columns of ``cells``, for the rows that are like them."""
    found = [r for r in csv.DictReader(io.StringIO(text))]
    return [r for r in found if all(r[k] == v for k, v in cells.items())]


def test_per_rank_for_machines(shown):
    launch = run(result(3, time_ns={"host": THREE}), not_run("oom", ranks=3), ranks=3)
    rows = long_rows(shown(launch, view="ranks", format="csv"))
    assert [r["rank"] for r in rows] == ["0", "1", "2"]
    one = rows[1]
    assert (one["collective"], one["host"], one["rank_device"]) == ("all_reduce", "vm", "cpu")
    assert (one["calls"], one["median_ns"], one["longer_than_fastest_ns"]) == (
        "4",
        "150000.0",
        "100000.0",
    )
    assert (one["longest_share"], one["run_id"]) == ("0.75", "r1")
    assert "over_ranks" not in one
    document = json.loads(shown(launch, view="ranks", format="json"))
    assert document["rows"][1]["median_ns"] == 150_000
    assert document["schema"] == "torchcoll-rows/1"


def test_calls_for_machines_are_raw_and_of_all_clocks(shown):
    launch = run(
        result(
            2,
            cold_ns=[[50, 40], [51, 41]],
            warmup_ns=[[30], [31]],
            time_ns={"device": [[9, 8], [7, 6]], "issue": [[1, 2, 5], [3, 4, 6]]},
            batches=[3],
            calls_per_sample=2,
        ),
        ranks=2,
    )
    text = shown(launch, view="calls", format="csv")
    names = ("clock", "kind", "call", "calls_per_sample", "ns")
    assert [tuple(r[n] for n in names) for r in long_rows(text, rank="1")] == [
        ("host", "cold", "0", "1", "51"),
        ("host", "cold", "1", "1", "41"),
        ("host", "warmup", "2", "1", "31"),
        ("device", "steady", "3", "2", "7"),
        ("device", "steady", "5", "1", "6"),
        ("issue", "steady", "3", "1", "3"),
        ("issue", "steady", "4", "1", "4"),
        ("issue", "steady", "5", "1", "6"),
    ]
    text = shown(launch, view="calls", format="csv", clock="issue")
    assert {r["clock"] for r in long_rows(text)} == {"issue"}
    rows = json.loads(shown(launch, view="calls", format="json"))["rows"]
    assert [r["ns"] for r in rows if r["kind"] == "cold"] == [50, 40, 51, 41]


def test_per_rank_of_a_case_that_failed_and_of_a_missing_clock_says_so(shown):
    launch = run(result(2, case=case(mode="back-to-back")), not_run("oom", ranks=2), ranks=2)
    text = shown(launch, view="ranks")
    assert "\nall_reduce 64M float32 sum on gloo, in place\noom\n" in text
    without = shown(run(result(2), ranks=2), view="ranks", clock="device")
    assert "\nCannot tell whether a rank is slow: no case has times of several ranks" in without


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
    assert shown(launch, view="calls").split("\n\n", 1)[1] == (
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
        "call 0 is the first of its communicator\n\n"
        "the slowest of 2 steady calls takes 1.09x its case's median "
        "(all_reduce 64M float32 sum on gloo: call 4, 30.0 us)\n"
    )
    launch.results[0].connect_ns = [1_000_000, 2_000_000]
    line = "before call 0, its own communicator took 2.00 ms to make (the slowest rank)\n"
    assert line in shown(launch, view="calls")


def test_calls_stand_where_they_ran(shown):
    """Ramp-up calls go before the steady ones of each batch; kinds and numbers, in JSON too."""
    launch = run(
        result(
            2,
            cold_ns=[[90_000], [90_000]],
            ramp_up_ns=[[50_000, 40_000], [51_000, 41_000]],
            time_ns={"host": [[20_000, 21_000, 22_000], [20_000, 21_000, 22_000]]},
            batches=[2, 1],
        ),
        ranks=2,
    )
    found = list(csv.DictReader(io.StringIO(shown(launch, view="calls", format="csv"))))
    assert [(r["call"], r["kind"], r["ns"]) for r in found if r["rank"] == "1"] == [
        ("0", "cold", "90000"),
        ("1", "ramp_up", "51000"),
        ("2", "steady", "20000"),
        ("3", "steady", "21000"),
        ("4", "ramp_up", "41000"),
        ("5", "steady", "22000"),
    ]


def test_samples_of_several_calls_weigh_as_many(shown):
    """Batches of 21 and 10 calls, a sample the mean of up to ten: of 10, 10, 1 and 10 calls. Rank
    0: (100 + 100 + 100 + 100) / 31 = 12.9 us, rank 1: (90 + 90 + 120 + 90) / 31 = 12.58.
    """
    device = [[10_000, 10_000, 100_000, 10_000], [9_000, 9_000, 120_000, 9_000]]
    launch = run(
        result(
            2,
            case=case(mode="back-to-back"),
            cold_ns=[[90_000], [90_000]],
            ramp_up_ns=[[50_000, 40_000], [51_000, 41_000]],
            time_ns={"device": device, "issue": [[7] * 31] * 2},
            batches=[21, 10],
            calls_per_sample=10,
        ),
        ranks=2,
    )
    first, second = long_rows(shown(launch, view="ranks", format="csv"))
    assert (first["calls"], second["calls"]) == ("31", "31")
    assert float(first["median_ns"]) == pytest.approx(400_000 / 31)
    assert float(second["median_ns"]) == pytest.approx(390_000 / 31)
    # Rank 1 was the last in one call of 31.
    assert float(second["longest_share"]) == pytest.approx(1 / 31)
    names = ("kind", "call", "calls_per_sample")
    rows = long_rows(shown(launch, view="calls", format="csv"), rank="1")
    assert [tuple(r[n] for n in names) for r in rows if r["clock"] == "device"] == [
        ("ramp_up", "1", "1"),
        ("steady", "2", "10"),
        ("steady", "12", "10"),
        ("steady", "22", "1"),
        ("ramp_up", "23", "1"),
        ("steady", "24", "10"),
    ]
    # Every call was issued by itself, and has the number that it has on the other clock.
    issued = [(r["call"], r["calls_per_sample"]) for r in rows if r["clock"] == "issue"]
    assert issued == [(str(n), "1") for n in (*range(2, 23), *range(24, 34))]


def test_per_rank_of_a_stream_has_each_ranks_period(shown):
    launch = run(
        result(
            2,
            case=case(mode="back-to-back"),
            time_ns={"host": [[10_000, 10_000, 40_000], [20_000, 20_000, 26_000]]},
            batches=[3],
        ),
        ranks=2,
    )
    slow = shown(launch, view="calls")  # 5 ms against 22 us
    assert "\n* over 3 times the period of the steady calls\n" in slow
    lines = shown(launch, view="ranks").splitlines()
    (head,) = [n for n, line in enumerate(lines) if line.startswith("rank  host")]
    assert "period" in lines[head] and "median" not in lines[head]
    assert [line.split()[3:5] for line in lines[head + 2 : head + 4]] == [
        ["20.00", "us"],  # 60 us / 3
        ["22.00", "us"],  # 66 us / 3
    ]


def timed(ns, ranks=2, **changed):
    return result(ranks, (ns,), case=case(**changed), time_ns={"host": [[ns]] * ranks})


def test_pivot_by_collective(shown):
    gather = {"collective": "all_gather", "op": None, "in_place": False}
    launch = run(
        timed(1_000, size_bytes=1000),
        timed(1_000, size_bytes=1 << 20),
        timed(1_000, size_bytes=1000, **gather),
        not_run("skipped", ranks=2, size_bytes=1 << 20, **gather),
        ranks=2,
    )
    assert shown(launch, view="pivot:collective").startswith(
        "torchcoll 0.1.0: all_reduce, all_gather, float32, sum\n"
        "backend: gloo of torch 2.13.0; 2 ranks on vm, cpu\n"
        "median over calls, max over ranks; clock: host; mode: synchronized\n"
        "\n"
        "busbw in GB/s by collective\n"
        "\n"
        "size  all_reduce  all_gather\n"
        "1000       1.000       0.500\n"
        "  1M    1048.576     skipped\n"
        "\n"
        "differs between the columns: in_place (in place, out of place)\n"
    )


def test_pivot_by_label_reads_launches_as_their_median_and_names_what_differs(shown):
    def launch(label, ns, torch):
        made = run(timed(ns, size_bytes=1000), ranks=2)
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
        view="pivot:label=driver",
        metric="time",
    )
    assert text.startswith(
        "3 runs: all_reduce, float32, sum, in place\n"
        "backend: gloo; device: cpu; ranks: 2\n"
        "median over calls, max over ranks; clock: host; mode: synchronized\n"
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
        timed(1_000, size_bytes=1000, dtype="float32"),
        timed(2_000, size_bytes=1000, dtype="float16"),
        timed(4_000, size_bytes=1000, ranks=4, dtype="float16"),
        ranks=2,
    )
    text = shown(launch, view="pivot:ranks", metric="algbw")
    assert "\nalgbw in GB/s by ranks, dtype float32\n\nsize      2\n1000  1.000\n" in text
    assert (
        "\nalgbw in GB/s by ranks, dtype float16\n\nsize      2      4\n1000  0.500  0.250\n"
    ) in text


def test_pivot_names_the_file_of_a_problem(shown, tmp_path):
    whole, cut = run(timed(1_000), ranks=2), run(timed(1_000), ranks=2)
    cut.path = tmp_path / "cut.jsonl"
    cut.problems = ["truncated: the file has no end record"]
    text = shown(whole, cut, view="pivot:ranks")
    assert f"\n{cut.path}: truncated: the file has no end record\n" in text


def test_pivot_tells_splits_and_communicators_apart(shown, tmp_path):
    def launch(name, splits, communicator="shared"):
        asked = {"collective": "all_to_all_v", "op": None, "in_place": False, "splits": splits}
        made = run(timed(1_000, size_bytes=1000, **asked), ranks=2)
        made.results[0].communicator = communicator
        made.results[0].busiest_bytes = 500
        made.path = tmp_path / name
        return made

    text = shown(launch("a", "1,3"), launch("b", "1,1"), view="pivot:collective")
    for splits in ("1,3", "1,1"):
        assert f"\nbusbw in GB/s by collective, splits {splits}\n" in text
    fresh = launch("c", "1,3", "new_group")
    text = shown(launch("a", "1,3"), fresh, view="pivot:ranks")
    assert "\nbusbw in GB/s by ranks, communicator shared\n" in text
    assert "\nbusbw in GB/s by ranks, communicator new_group\n" in text
    text = shown(launch("a", "1,3"), launch("b", "1,1"), view="pivot:splits")
    assert "\nsize    1,3    1,1\n" in text


def test_pivot_leaves_out_what_has_no_bandwidth(shown):
    barrier = {
        "collective": "barrier",
        "size_bytes": 0,
        "dtype": None,
        "op": None,
        "in_place": False,
    }
    launch = run(timed(1_000, size_bytes=1000), timed(2_000, **barrier), ranks=2)
    text = shown(launch, view="pivot:collective")
    assert (
        "\n1000       1.000\n\nbarrier has no bandwidth and is left out (--metric time)\n" in text
    )
    assert "\n   -           -  2.000 us\n" in shown(launch, view="pivot:collective", metric="time")
    alone = shown(run(timed(2_000, **barrier), ranks=2), view="pivot:collective")
    assert "  2.000 us\n" in alone  # the metric that it has


def test_pivot_of_a_stream_is_no_completion(shown):
    text = shown(run(timed(1_000, mode="back-to-back"), ranks=2), view="pivot:ranks")
    assert "period over calls, max over ranks; clock: host; mode: back-to-back\n" in text
    assert "median" not in text and "aligned" not in text
    text = shown(run(timed(1_000, mode="unknown"), ranks=2), view="pivot:ranks")
    assert "; mode: unknown; ranks are not aligned: the maximum over ranks is no call's" in text


def test_a_wide_pivot_is_several_tables_on_a_terminal_and_one_in_a_pipe(shown, on_terminal):
    names = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "sendrecv")
    launch = run(*(timed(1_000, size_bytes=1000, collective=name) for name in names), ranks=2)
    text = on_terminal(launch, columns=40, view="pivot:collective")
    tables = text.split("\n\n", 2)[2]
    assert max(map(len, tables.splitlines())) <= 40
    assert [line.split() for line in tables.splitlines() if line.startswith("size")] == [
        ["size", *names[:2]],
        ["size", *names[2:5]],
        ["size", names[5]],
    ]
    assert tables.count("\n1000 ") == 3
    assert (
        "size  all_reduce  reduce_scatter  all_gather  all_to_all  broadcast  sendrecv\n"
        in shown(launch, view="pivot:collective")
    )


def resumed(tmp_path):
    first = run(
        timed(1_000, size_bytes=8), ranks=2, end={"status": "interrupted", "reason": "SIGINT"}
    )
    first.events = [{"kind": "signal", "message": "SIGINT"}]
    further = run(timed(2_000, size_bytes=32), ranks=2)
    further.header |= {"run_id": "r2", "environment": {**first.environment, "torch": "2.14.0"}}
    further.members[1]["host"] = "vm2"
    save(first, tmp_path / "a.jsonl")
    save(further, tmp_path / "a.jsonl.2")
    return tmp_path / "a.jsonl"


def test_rows_of_several_launches_say_so_and_what_differs(shown, tmp_path):
    path = resumed(tmp_path)
    end = (
        "\nan earlier run ended and was resumed: interrupted by SIGINT\n"
        "rows of 2 runs (--resume): the first, a.jsonl.2 from all_reduce 32 float32 sum on "
        "gloo on\n"
        "differs between the runs: torch (2.13.0, 2.14.0); hosts (vm, vm vm2)\n"
    )
    assert f"{end}all_reduce on 2 gloo ranks takes " in shown(path)
    rows = list(csv.DictReader(io.StringIO(shown(path, format="csv"))))
    assert [row["run_id"] for row in rows] == ["r1", "r2"]
    document = json.loads(shown(path, format="json"))["run"]
    assert document["continuations"] == [
        {"path": f"{path}.2", "run_id": "r2", "start_utc": None, "cases": 1}
    ]
    assert document["status"] == "complete"


def test_a_part_that_is_named_too_is_not_counted_twice(shown, tmp_path):
    path = resumed(tmp_path)
    text = shown(path, f"{path}.2", view="pivot:ranks", metric="time")
    assert "median of" not in text
    assert f"\n{path}.2 is a part of {path}: it is shown once\n" in text
    assert text == shown(f"{path}.2", path, view="pivot:ranks", metric="time")
    assert f"\n{path} was named twice: it is shown once\n" in shown(path, path)


def test_markdown_of_foreign_text_is_no_markup(shown):
    text = shown(run(not_run("failed", "[x](http://y) `a` <b>")), format="markdown")
    assert "- [1] [x]\\(http://y) \\`a\\` \\<b>\n" in text


def test_a_subgroup_is_never_mixed_with_all_ranks(shown):
    """group None is all ranks, a value of its own; both have the same number of ranks."""
    halves = [result(2, case=case(group=f"mod:2/{k}")) for k in (0, 1)]
    world = result(2, time_ns={"host": [[4_000_000] * 3] * 2})
    text = shown(run(*halves, ranks=4), run(world, ranks=2), view="pivot:ranks", metric="time")
    tables = [line for line in text.splitlines() if line.startswith("median time by ranks")]
    assert tables == [
        "median time by ranks, group mod:2/0",
        "median time by ranks, group mod:2/1",
        "median time by ranks, all ranks",
    ]
    assert [line.split() for line in text.splitlines() if line.startswith(" 64M")] == [
        ["64M", "1.000", "ms"],
        ["64M", "1.000", "ms"],
        ["64M", "4.000", "ms"],
    ]


def test_what_fits_no_other_table_has_its_own(shown):
    """all_gather has no op and stands in both tables; broadcast alone has roots."""
    results = [result(case=case(op=op)) for op in ("sum", "max")]
    results.append(result(case=case(collective="all_gather", op=None)))
    results += [result(case=case(collective="broadcast", op=None, root=root)) for root in (0, 1)]
    text = shown(run(*results), view="pivot:collective", metric="time")
    tables = text.split("median time by collective, ")[1:]
    assert [table.splitlines()[0] for table in tables] == [
        "op sum, root 0",
        "op max, root 0",
        "op sum, root 1",
    ]
    # Each has all three; no cell is the median of two.
    for table in tables:
        assert table.splitlines()[2].split() == ["size", "all_reduce", "all_gather", "broadcast"]
        assert "-" not in table.splitlines()[3]
