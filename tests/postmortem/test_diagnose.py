"""What is concluded from the evidence of a job, for each kind of fault and for each trap."""

import pytest
from made_jobs import SECOND, START, call, calls_to, event, job

from torchcoll.parts.postmortem.diagnose import diagnose
from torchcoll.parts.postmortem.diagnosis import rank_names
from torchcoll.parts.postmortem.evidence import JobEvidence


def concluded(*parts, **options):
    """The diagnosis of this evidence, or of a job of these calls and events."""
    whole = len(parts) == 1 and isinstance(parts[0], JobEvidence)
    result = diagnose(parts[0] if whole else job(*parts, **options))
    assert not (result.culprits and result.candidates)
    assert result.headline.isprintable()
    return result


def waiting(*ranks, last=41, **more):
    return [item for rank in ranks for item in calls_to(rank, last, state="started", **more)]


def gave_up(*ranks, seconds=60.0, **more):
    return [
        event(
            "timeout", rank, "Watchdog caught collective operation timeout", seconds=seconds, **more
        )
        for rank in ranks
    ]


def lost(*ranks, seconds=10.0, **more):
    return [
        event("peer_lost", rank, "Connection closed by peer", seconds=seconds, **more)
        for rank in ranks
    ]


class TestARankThatEnded:
    def test_killed_by_the_kernel_for_its_memory(self):
        evidence = job(
            waiting(0, 1, 2),
            calls_to(3, 40),
            event(
                "killed",
                None,
                "Out of memory: Killed process 4711 (python)",
                pid=4711,
                path="dmesg.txt",
                node="node1",
            ),
            gave_up(0, 1, 2),
            nodes=2,
        )
        evidence.pids = {3: 4711, 2: 4710}
        result = concluded(evidence)
        assert (result.kind, result.detail, result.culprits) == ("out_of_memory", "kernel", (3,))
        assert (result.collective, result.number, result.group) == ("all_reduce", 41, "default")
        assert result.waiting == (0, 1, 2)
        assert result.certainty == "certain"
        assert result.headline == (
            "rank 3 on node1 was killed by the kernel's out-of-memory killer; the other 3 ranks "
            "waited for it in all_reduce number 41 of group default (certain)"
        )
        assert result.evidence[0].place.path == "dmesg.txt"

    def test_killed_and_only_complaints_of_the_others(self):
        result = concluded(event("exit", 2, "exitcode: -9", exit_code=-9), lost(0, 1, 3), ranks=4)
        assert (result.kind, result.detail, result.culprits) == ("killed", "SIGKILL", (2,))
        assert result.certainty == "certain"

    def test_an_exception_and_the_launchers_sigterm_to_the_rest(self):
        result = concluded(
            event("exception", 1, "ValueError: bad sample 17", seconds=5),
            event("exit", 1, "exitcode 1", exit_code=1, seconds=5.2),
            [event("killed", r, "received SIGTERM", signal=15, seconds=6) for r in (0, 2, 3)],
        )
        assert (result.kind, result.culprits) == ("exception", (1,))
        assert "ValueError: bad sample 17" in result.headline

    def test_complaints_before_the_exit_are_no_failure_of_its_own(self):
        result = concluded(
            event("exception", 1, "OSError: [Errno 28]", seconds=5),
            event("disk_full", 1, "OSError: [Errno 28] No space left on device", seconds=5),
            lost(0, seconds=6),
            event("exception", 0, "ValueError: in a finally", seconds=6.5, line=9),
            ranks=2,
        )
        assert (result.kind, result.culprits) == ("disk_full", (1,))

    def test_exceptions_of_communication_are_complaints(self):
        result = concluded(
            event("exception", 0, "torch.distributed.DistBackendError: NCCL error in: x"),
            event("exception", 1, "torch.OutOfMemoryError: CUDA out of memory"),
            event("out_of_memory", 1, "torch.OutOfMemoryError: CUDA out of memory"),
            ranks=2,
        )
        assert (result.kind, result.detail, result.culprits) == ("out_of_memory", "device", (1,))

    def test_the_first_of_two_failures(self):
        result = concluded(
            event("exception", 0, "KeyError: 'x'", seconds=30),
            event("exception", 2, "ValueError: y", seconds=3),
            nodes=1,
            ranks=3,
        )
        assert result.culprits == (2,)

    def test_clocks_of_two_hosts_do_not_tell_who_failed_first(self):
        result = concluded(
            event("exception", 0, "KeyError: 'x'", seconds=4),
            event("exception", 2, "ValueError: y", seconds=3),
            nodes=1,
            ranks=3,
        )
        assert result.culprits == (0, 2)
        assert result.certainty == "likely"

    def test_killed_while_it_waited_is_not_the_cause(self):
        """A person, or the launcher after its grace, kills ranks of a job that hangs."""
        result = concluded(
            waiting(0, 1, 2),
            calls_to(3, 40),
            event("exit", 0, "exitcode: -9", exit_code=-9, seconds=900),
        )
        assert result.culprits == (3,)
        assert result.kind == "stopped"

    def test_sigkill_of_a_victim_after_its_complaint(self):
        result = concluded(
            lost(0, 1, seconds=5),
            event("exit", 0, "exitcode: -9", exit_code=-9, seconds=40),
            event("exception", 2, "RuntimeError: worker died", seconds=4),
            ranks=3,
        )
        assert (result.kind, result.culprits) == ("exception", (2,))

    def test_all_ranks_fail_alike(self):
        result = concluded(
            [event("exception", r, "FileNotFoundError: c.yaml", seconds=1) for r in range(4)]
        )
        assert result.culprits == (0, 1, 2, 3)
        assert result.kind == "exception"

    def test_a_failure_beside_missing_files_is_not_certain(self):
        result = concluded(event("exception", 1, "ValueError: x"))
        assert result.culprits == (1,)
        assert result.certainty == "likely"
        assert any(
            "no file says anything about ranks 0 and 2-3" in reason for reason in result.reasons
        )

    def test_a_lost_node(self):
        result = concluded(
            event("node_failed", None, "Node failure on node1", node="node1"),
            lost(0, 1),
            nodes=2,
        )
        assert (result.kind, result.culprits, result.nodes) == ("node_failed", (2, 3), ("node1",))

    def test_canceled_at_the_time_limit(self):
        result = concluded(event("canceled", None, "CANCELLED DUE TO TIME LIMIT"))
        assert (result.kind, result.detail) == ("canceled", "time limit")
        assert result.culprits == result.candidates == ()

    def test_a_time_limit_of_a_job_that_hung(self):
        evidence = job(
            waiting(0, 1, 3),
            calls_to(2, 40),
            event("canceled", None, "CANCELLED DUE TO TIME LIMIT"),
        )
        assert concluded(evidence).culprits == (2,)

    def test_sigterm_alone_to_all(self):
        result = concluded([event("killed", r, "SIGTERM", signal=15) for r in range(4)])
        assert set(result.culprits) in (set(), {0, 1, 2, 3})


