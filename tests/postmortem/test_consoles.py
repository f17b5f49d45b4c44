"""What a console tells of ranks: handled exceptions, ranks without a word, calls in tracebacks, and
which files are of one job.
"""

# ruff: noqa: E501
# Lines of logs are as long as they are.
import json

import pytest

from torchcoll.cli import main

TABLE_HEAD = "Root Cause (first observed failure):\n"


def answered(path, capsys, *options):
    """(first paragraph of the answer, the first job of the JSON)."""
    assert main(["postmortem", str(path), *options]) == 0
    first = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    main(["postmortem", str(path), "--format", "json"])
    return first, json.loads(capsys.readouterr().out)["jobs"]


def failed(rank, code, text="Signal", first=False):
    """torchrun's row of a rank."""
    head = TABLE_HEAD if first else ""
    return (
        f"{head}[0]:\n  time      : 2026-11-28_10:00:00\n  host      : node1\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {700 + rank})\n"
        f"  error_file: <N/A>\n  traceback : {text}\n"
    )


def traceback(
    rank, line=74, call="all_reduce", error="Timed out waiting 4000ms for recv", mark=True
):
    """A traceback of a rank in a call of torch, as torchrun --tee prints it."""
    begin = f"[default{rank}]:" + (f"[rank{rank}]: " if mark else "")
    return "".join(
        begin + text + "\n"
        for text in (
            "Traceback (most recent call last):",
            f'  File "/app/job.py", line {line}, in step',
            f"    dist.{call}(x)",
            f'  File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 1, in {call}',
            f"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] {error}",
        )
    )


def handled(rank, mark=""):
    lines = (
        "Traceback (most recent call last):",
        '  File "/app/job.py", line 12, in load',
        "    raise ValueError(1)",
        "ValueError: cannot parse sample 77",
    )
    return "".join(f"[default{rank}]:{mark}{line}\n" for line in lines)


def steps(rank, first=0, last=3):
    return "".join(f"[default{rank}]:step {step} loss 0.5\n" for step in range(first, last))


ALL_STEPS = "".join(map(steps, range(4)))


@pytest.mark.parametrize("mark", [False, True])
def test_an_exception_that_was_handled_accuses_nobody(mark, tmp_path, capsys):
    """Rank 2 goes on with its steps; rank 1 is the one that is silent."""
    path = tmp_path / "console.log"
    text = ALL_STEPS + handled(2) + steps(2, 3, 5)
    text += "".join(traceback(rank, mark=mark) for rank in (0, 2, 3))
    path.write_text(text + failed(0, 1, first=True) + failed(2, 1) + failed(3, 1) + failed(1, -15))
    _, (job,) = answered(path, capsys)
    assert job["culprits"] == [1]


def test_an_exception_that_ended_its_rank_does(tmp_path, capsys):
    path = tmp_path / "console.log"
    text = ALL_STEPS + handled(2, "[rank2]: ")
    text += "".join(traceback(rank, error="Connection closed by peer") for rank in (0, 1, 3))
    path.write_text(text)
    first, (job,) = answered(path, capsys)
    assert job["culprits"] == [2]
    assert "fix app/job.py:12" in first


def test_silence_is_no_proof_where_the_others_failed_in_different_calls(tmp_path, capsys):
    """Rank 2 skipped a call, and the launcher ended rank 0 just before it gave up as well."""
    path = tmp_path / "console.log"
    text = ALL_STEPS + traceback(1) + traceback(3) + traceback(2, 79, "all_gather")
    rows = "".join(failed(rank, 1, first=rank == 1) for rank in (1, 2, 3))
    path.write_text(text + rows + failed(0, -15))
    _, (job,) = answered(path, capsys)
    assert job["culprits"] == []
    assert {0, 2} <= set(job["candidates"])


def test_tracebacks_of_all_ranks_show_another_call(tmp_path, capsys):
    path = tmp_path / "console.log"
    text = ALL_STEPS + "".join(map(traceback, (0, 2, 3))) + traceback(1, 79, "all_gather")
    path.write_text(text + "".join(failed(rank, 1, first=rank == 0) for rank in range(4)))
    first, (job,) = answered(path, capsys)
    assert (job["kind"], job["culprits"]) == ("mismatch", [1])
    assert "same collectives" in first


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (1, "rank 3 on node1 ended with exit code 1, without an error of its own"),
        (-6, "Probably rank 3 on node1 ended the job: it was killed by SIGABRT; the other 3 ranks"),
        (None, "rank 3 did not make all_reduce"),  # not in the table: it ended with 0
    ],
)
def test_a_rank_that_left_without_a_word(code, says, tmp_path, capsys):
    path = tmp_path / "console.log"
    text = ALL_STEPS + "".join(
        traceback(rank, error="Connection closed by peer") for rank in range(3)
    )
    own = failed(3, code, first=True) if code else ""
    path.write_text(text + own + "".join(failed(rank, 1) for rank in range(3)))
    first, (job,) = answered(path, capsys)
    assert job["culprits"] == [3]
    assert says in first


