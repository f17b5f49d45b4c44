"""How ranks agree and name each other: threads over a store in memory."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch.distributed as dist
from error_form import error_text

from torchcoll.bench import control
from torchcoll.bench.control import (
    Control,
    DamagedError,
    alarm,
    asked_by,
    grace_s,
    read,
    survey,
    written,
)
from torchcoll.bench.watchdog import Progress, Watchdog
from torchcoll.core.errors import HangError, TorchcollError, UnavailableError


def on_ranks(ranks, action):
    """What ``action(control)`` comes to on each rank: its result, or its error."""
    store = dist.HashStore()

    def one(rank):
        control = Control(store, rank, ranks, timeout_s=30)
        control.hosts = ["ab"[rank % 2] for rank in range(ranks)]
        try:
            return action(control)
        except TorchcollError as error:
            return error

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


@pytest.mark.parametrize("ranks", [3, 70])
def test_the_store_does_not_grow(ranks):
    """As many keys after 30 rounds as after 3, of 10 agreements each."""

    def rounds(control, until):
        for number in range(until):
            control.gather({"rank": control.rank})
            control.decide(["one"])
            control.largest(number)
            control.share(number, [control.rank, (control.rank + 1) % control.ranks])
            control.decide()
            for _ in range(4):
                control.gather(None)
            control.agree(None)
        control.align()  # nobody writes any more
        return control.store.num_keys() if control.rank == 0 else None

    (few, *_), (many, *_) = (
        on_ranks(ranks, lambda control, until=until: rounds(control, until)) for until in (3, 30)
    )
    assert few == many < 10 * ranks


def test_ranks_of_one_clock_start_at_one_time():
    """No rank leaves before the time that all have heard of."""

    def action(control):
        start_ns = control.start_together()
        return start_ns, time.perf_counter_ns()

    starts, left = zip(*on_ranks(3, action), strict=True)
    assert len({*starts}) == 1 and min(left) >= starts[0]
    assert on_ranks(1, lambda control: control.start_together()) == [None]


@pytest.mark.parametrize("ahead_ns", [3600 * 10**9, -3600 * 10**9])
def test_ranks_of_several_clocks_agree_on_no_time(ahead_ns):
    """Hosts that were started an hour apart."""

    def action(control):
        off = ahead_ns if control.rank == 2 else 0
        return control.start_together(lambda: time.perf_counter_ns() + off)

    assert on_ranks(3, action) == [None] * 3


def test_all_ranks_hear_who_failed():
    none = on_ranks(3, lambda control: control.failed(""))
    assert none == [None] * 3
    some = on_ranks(4, lambda control: control.failed(["", "no room", "", "broken"][control.rank]))
    assert some == [("rank 1 (b), rank 3 (b)", "no room")] * 4


def test_the_first_refusal_is_raised_on_all_ranks():
    """On the others with the name of the rank, and with its exit code."""

    def action(control):
        refusal = UnavailableError("device", "none", "one") if control.rank else None
        return control.agree(refusal, control.rank)

    errors = on_ranks(3, action)
    text = error_text("device", "none", "one")
    assert [str(error) for error in errors] == [f"rank 1 (b): {text}", text, text]
    assert [error.exit_code for error in errors] == [4, 4, 4]
    assert on_ranks(3, lambda control: control.agree(None, control.rank)) == [[0, 1, 2], [], []]


def test_ranks_of_a_host_share_what_the_others_need_not_know():
    """Ranks 0 and 2 are on one host, 1 and 3 on another."""

    def action(control):
        here = [rank for rank, host in enumerate(control.hosts) if host == "ab"[control.rank % 2]]
        shared = [control.share(turn * 10 + control.rank, here) for turn in range(3)]
        return shared, control.largest(control.rank)

    even, odd = [[0, 2], [10, 12], [20, 22]], [[1, 3], [11, 13], [21, 23]]
    assert on_ranks(4, action) == [(even, 3), (odd, 3), (even, 3), (odd, 3)]


def test_the_hosts_of_all_ranks():
    """Each name is there once, in whatever order the ranks are dealt out."""
    hosts = ["a", "b", "a", "b"]

    def action(control):
        control.share_hosts(hosts if control.rank == 0 else [])
        return control.hosts

    results = on_ranks(4, action)
    assert results == [hosts] * 4
    assert all(len({id(name) for name in names}) == 2 for names in results)


def test_what_goes_to_every_rank_is_packed_where_it_is_long():
    """The hosts of 16,384 ranks, in the order in which Slurm's cyclic distribution has them."""
    hosts = [f"node{rank % 2048:05d}" for rank in range(16_384)]
    text = written("d2", hosts)
    assert read("d2", text.encode()) == hosts
    assert len(text) < 16_384 < len(json.dumps(hosts)) // 10
    with pytest.raises(DamagedError):
        read("d2", text.replace("d2", "d4").encode())
    with pytest.raises(DamagedError):
        read("d2", b'["d2", null, "bm90IHBhY2tlZA=="]')


def test_who_asks_whom():
    """Of few ranks all ask all; of many the first 16, the others those and their neighbours."""
    assert all(asked_by(rank, 256, [rank]) == {*range(256)} for rank in (0, 255))
    assert asked_by(15, 4096, [8, 15]) == {*range(4096)}
    assert asked_by(4000, 4096, [4000, 4001, 77]) == {*range(16), 77, 4000, 4001}