class TestCallsThatDiffer:
    def test_another_size_of_one_rank(self):
        odd = [*calls_to(2, 40), call(2, 41, size=(512,), state="started")]
        result = concluded(waiting(0, 1, 3), odd)
        assert (result.kind, result.detail, result.culprits) == ("mismatch", "size", (2,))
        assert result.number == 41
        assert result.certainty == "certain"
        assert result.headline == (
            "rank 2 passed a different size than 3 other ranks at all_reduce number 41 of group "
            "default (certain)"
        )

    def test_shapes_of_as_many_elements_are_alike(self):
        same = [*calls_to(1, 40), call(1, 41, size=(32, 32), state="started")]
        result = concluded(waiting(0), same, ranks=2)
        assert result.kind != "mismatch"

    def test_another_dtype(self):
        odd = [*calls_to(2, 40), call(2, 41, dtype="bfloat16", state="started")]
        result = concluded(waiting(0, 1, 3), odd)
        assert (result.kind, result.detail, result.culprits) == ("mismatch", "dtype", (2,))

    def test_two_ranks_with_two_orders_are_both_named(self):
        first = [*calls_to(0, 4), call(0, 5, "broadcast", state="started"), call(0, 6)]
        second = [*calls_to(1, 4), call(1, 5, state="started"), call(1, 6, "broadcast")]
        result = concluded(first, second, ranks=2)
        assert (result.kind, result.detail, result.culprits) == ("mismatch", "collective", (0, 1))

    @pytest.mark.parametrize(("members", "culprits"), [((2, 3), (0,)), ((1, 2), (0, 1))])
    def test_the_row_beside_it_tells_which_of_two_is_wrong(self, members, culprits):
        odd = [call(0, 5, "all_gather", group="3", state="started")]
        usual = [call(1, 5, group="3", state="started")]
        beside = [call(rank, 5, group="4") for rank in members]
        result = concluded(odd, usual, beside, groups={"3": (0, 1), "4": members})
        assert (result.kind, result.detail, result.culprits) == ("mismatch", "collective", culprits)

    def test_two_against_two_are_all_named(self):
        odd = [
            c for r in (2, 3) for c in (*calls_to(r, 40), call(r, 41, "broadcast", state="started"))
        ]
        result = concluded(waiting(0, 1), odd)
        assert result.culprits == (0, 1, 2, 3)

    def test_a_skipped_call(self):
        names = ["all_reduce", "broadcast", "all_gather", "reduce_scatter"]
        usual = [
            call(r, n + 1, name, state="started" if n else "completed")
            for r in (0, 1, 2)
            for n, name in enumerate(names)
        ]
        skipped = [
            call(3, n + 1, name, state="started" if n else "completed")
            for n, name in enumerate([names[0], *names[2:]])
        ]
        result = concluded(usual, skipped)
        assert (result.kind, result.culprits, result.number) == ("mismatch", (3,), 2)

    def test_uneven_splits_are_no_mismatch(self):
        parts = [call(r, 1, "all_to_all", size=(10 + r,), state="started") for r in range(4)]
        assert concluded(parts).kind != "mismatch"

    def test_a_difference_that_completed_is_harmless(self):
        odd = calls_to(2, 40)
        odd[19] = call(2, 20, size=(7,))
        result = concluded(waiting(0, 1, 3), odd)
        assert (result.kind, result.culprits) == ("stopped", (2,))

    def test_an_exception_before_the_barrier_of_a_finally(self):
        odd = [*calls_to(2, 40), call(2, 41, "barrier", size=None, state="started")]
        failed = event("exception", 2, "ValueError: x", seconds=4.05)
        result = concluded(waiting(0, 1, 3), odd, failed)
        assert (result.kind, result.culprits) == ("exception", (2,))

    def test_ring_buffers_that_lost_the_beginning(self):
        """Numbers are compared, not positions in the buffer."""
        usual = [item for item in waiting(0, 1, 3) if item.number > 35]
        odd = [item for item in calls_to(2, 40) if item.number > 20]
        result = concluded(usual, odd)
        assert (result.kind, result.culprits, result.number) == ("stopped", (2,), 41)

    def test_torchs_own_report(self):
        text = "Detected mismatch between collectives on ranks. Rank {} is running x, but Rank 2"
        events = [event("mismatch", r, text.format(r), about=(2,)) for r in (0, 1, 3)]
        result = concluded(events)
        assert (result.kind, result.culprits) == ("mismatch", (2,))

    def test_a_report_that_names_nobody(self):
        text = "op.preamble.length <= op.nbytes. 8192 vs 4096"
        result = concluded(event("mismatch", 1, text), lost(0, 2, 3))
        assert result.culprits == ()
        assert result.candidates == (0, 1, 2, 3)

    def test_a_truncated_message_does_not_tell_what_differs(self):
        """It follows from another collective as well, though NCCL's text speaks of sizes."""
        text = "message truncated : receiving 87424 bytes instead of 65536. There may be a mismatch"
        result = concluded(event("mismatch", 2, f"{text} in collective sizes"), ranks=3)
        assert (result.kind, result.detail, result.candidates) == ("mismatch", None, (0, 1, 2))
        assert "another collective, another size or another order" in result.reasons[0]


