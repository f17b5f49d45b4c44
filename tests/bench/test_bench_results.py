"""What rank 0 makes of what the ranks sent, by hand. Real ranks are in the other tests here."""

from torchcoll.bench.recorder import result_of_pair, results_of
from torchcoll.core.case import Case, size_case
from torchcoll.core.result import Verification

CASE = Case("all_reduce", 16, "float32", "sum", None, True, "synchronized", "gloo", "cpu")


def sent(cold, checked=None, wrong=0, connect=None):
    words = {"cold": [cold, cold + 1], "cold_start": [cold, cold + 50], "ramp_up": [], "warmup": []}
    words["connect"] = connect
    if checked is None:
        return words
    return {**words, "checked": checked, "wrong": wrong, "changed": 0}


def test_sub_groups():
    """Ranks 0 and 2, and 1 alone; rank 2 has a wrong element. Two batches of one call each."""
    gathered = [sent(10, 4), sent(20, 4), sent(30, 4, wrong=1)]
    steady = [[{"host": [batch + rank]} for rank in range(3)] for batch in (100, 200)]
    case = Case(**{**CASE.to_json(), "group": "list"})
    facts = {"status": "ok", "batches": [1, 1], "steady_after": 2}
    pair, alone = results_of([(0, 2), (1,)], size_case(case, 2), gathered, steady, **facts)
    assert (pair.case.group, pair.members, pair.ranks) == ("list/0", [0, 2], 2)
    assert pair.cold_ns == [[10, 11], [30, 31]]
    assert pair.cold_start_ns == [[10, 60], [30, 80]]
    assert pair.time_ns == {"host": [[100, 200], [102, 202]]}
    assert pair.verification == Verification(8, 1, (2,))
    assert (pair.status, pair.reason) == ("wrong", "1 of 8 elements wrong")
    assert (alone.case.group, alone.members, alone.ranks) == ("list/1", [1], 1)
    assert (alone.status, alone.time_ns) == ("ok", {"host": [[101, 201]]})
    assert not (pair.warmup_ns or pair.connect_ns or pair.warnings)


def test_a_case_that_did_not_run():
    """Nobody has called: what the ranks sent is of no use."""
    gathered = [{}, {}]
    (result,) = results_of(
        [(0, 1)], size_case(CASE, 2), gathered, [], status="skipped", reason="no"
    )
    assert (result.status, result.reason, result.members) == ("skipped", "no", ())
    assert (result.count, result.size_bytes, result.cold_ns) == (4, 16, ())


def test_what_a_reader_is_warned_of():
    gathered = [sent(10, connect=7), sent(20, connect=8)]
    steady = [[{"device": [1], "issue": []}] * 2]
    (result,) = results_of([(0, 1)], size_case(CASE, 2), gathered, steady, calls_per_sample=10)
    assert result.connect_ns == [7, 8]
    assert result.time_ns == {"device": [[1], [1]]}, "a clock without samples is none"
    assert result.verification is None
    assert result.warnings == [
        "rank 0 saw no steady state in the first 2 calls",
        "each sample is the mean of up to 10 calls: events cost too much here",
    ]


def test_a_pair_of_nodes():
    """Ranks 0 and 1 of one node meet 4 and 5 of another; two elements are wrong on rank 5."""
    gathered = [[[9], [1, 2], [4, 0]]] * 3 + [[[9], [3, 4], [4, 2]]]
    result = result_of_pair(CASE, [0, 1, 4, 5], gathered)
    assert (result.ranks, result.members, result.batches) == (4, [0, 1, 4, 5], [2])
    assert result.time_ns == {"host": [[1, 2]] * 3 + [[3, 4]]}
    assert result.verification == Verification(16, 2, (5,))
    assert (result.status, result.reason) == ("wrong", "2 of 16 elements wrong")
    unchecked = result_of_pair(CASE, [0, 1], [[[9], [1], None]] * 2)
    assert (unchecked.status, unchecked.verification, unchecked.ordinal) == ("ok", None, None)
