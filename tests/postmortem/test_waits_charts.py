"""The picture of a dead job: how long each rank took part, who waited, and what is not known."""

import pytest
from made_jobs import SECOND, START, call, calls_to, event, job

from torchcoll.parts.postmortem.diagnose import diagnose
from torchcoll.parts.postmortem.show import postmortem, postmortem_charts
from torchcoll.parts.postmortem.waits_charts import waits_charts


def drawn(evidence):
    """The rows from top to bottom, and of each name in the legend the lengths in them."""
    (chart,) = waits_charts(diagnose(evidence))
    bars = {trace["name"]: trace for trace in chart.traces}
    return chart.traces[0]["y"], {name: trace["x"] for name, trace in bars.items()}, chart


def hung(*ranks, until=64.1):
    """Ranks that are in call 41 from 4.1 s on, and give up."""
    calls = [item for rank in ranks for item in calls_to(rank, 41, state="started")]
    return [*calls, *(event("timeout", r, "Watchdog timeout", seconds=until) for r in ranks)]


def test_who_died_when_and_how_long_the_others_waited():
    killed = event("exit", 3, "exitcode: -9", exit_code=-9, seconds=10)
    rows, lengths, chart = drawn(job(hung(0, 1, 2), calls_to(3, 40), killed))
    assert rows == [
        "rank 3<br>was killed by SIGKILL",
        "ranks 0-2<br>waited for rank 3 in<br>all_reduce 41",
    ]
    # The wait lasts from 4.1 s to 64.1 s; a quarter of that is shown before it.
    assert lengths == {
        "took part": [pytest.approx(20.9), pytest.approx(15)],
        "the cause": [pytest.approx(54.1), 0],
        "waited": [0, pytest.approx(60)],
        "died": [pytest.approx(20.9)],
    }
    assert chart.layout["xaxis"]["title"]["text"] == "seconds since 14:13:09 UTC"


def test_a_rank_that_is_alive_elsewhere_did_not_die():
    stack = event("stack", 1, "in user code: train.py:38 tokenize", seconds=60)
    rows, lengths, _ = drawn(job(hung(0, 2, 3), calls_to(1, 40), stack))
    assert rows[0] == "rank 1<br>stayed in user code:<br>train.py:38 tokenize"
    assert "died" not in lengths and lengths["the cause"][0] > 60


def test_how_long_a_rank_waited_is_in_its_complaint():
    text = "Watchdog caught collective operation timeout: WorkNCCL ran for 600000 milliseconds"
    call_of = {"group": "0", "number": 7, "collective": "all_gather"}
    waits = [event("timeout", r, text, seconds=700, **call_of) for r in (0, 1)]
    rows, lengths, chart = drawn(job(waits, ranks=4))
    assert rows == ["ranks 2-3<br>no record", "ranks 0-1<br>waited in all_gather 7"]
    assert lengths["waited"] == [0, pytest.approx(10)]
    assert lengths["cannot tell"] == [pytest.approx(12.5), 0]
    assert chart.layout["xaxis"]["title"]["text"].startswith("minutes since")


def test_ranks_that_did_the_same_are_one_row():
    started = {"state": "started", "created_ns": START + 8 * SECOND}
    parts = [event("exit", 515, "exitcode: -9", exit_code=-9, seconds=5)]
    for rank in range(1024):
        group = f"tp{rank // 8}"
        parts += calls_to(rank, 3, group=group)
        if rank // 8 != 64:
            parts.append(call(rank, 1, **started))
        elif rank != 515:
            parts.append(call(rank, 4, group=group, **started))
    groups = {f"tp{n}": range(8 * n, 8 * n + 8) for n in range(128)}
    rows, lengths, _ = drawn(job(parts, ranks=1024, groups=groups))
    assert [row.split("<br>")[0] for row in rows] == [
        "rank 515",
        "ranks 0-511 and 520-1023",
        "ranks 512-514 and 516-519",
    ]
    assert lengths["died"] == lengths["took part"][:1]


def test_many_different_waits_keep_the_picture_small():
    parts = [event("exit", 0, "exitcode: -9", exit_code=-9, seconds=5)]
    for rank in range(1, 101):
        parts.append(call(rank, rank, state="started", created_ns=START + 8 * SECOND))
    rows, _, _ = drawn(job(parts, ranks=101))
    assert len(rows) == 18 and rows[-1] == "ranks 17-100<br>84 further waits"


def listed(chart):
    """Of each name in the legend the rows and their marks, of a chart without an axis of times."""
    assert chart.layout["xaxis"]["tickvals"] == [] and "do not say when" in chart.caption[0]
    return {trace["name"]: (trace["y"], trace["marker"]["symbol"]) for trace in chart.traces}


