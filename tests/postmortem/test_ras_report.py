"""Reports of NCCL's RAS, and what follows from them alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_jobs import calls_to, job

from tests.postmortem.logs import read_log
from torchcoll.parts.postmortem.diagnose import diagnose
from torchcoll.parts.postmortem.evidence import JobEvidence

# NCCL 2.28.9: three processes of one host, of which `errors` and `warnings` follow.
TEXT = """\
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          3            1          3        3

Communicators... (0.000s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         3         2   RUNNING  {status}

Errors
======

{errors}
Warnings
========

{warnings}"""
STOPPED = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 1090 on node 127.0.0.1 managing GPU 0

#0-0 (310425b3403e140d) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 0 managed by process 1090 on node 127.0.0.1
"""
TWO_GONE = """\
INCOMPLETE
  Missing communicator data from 2 job processes
  Process 1090 on node 127.0.0.1 managing GPU 0
  Process 1092 on node 127.0.0.1 managing GPU 0

#0-0 (310425b3403e140d) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 1 -- GPU 0 managed by process 1090 on node 127.0.0.1
  Rank 2 -- GPU 0 managed by process 1092 on node 127.0.0.1

"""
ERROR = """\
#0-0 (310425b3403e140d) ERROR
  Asynchronous error on 1 rank
  Rank {rank} reported {error} -- GPU 0 managed by process {pid} on node 127.0.0.1
"""
AHEAD = """\
#0-0 (310425b3403e140d) MISMATCH
  Communicator ranks have different AllReduce operation counts
  2 ranks have launched up to operation 5
  Rank 1 has launched up to operation 6 -- GPU 0 managed by process 1090 on node 127.0.0.1
"""


def as_text(folder: Path, errors: str = "", warnings: str = "", text: str = TEXT) -> JobEvidence:
    return read_log(folder, text.format(status="OK", errors=errors, warnings=warnings), "ras.txt")


def test_a_rank_that_does_not_answer(tmp_path):
    evidence = as_text(tmp_path, STOPPED)
    assert evidence.pids == {1: 1090}
    assert evidence.identities == {"communicator 0x310425b3403e140d"}
    (event,) = evidence.events
    assert (event.kind, event.rank, event.pid, event.place.line) == ("unanswered", 1, 1090, 27)
    result = diagnose(evidence)
    assert (result.kind, result.culprits, result.certainty) == ("stopped", (1,), "likely")
    assert [line.text for line in result.evidence] == [
        "NCCL's RAS got no answer from rank 1 on 127.0.0.1"
    ]


def test_of_several_reports_in_a_file_the_last_counts(tmp_path):
    """``ncclras >> ras.txt`` each minute: rank 2 answered late once."""
    late = STOPPED.replace("1090", "1092").replace("Rank 1", "Rank 2")
    texts = [TEXT.format(status="OK", errors=errors, warnings="") for errors in (late, STOPPED)]
    for text in ("".join(texts), texts[1] * 2):
        assert diagnose(as_text(tmp_path, text=text)).culprits == (1,)
    assert diagnose(as_text(tmp_path, text=texts[1] + TEXT)).kind == "unknown"


def test_of_two_that_do_not_answer_none_is_named_alone(tmp_path):
    errors = TWO_GONE + ERROR.format(rank=0, pid=1088, error="Remote process error")
    result = diagnose(as_text(tmp_path, errors))
    assert (result.culprits, result.candidates, result.certainty) == ((), (1, 2), "possible")
    assert "rank 0 reports Remote process error" in result.evidence[1].text


def test_counts_of_operations_name_nobody(tmp_path):
    """The rank that is ahead left out a call. It could as well wait for those that are late."""
    errors = ERROR.format(rank=2, pid=1092, error="Invalid usage")
    evidence = as_text(tmp_path, errors, AHEAD)
    result = diagnose(evidence)
    assert (result.kind, result.culprits, result.candidates) == ("unknown", (), ())
    assert [line.text for line in result.evidence] == [
        "NCCL's RAS counted AllReduce operations: 6 by rank 1, 5 by ranks 0 and 2",
        "NCCL's RAS: rank 2 reports Invalid usage",
    ]


def test_a_report_without_a_complaint(tmp_path):
    result = diagnose(as_text(tmp_path))
    assert result.kind == "unknown"
    assert "an answer from all 3 ranks" in result.evidence[0].text


@pytest.mark.parametrize(
    ("error", "candidates"),
    [
        ("Remote process error", ()),  # rank 1, which is named
        ("Unhandled CUDA error", (0, 1)),
        ("Invalid usage", ()),  # any rank may have made another call
    ],
)
def test_an_error_of_a_rank_that_answers(tmp_path, error, candidates):
    result = diagnose(
        as_text(tmp_path, STOPPED + "\n" + ERROR.format(rank=0, pid=1088, error=error))
    )
    assert result.candidates == candidates
    assert result.culprits == ((1,) if error == "Remote process error" else ())


def test_a_rank_that_is_behind_is_a_candidate_too(tmp_path):
    behind = AHEAD.replace("2 ranks have", "Rank 0 has").replace("6 --", "4 --").replace(
        "operation 5", "operation 5 -- GPU 0 managed by process 1088 on node 127.0.0.1"
    ).replace("Rank 1", "Rank 2")  # fmt: skip
    result = diagnose(as_text(tmp_path, STOPPED, behind))
    assert result.candidates == (1, 2)
    assert "5 by rank 0, 4 by rank 2" in result.evidence[1].text


def test_processes_that_are_not_listed(tmp_path):
    """RAS lists up to ten."""
    errors = "INCOMPLETE\n  Missing communicator data from 2 job processes\n\n"
    result = diagnose(as_text(tmp_path, errors))
    assert (result.kind, result.candidates) == ("unknown", ())
    assert "more processes than it lists" in result.evidence[0].text


def test_a_rank_that_complained_before_is_not_suspected(tmp_path):
    evidence = as_text(tmp_path, TWO_GONE)
    complaints = """[rank2]: Traceback (most recent call last):
[rank2]:   File "train.py", line 2, in step
[rank2]: torch.distributed.DistBackendError: NCCL error in: x, remote process exited
"""
    evidence.events += read_log(tmp_path, complaints).events
    assert diagnose(evidence).culprits == (1,)


def test_the_call_in_which_the_others_wait_is_named(tmp_path):
    """Of rank 1 there is no record; rank 2 ended after it had waited in call 10."""
    evidence = job(calls_to(0, 10, state="started"), calls_to(2, 10, state="started"), ranks=3)
    evidence.events = as_text(tmp_path, TWO_GONE).events
    result = diagnose(evidence)
    assert (result.culprits, result.waiting, result.number) == ((1,), (0, 2), 10)
    assert "ranks 0 and 2 are in call 10" in result.evidence[0].text


def test_a_log_without_a_complaint_stays_one(tmp_path):
    """What RAS says of a rank is no complaint of the rank."""
    evidence = job(ranks=3, logs=(0, 1, 2))
    evidence.events = [
        *read_log(tmp_path, "[rank0]: Connection closed by peer", "rank0.log").events,
        *as_text(tmp_path, STOPPED).events,
    ]
    assert diagnose(evidence).culprits == (1,)


def test_ranks_of_a_part_of_the_job_name_nobody(tmp_path):
    """RAS reaches the processes that share a communicator: here a group of 3 of the 6 ranks."""
    evidence = job(ranks=6, logs=range(6))
    evidence.events = as_text(tmp_path, STOPPED).events
    result = diagnose(evidence)
    assert (result.kind, result.culprits) == ("unknown", ())
    assert "no answer from rank 1" in result.evidence[0].text


def test_a_dead_process_is_not_said_to_be_killed(tmp_path):
    """DEAD: it could not be reached for a minute. Another log tells its rank."""
    errors = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 1090 on node 127.0.0.1 managing GPU 0
"""
    evidence = as_text(tmp_path, errors)
    assert diagnose(evidence).kind == "unknown"
    evidence.pids[1] = 1090
    result = diagnose(evidence)
    assert (result.kind, result.culprits, result.certainty) == ("stopped", (1,), "likely")


# NVIDIA/nccl 1911
MANY = TEXT.replace(
    "      1          3            1          3        3\n",
    "      4          8            1         32       32\n",
).replace(
    "    0         1         1         2         3         2 ",
    "    0         1         4         8        32        32 ",
)
TWO_AHEAD = """\
#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 (NVML 7) managed by process 323033 on node 10.137.190.124
"""


def test_counts_of_many_ranks(tmp_path):
    evidence = as_text(tmp_path, "", TWO_AHEAD, MANY)
    (event,) = evidence.events
    assert event.text == (
        "NCCL's RAS counted AllGather operations: 641 by ranks 12-13, 640 by ranks 0-11 and 14-31"
    )
    assert event.about == (*range(12), *range(14, 32))
    assert evidence.pids == {12: 323032, 13: 323033}
    half = "".join(TWO_AHEAD.splitlines(keepends=True)[:4]).replace("30 ranks", "16 ranks")
    (event,) = as_text(tmp_path, "", half.replace("  2 ranks", "  16 ranks"), MANY).events
    assert "641 by 16 ranks, 640 by 16 ranks" in event.text
    assert event.about == tuple(range(32))


def test_nodes_of_different_numbers_of_processes(tmp_path):
    """The table of the job has a line for each number, and the total below them."""
    text = TEXT.replace(
        "  Nodes  Processes         GPUs  Processes     GPUs\n"
        "(total)   per node  per process    (total)  (total)\n"
        "      1          3            1          3        3\n",
        "  Nodes  Processes         GPUs\n          per node  per process\n"
        "      1          2            1\n      1          1            1\n\n"
        "  Nodes  Processes         GPUs\n(total)    (total)      (total)\n"
        "      2          3            3\n",
    )
    assert diagnose(as_text(tmp_path, STOPPED, "", text)).culprits == (1,)
