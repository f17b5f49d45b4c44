"""``torchcoll postmortem``: the command, its three formats, and folders that say nothing."""

import gzip
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
from error_form import error_text
from handmade import Terminal

import torchcoll
from torchcoll.cli import main
from torchcoll.parts.postmortem.job_folder import FolderEvidence, read_folder
from torchcoll.parts.postmortem.show import diagnosed, show_postmortem
from torchcoll.questions.page.notebook import charts_of

STUCK = Path(__file__).parents[2] / "examples/stuck-rank"


@pytest.fixture
def stuck(tmp_path):
    return Path(shutil.copytree(STUCK, tmp_path / "job"))


def answer(capsys, *arguments, code=0):
    assert main(["postmortem", *map(str, arguments), "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_answer_comes_first(capsys):
    assert main(["postmortem", str(STUCK)]) == 0
    first = capsys.readouterr().out.split("\n\n")[0]
    assert "rank 1 on vm stayed in user code: train/train.py:38 stuck_in_tokenizer" in first
    assert "in all_reduce" in first


def test_a_terminal_shows_which_file_is_read(stuck, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["postmortem", str(stuck), "--format", "line"]) == 0
    assert "reading rank1.log (170), file 6 of 9" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_json(capsys):
    document = answer(capsys, STUCK)
    (job,) = document["jobs"]
    assert document["schema"] == "torchcoll-postmortem/1"
    assert document["answer"]["headline"] == job["headline"]
    assert (job["kind"], job["culprits"], job["candidates"]) == ("user_code", [1], [])
    assert (job["group"], job["collective"], job["number"]) == ("default", "all_reduce", 17)
    assert job["waiting"] == [0, 2, 3]
    assert {"text", "rank", "file", "line"} == set(job["evidence"][0])
    assert {"file": "stacks-rank1.txt", "what": "stacks", "ranks": [1]} in job["files"]


def test_markdown(capsys):
    assert main(["postmortem", str(STUCK), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("- rank 1 on vm stayed in user code")


def test_files_in_folders_links_and_gzip(stuck, capsys):
    for rank in range(4):
        folder = stuck / f"node{rank}" / "logs"
        folder.mkdir(parents=True)
        for name in (f"fr_rank{rank}.json", f"rank{rank}.log"):
            data = (stuck / name).read_bytes()
            (stuck / name).unlink()
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    (stuck / "again").symlink_to(stuck)
    (stuck / "gone").symlink_to(stuck / "nowhere")
    os.mkfifo(stuck / "pipe")
    document = answer(capsys, stuck)
    assert document["jobs"][0]["culprits"] == [1]
    skipped = {item["file"]: item["why"] for item in document["left_out"]}
    assert set(skipped) == {"again", "gone", "pipe"}


def test_a_single_file_is_a_folder_of_one(capsys):
    document = answer(capsys, STUCK / "fr_rank1.json")
    assert document["jobs"][0]["culprits"] == []


def test_two_jobs(tmp_path, capsys):
    for name in ("first", "second"):
        shutil.copytree(STUCK, tmp_path / "jobs" / name)
    (tmp_path / "jobs/second/stacks-rank1.txt").unlink()
    jobs = answer(capsys, tmp_path / "jobs")["jobs"]
    assert {job["job"].split(" ")[0] for job in jobs} == {"capture", "second"}
    assert len(jobs) == 2


def write_job(folder, endings):
    """A log for each rank of a job, which ends as ``endings`` says."""
    folder.mkdir(parents=True)
    for rank, ending in enumerate(endings):
        call = f'[rank{rank}]:   File "train.py", line 5, in main\n'
        head = f"[rank{rank}]: Traceback (most recent call last):\n{call}"
        (folder / f"rank{rank}.log").write_text(f"{head}[rank{rank}]: {ending}\n")


LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:23700"


def test_jobs_that_failed_come_first_by_name(tmp_path, capsys):
    # Of the larger job only complaints are left, so that nobody can be named.
    write_job(tmp_path / "large", [LOST, LOST, LOST])
    write_job(tmp_path / "small", ["ValueError: bad sample", LOST])
    document = answer(capsys, tmp_path)
    assert [(job["kind"], job["culprits"]) for job in document["jobs"]] == [
        ("exception", [0]),
        ("unknown", []),
    ]
    assert document["answer"]["headline"] == document["jobs"][0]["headline"]
    assert main(["postmortem", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "2 jobs: 1 exception (small), 1 waiting for a rank without a log (large)\n\n"
        "small: rank 0 ended with ValueError: bad sample"
    )
    assert "\n\nsmall\nrank 0 ended with ValueError: bad sample" in text  # its evidence


def test_logs_of_many_jobs_are_a_line_each(capsys):
    public = Path(__file__).parent / "public"
    names = ("device-busy", "glued-progress-bar", "megatron-nan")
    jobs = [job for name in names for job in read_folder(str(public / f"{name}.log")).jobs]
    found = diagnosed(FolderEvidence(str(public), jobs))
    show_postmortem(found, "table")
    first, rest = capsys.readouterr().out.split("\n\n", 1)
    assert " ".join(first.split()).startswith(
        "3 jobs: 2 exception (device-busy, megatron-nan), 1 waiting for a rank without a log "
        "(glued-progress-bar) Next: "
    )
    order = ["device-busy.log", "megatron-nan.log", "glued-progress-bar.log"]
    assert [line.partition(":")[0] for line in rest.splitlines() if ".log: " in line] == order
    assert rest.count("stderr of every rank") == rest.count("next time, collect") == 1
    show_postmortem(found, "line")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == order
    assert lines[1].startswith("megatron-nan.log: rank 11 ended with AssertionError")


def test_the_rank_of_a_line_is_named_once(tmp_path, capsys):
    write_job(tmp_path / "job", ["ValueError: bad sample", LOST])
    lines = answer(capsys, tmp_path / "job")["jobs"][0]["evidence"]
    assert [line["rank"] for line in lines] == [0, 1]
    assert not any(line["text"].startswith("rank") for line in lines)


def test_foreign_damaged_and_unreadable_files_are_named(stuck, capsys):
    (stuck / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(range(256)) * 4)
    (stuck / "half_rank3.json").write_bytes((stuck / "fr_rank3.json").read_bytes()[:5000])
    (stuck / "broken.gz").write_bytes(b"\x1f\x8b" + b"x" * 20)
    document = answer(capsys, stuck, code=3)
    assert document["jobs"][0]["culprits"] == [1]
    skipped = {item["file"]: item["why"] for item in document["left_out"]}
    assert {"photo.jpg", "broken.gz"} <= set(skipped)
    assert document["unread"] == ["broken.gz"]


def test_logs_without_a_failure(tmp_path, capsys):
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").write_text("step 1 loss 2.0\nTraining finished\n")
    assert main(["postmortem", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(
        "no failure in 2 logs (ranks 0-1): they end with 'Training finished' Next: collect the exit"
    )
    assert "next time, collect" not in out


@pytest.mark.parametrize("content", [None, "empty", "foreign"])
def test_nothing_to_read(content, tmp_path, capsys):
    folder = tmp_path / "job"
    if content is not None:
        folder.mkdir()
    if content == "foreign":
        (folder / "model.safetensors").write_bytes(bytes(range(256)))
    assert main(["postmortem", str(folder)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("torchcoll: error: folder: got ")
    assert err.count("\n") == 1


class Hostile:
    def __reduce__(self):
        return os.system, ("false",)


def test_what_a_hostile_pickle_needs_is_named(tmp_path, capsys):
    folder = tmp_path / ("a_folder_with_a_long_name_" * 4)
    folder.mkdir()
    dump = {"version": "2.10", "entries": [Hostile()], "pg_config": {}}
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump, 2))
    assert main(["postmortem", str(folder)]) == 3
    assert f"{os.system.__module__}.system" in capsys.readouterr().err


def test_a_format_that_there_is_not(capsys):
    assert main(["postmortem", str(STUCK), "--format", "csv"]) == 2
    assert error_text("format", "csv", "one of table, markdown, json") in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(stuck, capsys):
    (stuck / "rank0.log").chmod(0)
    skipped = answer(capsys, stuck, code=3)["left_out"]
    assert skipped[0]["file"] == "rank0.log"


PUBLIC = Path(__file__).parent / "public"


def test_a_page_of_a_dead_job_begins_with_why_it_ended(tmp_path, capsys):
    logs = tmp_path / "logs"
    logs.mkdir()
    shutil.copy(PUBLIC / "cuda-802.log", logs)
    (logs / "nccl.log").write_text("gpu7:1:1 [0] NCCL WARN Call to bind failed : Permission denied")
    pytest.importorskip("matplotlib")
    assert main(["report", str(logs), "-o", str(tmp_path / "page.md")]) == 0
    why = "CUDA is not ready for ranks 0 and 2: system not yet initialized"
    out, err = capsys.readouterr()
    assert (out.partition(" (error")[0], err) == (why, "")
    title, answer, picture, *_ = (tmp_path / "page.md").read_text().split("\n\n")
    assert title == "# Why the job ended"
    assert picture == "![What the files say of each rank](page-1.svg)"
    assert answer.startswith(f"**{why}")
    assert main([str(logs)]) == 0
    answered = [line for line in capsys.readouterr().out.splitlines() if ": torchcoll " in line]
    assert answered == [f"answered by: torchcoll postmortem {logs}", f"also: torchcoll log {logs}"]


def test_a_page_of_one_log_of_a_dead_job(tmp_path, capsys):
    """NCCL's own lines are not in it, so `log` does not read it."""
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.md"
    assert main(["report", str(PUBLIC / "cuda-802.log"), "-o", str(page)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("CUDA is not ready for ranks 0 and 2: system not yet initialized")
    assert err == ""


def test_a_page_of_results_with_a_warning_of_the_library_is_about_the_results(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    results = STUCK.parents[1] / "results/gloo-2ranks/run.jsonl"
    shutil.copy(results, tmp_path)
    shutil.copy(PUBLIC / "cuda-802.log", tmp_path)
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.md")]) == 0
    assert "CUDA is not ready" not in capsys.readouterr().out


def test_the_picture_of_a_dead_job_is_on_top_of_its_page_and_in_a_notebook(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["report", str(STUCK), "-o", str(tmp_path / "page.md")]) == 0
    _, answer, picture, *_ = (tmp_path / "page.md").read_text().split("\n\n")
    assert "rank 1 on vm stayed in user code" in answer
    assert picture == "![Who waited for whom](page-1.svg)"
    texts = (tmp_path / "page-1.svg").read_text()
    assert "waited for rank 1 in" in texts and "the cause" in texts
    found = torchcoll.postmortem(str(STUCK))
    assert [chart.title for chart in charts_of(found)] == ["Who waited for whom"]
    assert "<b>rank 1 on vm stayed in user code" in found._repr_html_()
