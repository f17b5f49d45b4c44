"""Files of one job are one job, and several jobs in one folder are told apart."""

from made_jobs import SECOND, START

from torchcoll.core.traffic import Group
from torchcoll.parts.postmortem.evidence import (
    CallSeen,
    FileRead,
    JobEvent,
    JobEvidence,
    Place,
)
from torchcoll.parts.postmortem.job_clusters import FileEvidence, jobs_of
from torchcoll.parts.postmortem.job_facts import sort_events

HOUR = 3600 * SECOND


def seen(shown, rank=None, *, what="stderr", at=None, **fields):
    """What one file says of one job; at: hours after START."""
    evidence = JobEvidence(**fields)
    evidence.files = [FileRead(shown, what, () if rank is None else (rank,))]
    if at is not None:
        evidence.first_ns, evidence.last_ns = START + at * HOUR, START + at * HOUR + SECOND
    return FileEvidence(shown, evidence)


def ranks_of_jobs(files):
    """For each job the paths of its files."""
    return sorted(sorted(file.path for file in job.files) for job in jobs_of(files))


def test_a_flat_folder_is_one_job():
    files = [seen(f"rank{r}.txt", r) for r in range(3)] + [seen("dmesg.txt", what="kernel log")]
    assert len(ranks_of_jobs(files)) == 1


def test_a_folder_for_each_node_is_one_job():
    files = [seen(f"node{r // 2}/rank{r}.txt", r) for r in range(4)]
    assert len(ranks_of_jobs(files)) == 1


def test_a_folder_for_each_job():
    files = [seen(f"{job}/node{r // 2}/rank{r}.txt", r) for job in "ab" for r in range(4)]
    jobs = jobs_of(files)
    assert sorted(job.name for job in jobs) == ["a", "b"]
    assert {len(job.files) for job in jobs} == {4}


def test_two_identities_in_one_folder():
    files = [seen("a0", 0, identities={"slurm 1"}), seen("a1", 1, identities={"slurm 1"})]
    files += [seen("b0", 0, identities={"slurm 2"}), seen("b1", 1, identities={"slurm 2"})]
    assert ranks_of_jobs(files) == [["a0", "a1"], ["b0", "b1"]]


def test_an_identity_joins_folders_and_other_kinds_of_files():
    files = [
        seen("x/a", 0, identities={"slurm 1", "torchelastic r"}),
        seen("y/b", 0, what="Flight Recorder dump", identities={"torchelastic r"}),
        seen("z/c", 1, identities={"slurm 1"}),
    ]
    assert ranks_of_jobs(files) == [["x/a", "y/b", "z/c"]]


def test_communicators_are_several_in_one_job():
    files = [
        seen("a", 0, identities={"communicator 1"}),
        seen("b", 1, identities={"communicator 2"}),
    ]
    assert ranks_of_jobs(files) == [["a", "b"]]


def test_other_sizes_and_other_days_are_other_jobs():
    assert ranks_of_jobs([seen("a/0", 0, ranks=4), seen("b/1", 1, ranks=8)]) == [["a/0"], ["b/1"]]
    days = [seen("a/0", 0, at=0), seen("b/1", 1, at=30)]
    assert ranks_of_jobs(days) == [["a/0"], ["b/1"]]
    assert ranks_of_jobs([seen("a/0", 0, at=0), seen("b/1", 1, at=10)]) == [["a/0", "b/1"]]


def test_two_dumps_of_a_rank_in_one_folder_are_of_one_job():
    assert len(ranks_of_jobs([seen("d/rank0_1", 0), seen("d/rank0_2", 0)])) == 1


def test_each_attempt_of_torchrun_ended_for_a_reason_of_its_own():
    files = [
        seen(f"logs/r_x/attempt_{a}/{r}/stderr.log", r, identities={"torchelastic r"})
        for a in range(2)
        for r in range(2)
    ]
    jobs = jobs_of(files)
    assert sorted(job.name for job in jobs) == [
        "torchelastic r attempt 0",
        "torchelastic r attempt 1",
    ]


def test_a_kernel_log_belongs_to_the_job_of_its_process():
    killed = JobEvent("killed", Place("dmesg.txt", 1), "Killed process 7", pid=7)
    other = JobEvent("killed", Place("dmesg.txt", 2), "Killed process 9", pid=9)
    files = [seen("a/rank0", 0, pids={0: 5}), seen("b/rank0", 0, pids={0: 7})]
    kernel = seen("dmesg.txt", what="kernel log", events=[killed, other])
    jobs = {job.pids[0]: job.events for job in jobs_of([*files, kernel])}
    assert jobs == {5: [], 7: [killed, other]}


def test_groups_of_one_name_and_other_ranks_are_two_groups():
    """torch's split_group gives all parts the same name."""

    def dump(rank, members):
        call = CallSeen(rank, "split:0", 1, "all_reduce", Place(f"rank{rank}"))
        group = Group("split:0", members)
        return seen(f"rank{rank}", rank, calls=[call], groups={"split:0": group},
                    last_number={(rank, "split:0"): 1})  # fmt: skip

    (job,) = jobs_of([dump(r, (0, 1) if r < 2 else (2, 3)) for r in range(4)])
    assert {key: group.ranks for key, group in job.groups.items()} == {
        "split:0": (0, 1),
        "split:0@2": (2, 3),
    }
    assert [call.group for call in job.calls] == ["split:0"] * 2 + ["split:0@2"] * 2
    assert job.last_number[3, "split:0@2"] == 1


def test_a_rank_that_had_complained_before_it_raised_is_no_cause():
    """In two files the times decide which of the events came first."""
    for at, ranks in ((1, []), (3, [0])):
        timeout = JobEvent("timeout", Place("nccl.log", 9), "timed out", rank=0, when_ns=at)
        raised = JobEvent("exception", Place("rank0.err", 5), "boom", rank=0, when_ns=2)
        assert [*sort_events(JobEvidence(events=[timeout, raised])).causes] == ranks