def test_without_times_there_is_a_list():
    killed = event("exit", 2, "exitcode: -9", exit_code=-9)
    lost = [event("peer_lost", r, "Connection closed by peer") for r in (0, 1)]
    _, _, chart = drawn(job(killed, lost, ranks=3))
    assert listed(chart) == {
        "died": (["rank 2<br>was killed by SIGKILL"], "x"),
        "waited": (["ranks 0-1<br>waited"], "square"),
    }


@pytest.mark.parametrize(
    "evidence",
    [
        job([event("ending", r, "ended", seconds=5) for r in range(4)]),
        job([event("exception", r, "ValueError: x", seconds=r) for r in range(4)]),
    ],
    ids=["nothing failed", "all failed alike"],
)
def test_no_picture_where_it_would_say_nothing(evidence):
    assert waits_charts(diagnose(evidence)) == []


WATCHDOG = (
    "{}[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}, "
    "NumelIn=513, NumelOut=5\n13, Timeout(ms)=1800000) ran for 1800042 milliseconds before\n"
)
STAMP = "[rank{}]:[E513 13:25:57.71478{} ProcessGroupNCCL.cpp:616] "
KILLED = (
    "Root Cause (first observed failure) :\nrank2 (local rank: 2)exitcode: -9 (pid: 37182)error "
    "file: <N/A>\ntraceback : signal 9 (SIGKILL) received by PID 37182\n"
)
ECC = (
    "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: "
    "CUDA error: uncorrectable ECC error encountered\n"
)


def watchdogs(calls, stamped):
    return "".join(
        WATCHDOG.format(STAMP.format(rank, rank) if stamped else "[E] ", rank, number, name)
        for rank, (number, name) in calls.items()
    )


def charts_of(folder, **logs):
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    return postmortem_charts(postmortem(str(folder)))


@pytest.mark.parametrize("stamped", [True, False])
def test_the_axis_is_of_how_long_the_log_says_that_the_calls_ran(tmp_path, stamped):
    """The line is wrapped, the stamps are microseconds apart, and rank 0 is only further on."""
    calls = {2: (39, "BROADCAST"), 1: (39, "BROADCAST"), 0: (41, "ALLREDUCE")}
    (chart,) = charts_of(tmp_path, p13=watchdogs(calls, stamped))
    lengths = {trace["name"]: trace["x"] for trace in chart.traces}
    assert lengths.keys() == ({"took part"} if stamped else set()) | {"ahead", "waited"}
    assert lengths["ahead"] == [pytest.approx(30, abs=0.01), 0]
    assert lengths["waited"] == [0, pytest.approx(30, abs=0.01)]
    assert chart.layout["xaxis"]["title"]["text"].startswith("minutes ")
    assert chart.traces[0]["y"] == [
        "rank 0<br>waited in all_reduce 41, 2<br>calls ahead",
        "ranks 1-2<br>waited in broadcast 39",
    ]


DEBUG = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    "CollectiveFingerPrint(SequenceNumber={}OpType={}), but Rank 3 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=6OpType=ALLREDUCE).Collectives differ in the following\n"
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (
            KILLED,
            {
                "died": (["one rank<br>local rank 2 was killed by<br>SIGKILL"], "x"),
                "cannot tell": (["all others<br>no record"], "square"),
            },
        ),
        (
            ECC,
            {
                "died": (
                    ["rank 1<br>an uncorrectable memory error<br>of the GPU ended rank 1"],
                    "x",
                ),
                "cannot tell": (["rank 0<br>no record"], "square"),
            },
        ),
        (
            DEBUG.format(8, "BROADCAST"),
            {
                "the cause": (
                    ["rank 1<br>in broadcast 8, 2 calls ahead", "rank 3<br>in all_reduce 6"],
                    "square",
                ),
                "cannot tell": (["ranks 0 and 2<br>no record"], "square"),
            },
        ),
    ],
    ids=["a local rank was killed", "a rank lost its GPU", "mismatch"],
)
def test_who_is_certain_is_listed_without_times(tmp_path, text, rows):
    (chart,) = charts_of(tmp_path, job=text)
    assert listed(chart) == rows


def test_all_ranks_of_a_log_wait(tmp_path):
    (chart,) = charts_of(tmp_path, job=watchdogs({0: (8, "ALLREDUCE"), 1: (8, "ALLREDUCE")}, True))
    assert chart.traces[0]["y"] == [
        "whom they waited for<br>not in this log",
        "ranks 0-1<br>waited in all_reduce 8",
    ]


def test_many_jobs_begin_with_how_many_ended_of_each_cause(tmp_path):
    killed = {f"slurm-{n}": KILLED for n in range(5)}
    overview, *jobs = charts_of(tmp_path, ecc=ECC, **killed)
    assert overview.title == "Why 6 jobs ended"
    assert (overview.traces[0]["y"], overview.traces[0]["x"]) == (
        ["killed", "device error"],
        [5, 1],
    )
    assert len(jobs) == 4