class TestWhoWaitsForWhom:
    def test_a_rank_that_is_behind(self):
        result = concluded(waiting(0, 1, 3), calls_to(2, 40))
        assert (result.kind, result.culprits, result.waiting) == ("stopped", (2,), (0, 1, 3))
        assert result.certainty == "certain"

    def test_without_states_it_is_likely(self):
        quiet = {"state": "scheduled", "reliable_state": False}
        parts = [c for r in (0, 1, 3) for c in calls_to(r, 41, reliable_state=False)]
        result = concluded(parts, calls_to(2, 40, **quiet))
        assert (result.culprits, result.certainty) == ((2,), "likely")

    @pytest.mark.parametrize("last_ran", [(67, 0, 66), None])
    def test_the_call_in_which_ranks_wait_is_the_first_that_did_not_complete(self, last_ran):
        """Rank 1 was killed in call 9, and the others had issued call 10 by then. Rank 0 has states
        in its Flight Recorder; the rings of ranks 1 and 2 have none.
        """
        recorded = [*calls_to(0, 8), call(0, 9, state="started"), call(0, 10, state="scheduled")]
        rings = [
            call(rank, number, state="scheduled", reliable_state=False)
            for rank, last in ((0, 10), (1, 9), (2, 10))
            for number in range(1, last + 1)
        ]
        evidence = job(rings, recorded, ranks=3)
        for rank, seconds in enumerate(last_ran or ()):
            evidence.alive_ns[rank] = START + seconds * SECOND
        result = concluded(evidence)
        assert (result.culprits, result.waiting, result.number) == ((1,), (0, 2), 9)
        # Rank 1 made this call too. Only its death tells that it is not in it as the others are.
        assert result.certainty == ("certain" if last_ran else "likely")
        assert "call 10, which the others had issued" in result.reasons[0]

    def test_a_count_of_completed_calls_leaves_the_call_open(self):
        """Calls 7 to 10 were issued and not known to have completed."""
        evidence = job(ranks=3)
        evidence.last_number, evidence.last_completed = {(0, "0"): 10}, {(0, "0"): 6}
        result = concluded(evidence)
        assert (result.waiting, result.number) == ((0,), None)
        evidence.last_number = {(0, "0"): 7}
        assert concluded(evidence).number == 7

    def test_in_user_code(self):
        stack = event("stack", 2, "preprocess (data.py:88)")
        result = concluded(waiting(0, 1, 3), calls_to(2, 40), stack)
        assert (result.kind, result.culprits) == ("user_code", (2,))
        assert "data.py:88" in result.headline

    @pytest.mark.parametrize(("seconds", "kind"), [(0.05, "stopped"), (4.5, "user_code")])
    def test_a_stack_from_before_the_last_call_explains_nothing(self, seconds, kind):
        """40 calls, one each 0.1 s. At 0.05 s the model was loaded; at 4.5 s the rank is away."""
        stack = event("stack", 2, "in user code: train.py:12 load_weights", seconds=seconds)
        result = concluded(waiting(0, 1, 3), calls_to(2, 40), stack)
        assert (result.kind, result.culprits) == (kind, (2,))
        assert ("load_weights" in result.headline) == (kind == "user_code")

    def test_ended_early(self):
        result = concluded(waiting(0, 1, 3), calls_to(2, 40), event("ending", 2, "done"))
        assert (result.kind, result.culprits) == ("missing_call", (2,))

    def test_through_another_group(self):
        """Rank 0 waits for rank 1, and rank 1 for rank 3, which is the one that stopped."""
        parts = [
            *calls_to(0, 3, group="row0", state="started"),
            *calls_to(1, 2, group="row0"),
            *calls_to(1, 5, group="column1", state="started"),
            *calls_to(3, 4, group="column1"),
        ]
        groups = {"row0": (0, 1), "column1": (1, 3)}
        result = concluded(parts, groups=groups)
        assert result.culprits == (3,)
        assert set(result.waiting) == {0, 1}

    def test_groups_in_different_orders(self):
        """Rank 0 begins with its row, rank 1 with its column, and so on around the mesh."""
        groups = {"row0": (0, 1), "row1": (2, 3), "column0": (0, 2), "column1": (1, 3)}
        parts = [
            call(0, 1, group="row0", state="started"),
            call(1, 1, group="column1", state="started"),
            call(3, 1, group="row1", state="started"),
            call(2, 1, group="column0", state="started"),
        ]
        evidence = job(parts, groups=groups)
        evidence.last_number = {
            (r, g): 0
            for g, members in groups.items()
            for r in members
            if (r, g) not in {(c.rank, c.group) for c in parts}
        }
        result = concluded(evidence)
        assert (result.kind, result.detail) == ("mismatch", "group")
        assert result.culprits == (0, 1, 2, 3)

    def test_two_ranks_that_both_receive(self):
        parts = [
            call(0, 1, "recv", peer=1, state="started"),
            call(1, 1, "recv", peer=0, state="started"),
        ]
        result = concluded(parts, ranks=2)
        assert (result.kind, result.detail, result.culprits) == ("mismatch", "order", (0, 1))

    def test_a_send_whose_receiver_is_in_it_waits_for_nobody(self):
        parts = [
            call(0, 1, "send", peer=1, state="started"),
            call(1, 1, "recv", peer=0, state="started"),
        ]
        assert concluded(parts, ranks=2).culprits == ()

    def test_one_rank_that_makes_a_call_of_its_own(self):
        others = [c for r in (1, 2, 3) for c in calls_to(r, 40)]
        ended = [event("ending", r) for r in (1, 2, 3)]
        result = concluded(waiting(0), others, ended)
        assert (result.kind, result.culprits) == ("missing_call", (0,))
        assert "which the others did not make" in result.headline

    def test_a_rank_that_gave_up_itself_is_not_the_one_that_stopped(self):
        """A pipeline: what the rank waits for is a message, which the source does not record."""
        result = concluded(waiting(0, 1, 3), calls_to(2, 40), gave_up(0, 1, 2, 3))
        assert result.culprits != (2,)

    def test_many_behind_one_are_not_told_apart(self):
        """A pipeline whose messages are not recorded: only the first stage made the barrier."""
        others = [c for r in (1, 2, 3) for c in calls_to(r, 40)]
        result = concluded(waiting(0), others)
        assert (result.culprits, result.candidates) == ((), (1, 2, 3))

    def test_a_rank_that_is_behind_because_it_lost_its_peer(self):
        """Rank 2 waited for a message of rank 1, which is not recorded; rank 1 left nothing."""
        parts = [waiting(0, 3), calls_to(2, 40), lost(0, 2, 3)]
        result = concluded(*parts)
        assert (result.culprits, result.candidates) == ((), (1, 2))

    def test_a_group_whose_members_are_not_known(self):
        """gloo's Flight Recorder names no members: a rank that waits there is not the cause."""
        parts = [
            *calls_to(0, 8, group="row"),
            call(0, 9, group="row", state="scheduled"),
            *calls_to(2, 9, group="column", state="scheduled"),
            *calls_to(0, 8, group="column"),
        ]
        result = concluded(parts, ranks=3)
        assert result.culprits == ()