def test_without_its_lines_the_first_that_ended_is_not_named(tmp_path, capsys):
    """The reason may be in its own log: it may have given up waiting for another rank."""
    path = tmp_path / "torchrun.log"
    path.write_text(failed(1, 1, first=True) + "".join(failed(rank, -15) for rank in (0, 2)))
    first, (job,) = answered(path, capsys)
    assert job["culprits"] == []
    assert first.startswith("rank 1 on node1 was the first that torchrun saw ending")


def write_run(folder, port):
    """A console (--tee) and the logs of its ranks (--log-dir)."""
    error = f"Connection closed by peer [127.0.0.1]:{port}"
    for rank in range(2):
        log = folder / f"logs/x_{port}/attempt_0/{rank}/stderr.log"
        log.parent.mkdir(parents=True)
        text = traceback(rank, error=error).replace(f"[default{rank}]:", "")
        log.write_text(text)
    text = "".join(traceback(rank, error=error) for rank in range(2))
    (folder / "torchrun.log").write_text(
        ALL_STEPS + text + failed(2, -9, first=True) + failed(0, 1) + failed(1, 1)
    )


def test_a_console_and_the_logs_of_its_ranks_are_one_job(tmp_path, capsys):
    write_run(tmp_path, 1234)
    _, jobs = answered(tmp_path, capsys)
    assert [job["culprits"] for job in jobs] == [[2]]


def test_the_console_of_another_run_is_another_job(tmp_path, capsys):
    write_run(tmp_path / "a", 1234)
    write_run(tmp_path / "b", 5678)
    (tmp_path / "a" / "torchrun.log").rename(tmp_path / "b.log")
    (tmp_path / "b" / "torchrun.log").rename(tmp_path / "a.log")
    _, jobs = answered(tmp_path, capsys)
    files = [{file["file"].partition("/")[0] for file in job["files"]} for job in jobs]
    assert sorted(map(sorted, files)) == [["a", "b.log"], ["a.log", "b"]]


def test_ctrl_c_shows_where_each_rank_stood(tmp_path, capsys):
    """Tracebacks of KeyboardInterrupt are stacks: rank 1 sleeps, the others wait for it."""
    path = tmp_path / "console.log"
    waits = "".join(traceback(rank).replace("RuntimeError: [/py", "X [/py") for rank in (0, 2))
    waits = waits.replace(
        "X [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
        "Timed out waiting 4000ms for recv",
        "KeyboardInterrupt",
    )
    sleeps = handled(1, "[rank1]: ").replace(
        "ValueError: cannot parse sample 77", "KeyboardInterrupt"
    )
    agent = "W1128 10:00:00.0 1 torch/distributed/elastic/agent/server/api.py:719] Received 2 death signal, shutting down workers\n"
    path.write_text(ALL_STEPS + agent + waits + sleeps)
    first, (job,) = answered(path, capsys)
    assert (job["kind"], job["culprits"]) == ("user_code", [1])
    assert "app/job.py:12" in first


def test_a_line_for_a_pager(tmp_path, capsys):
    path = tmp_path / "paste.log"
    path.write_text("[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert main(["postmortem", str(path), "--format", "line"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("an uncorrectable memory error of the GPU ended rank 3. Next: drain")


PASTES = {
    # vllm 3688
    "(RayWorkerVllm pid=41) ERROR 03-28 21:38:23 ray_utils.py:44] Cuda failure 'invalid argument'\n": (
        "a CUDA error ended process 41: invalid argument"
    ),
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 8, in main\n    data = open(path)\n'
    "FileNotFoundError: [Errno 2] No such file or directory: 'data.json'\n": (
        "a rank ended with FileNotFoundError: [Errno 2] No such file or directory: 'data.json' "
        "[app/train.py:8 main]"
    ),
    "node1:71:99 [0] init.cc:17 NCCL WARN Something that no entry of the table knows\n": (
        "not tell what happened first; NCCL WARN Something that no entry of the table knows"
    ),
}


@pytest.mark.parametrize("text", PASTES)
def test_more_pastes(text, tmp_path, capsys):
    path = tmp_path / "paste.log"
    path.write_text(text)
    first, _ = answered(path, capsys)
    assert PASTES[text] in first


@pytest.mark.parametrize(("told", "named"), [(True, [1]), (False, [])])
def test_a_rank_that_sigterm_does_not_end_is_stopped(told, named, tmp_path, capsys):
    """If no line has torchrun's SIGTERM, somebody may have killed the rank."""
    sent = "W1129 10:00:00.1 1 api.py:1028] Sending process 701 closing signal SIGTERM\n" * told
    rows = failed(1, -9, "Signal 9 (SIGKILL) received by PID 701") + failed(0, 1, first=True)
    (tmp_path / "console.log").write_text(
        f"[default1]:step 3\n{traceback(0)}{sent}Failures:\n{rows}"
    )
    _, (job,) = answered(tmp_path, capsys)
    assert job["culprits"] == named