def test_the_questions_about_a_lost_rank_do_not_grow_with_the_square_of_the_ranks():
    """4,096 ranks of 8 a host, of which 3000 is gone: what ranks 0 and 2999 ask the store."""

    class Counting:
        def __init__(self, store):
            self.store, self.asked = store, 0

        def __getattr__(self, name):
            def ask(*args):
                self.asked += 1
                return getattr(self.store, name)(*args)

            return ask

    store = dist.HashStore()
    for rank in range(4096):
        if rank != 3000:
            alarm(store, rank, {"steps": rank})
    for rank, most in ((0, 80), (2999, 40)):
        counting, first = Counting(store), rank // 8 * 8
        pids = dict.fromkeys(range(first, first + 8), os.getpid())
        answers = survey(counting, rank, 4096, pids, {"steps": rank}, grace_s=0)
        silent = [other for other, answer in enumerate(answers) if answer is None]
        assert silent == ([3000] if rank == 0 else [])
        assert counting.asked < most


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "rank 3 (b)"),
        ([0, 1], "rank 0 (a), rank 1 (b)"),
        ([99], "rank 99"),  # one of whom nothing is known yet
    ],
)
def test_names(ranks, text):
    control = Control(None, 0, 4, 1)
    control.hosts = [*"abab"]
    assert control.names(ranks) == text


def test_more_ranks_than_a_line_holds():
    names = Control(None, 0, 512, 1).names(range(0, 512, 2))
    assert names.startswith("rank 0, rank 2, ") and names.endswith(", rank 30 and 240 more")


@pytest.mark.parametrize(
    ("late_s", "waited_s"), [(0.0, 3.0), (0.002, 3.02), (0.5, 8.0), (100.0, 30.0)]
)
def test_who_is_late_is_waited_for(late_s, waited_s):
    """Ten wakings, each so much late, beside the 3 s of a machine with nothing else to do."""
    assert grace_s(late_s) == pytest.approx(waited_s)


def test_the_watchdog_waits_as_it_was_late(monkeypatch):
    """Its looks came up to 0.4 s late: 3 + 10 x 0.4 s. Of 16,000 ranks each asks every 2 s."""
    asked = []

    def survey(store, rank, ranks, members, word, grace, hurries=None):
        asked.append(grace)
        raise RuntimeError("asked")

    monkeypatch.setattr(control, "survey", survey)
    store = dist.HashStore()
    for ranks in (2, 16_000):
        dog = Watchdog(Control(store, 0, ranks, 60.0), store, Progress(), lambda *words: None)
        dog.close()  # nothing is measured any more
        dog.pauses._late_s.clear()
        dog.pauses._late_s.extend([0.1, 0.4, 0.0])
        with pytest.raises(RuntimeError, match="asked"):
            dog.departure._survey({})
    assert asked == [7.0, 9.0]


def test_an_error_after_a_signal_is_no_news(monkeypatch):
    """The other rank got the signal too, and has closed its connections while this one asks."""
    reports = []
    reported = threading.Event()

    def report(status, code, *_):
        reports.append((status, code))
        reported.set()

    def in_thread(action, *arguments):
        thread = threading.Thread(target=action, args=arguments, daemon=True)
        thread.start()
        return thread

    def survey(store, rank, ranks, members, status, grace, hurries=None):
        if "signal" in status:
            in_thread(dog.departure.abort, "Connection reset by peer").join(0.3)
        return [status, status]

    monkeypatch.setattr(control, "survey", survey)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    store = dist.HashStore()
    dog = Watchdog(Control(store, 0, 2, 60.0), store, Progress(), report)
    in_thread(dog._on_signal, signal.SIGINT)
    assert reported.wait(30)
    dog.close()
    assert reports == [("interrupted", 130)]


def test_a_terminal_is_told_who_has_come():
    """Rank 0 alone looks, and the last look has all."""
    told = []

    def action(control):
        control.came = told.append if control.rank == 0 else None
        return control.gather(f"h{control.rank}")

    assert on_ranks(3, action) == [["h0", "h1", "h2"], [], []]
    assert sorted(told[-1]) == ["h1", "h2"]
    assert all(len(before) <= len(after) for before, after in pairwise(told))


def test_who_looks_waits_no_longer():
    """And names who did not come, as one who does not look."""
    store = dist.HashStore()
    control = Control(store, 0, 3, timeout_s=0.5)
    told = []
    control.came = told.append
    store.set("g1/2", '["g1/2", "here"]')
    with pytest.raises(HangError, match=r"^no word from rank 1 within 0\.5 s$"):
        control.gather("h0")
    assert told == [["here"]]


@pytest.mark.parametrize(
    ("stat", "pending", "ended"),
    [
        (b"12 (python3) S 1 12 12 0 -1 4194560 0", 0, False),  # 0x400100
        (b"12 (a) Z (b) S 1 12 12 0 -1 4194560 0", 0, False),
        (b"12 (python3) D 1 12 12 0 -1 4194564 0", 0, True),  # it gives back its memory
        (b"12 (python3) Z 1 12 12 0 -1 4194316 0", 0, True),
        (b"12 (python3) S 1 12 12 0 -1 4194560 0", 0x100, True),  # SIGKILL is 9
        (b"12 (python3) S 1 12 12 0 -1 4194560 0", 0x4000, False),  # SIGTERM
    ],
)
def test_a_process_that_is_ending_has_ended(stat, pending, ended):
    status = f"Name:\tpython3\nSigQ:\t0/9\nSigPnd:\t{pending:016x}\nShdPnd:\t{0:016x}\n"
    assert control._has_ended(stat, status.encode()) is ended