class TestARankWithoutFiles:
    def test_all_others_are_in_the_call(self):
        result = concluded(waiting(0, 1, 3))
        assert (result.kind, result.culprits, result.certainty) == ("stopped", (2,), "likely")

    def test_without_states_it_is_a_candidate(self):
        parts = [c for r in (0, 1, 3) for c in calls_to(r, 41, reliable_state=False)]
        result = concluded(parts)
        assert result.culprits == ()

    def test_two_without_files_are_candidates(self):
        result = concluded(waiting(0, 1))
        assert (result.culprits, result.candidates) == ((), (2, 3))
        assert result.certainty == "possible"

    def test_two_without_files_and_one_is_blamed(self):
        result = concluded(waiting(0, 1), lost(0, 1, about=(3,)))
        assert result.culprits == (3,)

    def test_only_complaints_that_name_nobody(self):
        """Rank 2 is named if its log is there and says nothing, and not if it is missing: the
        others may have made different calls, and the log of one of them is lost.
        """
        result = concluded(lost(0, 1, 3), logs=[0, 1, 2, 3])
        assert (result.culprits, result.certainty) == ((2,), "likely")
        result = concluded(lost(0, 1, 3))
        assert result.culprits == result.candidates == ()

    def test_the_number_of_ranks_is_not_known(self):
        evidence = job(waiting(0, 1, 3))
        evidence.ranks = None
        evidence.groups.clear()
        assert concluded(evidence).culprits == ()

    def test_one_record_does_not_clear_the_others(self):
        """Rank 3 is in a call alone: it may be the wrong one, and rank 2 one that waits."""
        result = concluded(waiting(3), lost(0, 1, 3))
        assert result.culprits == ()

    def test_a_rank_that_overslept_complains_last(self):
        """Rank 2 slept, the others gave up, and the log of rank 1 is missing."""
        result = concluded(gave_up(0, 3), lost(2, seconds=90))
        assert result.culprits == ()

    def test_blame_leads_to_the_one_without_a_complaint(self):
        parts = [lost(0, about=(1,)), lost(1, about=(2,)), lost(3, about=(1,))]
        result = concluded(*parts, logs=[0, 1, 2, 3])
        assert result.culprits == (2,)


