"""``torchcoll.suite --traffic FILE``: the sizes of a captured training from the shell."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from error_form import error_text
from ranks import of_enough_cores

import torchcoll
from torchcoll import load
from torchcoll.core.spec import ExactCall
from torchcoll.core.traffic import Group, Traffic, TrafficCall

CALLS = [
    TrafficCall("all_reduce", 400, 400, "float32", asynchronous=True, group="a"),
    TrafficCall("all_gather", 12, 24, "int8", group="a"),
    TrafficCall("send", 8, 0, "int8", peer=1, group="a"),
]
POINTS = (ExactCall("all_reduce", 400, "float32", "sum", True), ExactCall("all_gather", 24, "int8"))
NOTES = [
    "1 call of all_reduce: reduce op unknown: measured as sum",
    "1 call of send: not measured: a message between two ranks is no collective",
]


def saved(path, ranks: int = 2, members: tuple[int, ...] = (0, 1)):
    Traffic(ranks=ranks, calls={0: CALLS}, groups={"a": Group("a", members)}).save(path)
    return path


def test_the_points_are_measured(launch, tmp_path):
    """Rank 0 alone reads the file; what is not measured as it was is a warning in the result."""
    path = saved(tmp_path / "t.jsonl")
    options = f"--traffic {path} -n 2 --label a=b"
    measured = launch(None, options, 2, setup=of_enough_cores).ended(0)
    run = measured.run
    assert run.spec.points == POINTS and run.labels == {"a": "b"}
    found = [(r.case.collective, r.case.size_bytes, r.case.dtype, r.status) for r in run.results]
    assert found == [("all_reduce", 400, "float32", "ok"), ("all_gather", 24, "int8", "ok")]
    assert [r.case.asynchronous for r in run.results] == [True, False]
    assert [r.verification.wrong for r in run.results] == [0, 0]
    assert [event["message"] for event in run.events if event["kind"] == "warning"] == NOTES
    assert f"warning: {NOTES[1]}" in measured.stdout()


def test_resume_keeps_the_points(launch, tmp_path):
    path = saved(tmp_path / "t.jsonl")
    whole = launch(None, f"--traffic {path} -n 1", 2).ended(0)
    lines = whole.path.read_text().splitlines(keepends=True)
    cases = [i for i, line in enumerate(lines) if '"record":"case"' in line]
    rest = launch(None, f"--resume {whole.path}", 2, output=False)
    assert "nothing is left to run" in rest.ended(0).stderr()
    whole.path.write_text("".join(lines[: cases[-1]]))  # the second case is lost
    launch(None, f"--resume {whole.path} --traffic {path} -n 1", 2, output=False).ended(0)
    run = load(whole.path)
    assert run.spec.points == POINTS
    assert [r.case.collective for r in run.results] == ["all_reduce", "all_gather"]
    other = launch(None, f"--resume {whole.path} --traffic {path} -n 2", 2, output=False).ended(2)
    assert error_text("resume", "other options than") in other.errors()[0]


def test_sub_groups(launch, tmp_path):
    path = saved(tmp_path / "t.jsonl", 4, (0, 2))
    run = launch(None, f"--traffic {path} -n 1", 4).ended(0).run
    assert run.spec.groups == "0,2;1,3"
    found = [(r.case.collective, r.case.size_bytes, r.members, r.status) for r in run.results]
    assert found == [
        ("all_reduce", 400, [0, 2], "ok"),
        ("all_reduce", 400, [1, 3], "ok"),
        ("all_gather", 24, [0, 2], "ok"),
        ("all_gather", 24, [1, 3], "ok"),
    ]


def test_a_folder_on_another_number_of_ranks(launch, tmp_path):
    (tmp_path / "all").mkdir()
    saved(tmp_path / "all" / "rank0.jsonl", 4, (0, 1, 2, 3))
    run = launch(None, f"--traffic {tmp_path}/all -n 1", 2).ended(0).run
    assert run.spec.points == POINTS
    assert "sizes of 4 ranks, measured on 2" in [event["message"] for event in run.events]


def test_dry_run(launch, tmp_path):
    path = saved(tmp_path / "t.jsonl")
    measured = launch(None, f"--traffic {path} --dry-run", 2, output=False).ended(0)
    assert "Total: 2 cases" in measured.stdout()
    assert measured.stderr().splitlines() == [f"torchcoll: warning: {note}" for note in NOTES]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (
            "--sizes 1K",
            2,
            error_text(
                "spec",
                "sizes with a traffic, which says what is sent",
                "fields that say how to measure",
            ),
        ),
        ("--groups 0;1,2,3", 2, error_text("groups", "0;1,2,3", "groups='0,1;2,3'")),
        ("", 2, error_text("ranks", "2", "4 as in FILE, for the sub-groups 0,1;2,3")),
        (
            "FILE.gz",
            3,
            "file: got FILE.gz, expected a file that exists. Did you mean FILE?",
        ),
    ],
)
def test_one_line_from_rank_0(launch, tmp_path, arguments, code, line):
    path = saved(tmp_path / "t.jsonl", 4, (0, 1))
    words = arguments.replace("FILE", str(path)) if "FILE" in arguments else f"{path} {arguments}"
    measured = launch(None, f"--traffic {words}", 2, output=False).ended(code)
    assert measured.errors() == [f"torchcoll: error: {line.replace('FILE', str(path))}"]


def test_only_the_suite_has_it(launch, tmp_path):
    measured = launch("all_reduce", "--traffic x", 2, output=False).ended(2)
    assert measured.errors()[0].startswith("torchcoll: error: unrecognized arguments: --traffic x")


def test_ranks_that_sent_different_calls(jobs, tmp_path):
    """Each measures what it sent itself: that is no one Spec."""

    def target() -> None:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        calls = [TrafficCall("all_reduce", 8 + rank, 8 + rank, "int8")]
        try:
            torchcoll.run(Traffic(ranks=2, calls={rank: calls}).spec(iters=1))
        finally:
            dist.destroy_process_group()

    job = jobs(tmp_path, target, 2)
    assert job.codes() == [1, 1]
    for rank in (0, 1):
        last = job.text(rank).splitlines()[-1]
        assert "UsageError: arguments of rank 1 (" in last
        assert last.endswith(
            "The ranks sent different calls: save the traffic of each, and measure all of it with "
            "torchcoll.suite --traffic FOLDER."
        )