class TestLink:
    def test_a_link(self):
        text = "NET/IB : Got completion from peer 10.0.0.2 with status=12"
        fault = event("link", 0, text, addresses=("10.0.0.2",), node="node0")
        evidence = job(waiting(0, 1, 2, 3), gave_up(0, 1, 2, 3), fault, nodes=2)
        result = concluded(evidence)
        assert (result.kind, result.culprits, result.nodes) == ("link", (), ("node0", "10.0.0.2"))
        assert result.certainty == "likely"
        assert "between node0 and 10.0.0.2" in result.headline

    def test_all_in_one_call_and_nothing_else(self):
        result = concluded(waiting(0, 1, 2, 3), gave_up(0, 1, 2, 3))
        assert (result.kind, result.culprits, result.candidates) == ("unknown", (), ())
        assert result.number == 41
        assert result.collect_next

    def test_a_rank_of_which_nothing_says_how_it_ended(self):
        """Who is certain, why is not: the launcher knows. With its line there is nothing to ask."""
        stopped = (calls_to(1, 40), waiting(0, 2, 3))
        result = concluded(*stopped)
        assert (result.kind, result.certainty, result.culprits) == ("stopped", "certain", (1,))
        assert "launcher" in result.collect_next[0]
        killed = event("killed", 1, "failed (exitcode: -9)", signal=9)
        assert concluded(*stopped, killed).collect_next == []

    def test_the_last_call_without_a_state_is_no_wait(self):
        """gloo records no states: the rank may have left the call and failed after it."""
        quiet = calls_to(1, 41, state="scheduled", reliable_state=False)
        exits = [event("exit", r, "exited with exit code 1", exit_code=1) for r in range(4)]
        result = concluded(quiet, exits)
        assert (result.kind, result.waiting, result.number) == ("unknown", (), None)
        result = concluded(quiet, exits, lost(1))
        assert (result.kind, result.waiting, result.number) == ("unknown", (1,), 41)

    def test_what_cannot_be_attributed_is_shown(self):
        """An exit code may follow from another rank, and of two processes no rank is known."""
        exit_code = event("exit", 3, "task 3: Exited with exit code 1", exit_code=1)
        killed = event("killed", None, "failed (exitcode: -9) local_rank: 1", signal=9, pid=17)
        stack = event("stack", None, "in user code: data.py:88 tokenize", pid=18)
        waits = event("stack", None, "in all_reduce", collective="all_reduce", pid=19)
        result = concluded(exit_code, killed, stack, waits)
        assert (result.kind, result.culprits) == ("unknown", ())
        assert [(line.rank, line.text) for line in result.evidence] == [
            (None, "process 17: failed (exitcode: -9) local_rank: 1"),
            (3, "task 3: Exited with exit code 1"),
            (None, "process 18: in user code: data.py:88 tokenize"),
        ]

    def test_all_ended_well(self):
        assert concluded([event("ending", r) for r in range(4)]).kind == "none"

    def test_a_difference_that_the_job_survived_is_told(self):
        """gloo adds what it gets: int32 on rank 1 has as many bytes as float32 elsewhere."""
        odd = [call(1, n, dtype="int32" if n == 27 else "float32") for n in range(1, 31)]
        others = [calls_to(rank, 30) for rank in (0, 2, 3)]
        result = concluded(odd, *others, [event("ending", r) for r in range(4)])
        assert (result.kind, result.culprits) == ("none", ())
        assert result.details == [
            "but call 27 of group default differs in dtype: all_reduce of [1024] float32 on ranks "
            "0 and 2-3, all_reduce of [1024] int32 on rank 1: its result may be wrong"
        ]

    def test_nothing(self):
        result = concluded()
        assert (result.kind, result.certainty) == ("unknown", "unknown")


@pytest.mark.parametrize("kept", [[0, 1], [0, 2], [1, 3], [2, 3], [0], [2], [0, 1, 3], [1, 2, 3]])
def test_half_of_the_dumps_never_names_an_innocent(kept):
    parts = {r: calls_to(r, 40) if r == 2 else waiting(r) for r in range(4)}
    result = concluded(*(parts[r] for r in kept))
    assert result.culprits in ((), (2,))
    assert not result.candidates or 2 in result.candidates


@pytest.mark.parametrize(
    ("ranks", "nodes", "name"),
    [
        ([3], ["a"] * 4, "rank 3 on a"),
        ([5], ["a"] * 4, "rank 5"),
        ([0, 1], ["a"] * 4, "ranks 0-1 on a"),
        ([0, 1, 2, 5], ["a", "a", "a", "b", "b", "b"], "ranks 0-2 and 5 (a, b)"),
        ([0, 9], ["a"] * 4, "ranks 0 and 9"),
    ],
)
def test_ranks_are_named_with_their_nodes(ranks, nodes, name):
    assert rank_names(job(nodes=nodes), ranks) == name
