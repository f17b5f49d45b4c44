"""How ranks agree: through the store alone, never through a process group, which is slow (87 ms for
32 ranks, not 1.3 ms) or would have the cost of the first call. Values are JSON.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from torchcoll.core.errors import ExitCode, HangError, TorchcollError, brief
from torchcoll.core.units import shorten
from torchcoll.machine.launcher import Launch

GRACE_S = 3.0  # how long a rank that suspects trouble waits for the status of the others
_LONGEST_GRACE_S = 30.0
# How long it waits once a rank of its host has ended. After its signal a launcher soon kills all
# ranks (Open MPI in a second), but then all of them report at once.
MOMENT_S, _HURRY_S = 1.75, 0.5
# So often a watchdog wakes up between trouble elsewhere and its own status.
_WAKINGS = 10

# A start that ranks agree on lies at least so far ahead; a sleep may end 0.1 ms late.
_LEAST_NOTICE_NS, _AWAKE_NS = 1_000_000, 1_000_000

_NAMED = 16  # ranks, in a message
_LONG = 1 << 12  # characters: a longer value is compressed
# Up to ALL_ASK ranks each asks all others. Of more ranks the first ASKERS ask all, and the others
# only those and the ranks of their own host: the questions would grow with the square of the ranks.
ALL_ASK, ASKERS = 256, 16

_KILLED = 1 << signal.SIGKILL - 1  # of a mask of signals
_EXITING = 0x4  # PF_EXITING of Linux, in the flags of a process that has begun to end

_runs = 0  # sweeps in this process so far: each needs its own keys in a shared store
# Kept for the next `run`: a rank that comes back early would find the port of the last one.
_stores: dict[Launch, Any] = {}


def store_of(torch: Any, launch: Launch, timeout_s: float, found_group: bool, fake: bool) -> Any:
    """The store of the default process group if there is one, else that of this run."""
    global _runs
    _runs += 1  # on all ranks, also on one that finds no store
    if fake:
        return torch.distributed.HashStore()
    if found_group:
        return torch.distributed.distributed_c10d._get_default_store()
    if launch in _stores:
        return _stores[launch]
    store = open_store(torch, launch, timeout_s)
    if launch.rendezvous_file is None:  # a file goes away with its store
        _stores[launch] = store
    return store


def run_stores(dist: Any, store: Any, several: bool) -> tuple[Any, Any]:
    """(the part of the store for this run, a second client of it for the watchdog: a client that
    waits blocks all threads that share it). Raises HangError if the store is gone.
    """
    base = store
    # torch 2.6 cannot clone a store with a prefix, nor does it say what the prefix is.
    while not hasattr(base, "clone") and hasattr(base, "underlying_store"):
        base = base.underlying_store
    # Without torchrun's own prefix a restart would meet the keys of the attempt before.
    prefix = f"sweep{_runs}.{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    second = base  # a FileStore opens its file for each step
    try:
        if several and hasattr(base, "clone"):
            second = base.clone()
        elif several and hasattr(base, "host"):
            second = dist.TCPStore(base.host, base.port, is_master=False, wait_for_workers=False)
    except RuntimeError:
        raise HangError("rendezvous: lost the store of rank 0 at once") from None
    return dist.PrefixStore(prefix, base), dist.PrefixStore(prefix, second)


def open_store(torch: Any, launch: Launch, timeout_s: float) -> Any:
    """The store of this run: torchrun's own, else one that rank 0 serves. Raises HangError."""
    dist = torch.distributed
    if launch.rendezvous_file is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        try:
            return next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))[0]
        except (RuntimeError, ValueError) as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            given = f"no store at {where} within {timeout_s:g} s ({_first_line(error)})"
            action = "Check that torchrun lives on its first node."
            raise HangError("rendezvous", given, "torchrun's own there", action) from None
    if launch.ranks == 1:
        return dist.HashStore()
    from torchcoll.bench.meeting import join

    return join(torch, launch, timeout_s)


class Control:
    """Agreement among ``ranks`` ranks over ``store``; with one rank every call is a no-op.

    Every rank makes the same calls in the same order. A wait beyond ``timeout_s`` raises HangError
    and names the ranks that did not come.
    """

    def __init__(self, store: Any, rank: int, ranks: int, timeout_s: float) -> None:
        self.store = store
        self.rank = rank
        self.ranks = ranks
        self.timeout_s = timeout_s
        self.hosts: list[str] = []  # of all ranks, from the hello on; names ranks in messages
        self.pids: dict[int, int] = {}  # of the ranks on this host, from the hello on
        # Called on rank 0 with the values that have come, while it waits for the others.
        self.came: Callable[[Sequence[Any]], None] | None = None
        self.steps = 0
        self._awaited: list[str] = []  # the keys that this rank waits for
        # Keys in the store, which each rank deletes once all ranks have read them.
        self._decided: list[str] = []  # rank 0's decisions
        self._shared: list[str] = []  # shared since the last gather
        self._sent: list[str] = []  # sent since the last decision
        self._obsolete: list[str] = []  # sent before the last decision, so rank 0 has read them

    def gather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Every rank's value, in rank order, on rank 0; an empty list elsewhere."""
        self.steps += 1
        if self.ranks == 1:
            return [value]
        with self._connected():
            if self.rank:
                for old in self._obsolete:  # now, because the store may be gone after this value
                    self.store.delete_key(old)
                key = f"g{self.steps}/{self.rank}"
                self._obsolete = []
                self._sent += [*self._shared, key]
                self._shared = []
                self.store.set(key, written(key, value))
                return []
            keys = [f"g{self.steps}/{rank}" for rank in range(1, self.ranks)]
            self._wait(keys, timeout_s)
            values = list(map(read, keys, _get_all(self.store, keys)))
            for key in self._decided:  # all ranks have read the decisions before this gather
                self.store.delete_key(key)
            self._decided.clear()
        return [value, *values]

    def decide(self, value: Any = None, timeout_s: float | None = None) -> Any:
        """Rank 0's value on every rank."""
        self.steps += 1
        if self.ranks == 1:
            return value
        key = f"d{self.steps}"
        with self._connected():
            if self.rank == 0:
                self.store.set(key, written(key, value))
                self._decided.append(key)
                return value
            self._wait([key], timeout_s)
            decision = read(key, self.store.get(key))
        self._obsolete += self._sent
        self._sent = []
        return decision

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Raise HangError if the store is gone, which any step may be the first to notice."""
        try:
            yield
        except RuntimeError as error:
            raise self.cut_off(error) from None

    def cut_off(self, error: Exception) -> HangError:
        """The HangError for an error of the store's client."""
        this_rank = self.name(self.rank)
        return HangError(f"{this_rank} lost its connection to the store ({_first_line(error)})")

    # The methods below send a digest from rank 0 to every rank, never the values of all ranks: that
    # would be the square of their number.

    def largest(self, value: float) -> float:
        """The largest of the values of all ranks, on every rank."""
        values = self.gather(value)
        return float(self.decide(max(values) if values else None))

    def share(self, value: Any, peers: Sequence[int]) -> list[Any]:
        """The values of ``peers``, which are the ranks of this host. Collective."""
        self.steps += 1
        if self.ranks == 1:
            return [value]
        with self._connected():
            key = f"s{self.steps}/{self.rank}"
            self.store.set(key, written(key, value))
            # A rank that has come to the next gather has read it.
            (self._shared if self.rank else self._decided).append(key)
            keys = [f"s{self.steps}/{peer}" for peer in peers]
            self._wait(keys, None)
            return list(map(read, keys, _get_all(self.store, keys)))

    def share_hosts(self, hosts: Sequence[str]) -> None:
        """Give every rank the hosts of all ranks, which rank 0 has. Each name is sent once."""
        indices = {name: index for index, name in enumerate(dict.fromkeys(hosts))}
        names, of_ranks = self.decide([[*indices], [indices[host] for host in hosts]])
        self.hosts = [names[index] for index in of_ranks]

    def agree(self, refusal: TorchcollError | None, fact: Any = None) -> list[Any]:
        """Every rank's fact on rank 0, [] elsewhere. All ranks raise the first rank's refusal."""
        answers = self.gather([refusal and [str(refusal), int(refusal.exit_code)], fact])
        refused = next(((rank, *text) for rank, (text, _) in enumerate(answers) if text), None)
        if refused := self.decide(refused):
            rank, text, code = refused
            if refusal is None:
                refusal = TorchcollError(f"{self.name(rank)}: {text}")
                refusal.exit_code = ExitCode(code)
            raise refusal
        return [fact for _, fact in answers]

    def failed(self, failure: str) -> tuple[str, str] | None:
        """(names of the ranks that failed, error of the first) on every rank; None if none did."""
        failures = self.gather(failure)
        ranks = [rank for rank, text in enumerate(failures) if text]
        failed = self.decide([self.names(ranks), failures[ranks[0]]] if ranks else None)
        return (failed[0], failed[1]) if failed else None

    def attempt(
        self, action: Callable[[], object], *kinds: type[Exception]
    ) -> tuple[str, str] | None:
        """Do what may fail on some ranks with these kinds of errors; returns as ``failed``."""
        failure = ""
        try:
            action()
        except kinds as error:
            failure = str(error) if isinstance(error, TorchcollError) else brief(error)
        return self.failed(failure)

    def align(self) -> None:
        """Wait until every rank has come. Ranks return within about one round trip of the store."""
        self.gather(None)
        self.decide()

    def start_together(self, now: Callable[[], int] = time.perf_counter_ns) -> int | None:
        """Return on all ranks at the same time, after every rank has called this: at a time in the
        near future on the monotonic clock of the host, because rank 0 leaves a decision first.

        now: the monotonic clock in ns. Returns the time of the start, or None without one clock:
        then rank 0 returns one round trip of the store before the others.
        """
        if self.ranks == 1:
            return None
        self.gather(None)
        asked_ns = now()
        self.decide()
        times = self.gather(now())
        start_ns: int | None = None
        if self.rank == 0:
            answered_ns = now()
            if asked_ns <= min(times) and max(times) <= answered_ns:
                # The decision travels as the question did, and a rank may be late.
                start_ns = answered_ns + max(_LEAST_NOTICE_NS, 3 * (answered_ns - asked_ns))
        start_ns = self.decide(start_ns)
        if start_ns is None:
            return None
        # Ranks that share a core need it to read the decision: so only the end is a busy wait.
        time.sleep(max(0, start_ns - now() - _AWAKE_NS) / 1e9)
        while now() < start_ns:
            pass
        return start_ns

    def leave(self, all_came: Callable[[], None] = lambda: None) -> None:
        """Align, and let rank 0, which may serve the store, leave last. all_came: called then."""
        self.align()
        all_came()
        self.gather(None)

    def _wait(self, keys: list[str], timeout_s: float | None) -> None:
        limit_s = min(timeout_s or self.timeout_s, self.timeout_s)
        self._awaited = keys
        start = time.monotonic()
        try:
            if self.came and not self.rank:
                self._look(keys, limit_s)
            left_s = max(limit_s - (time.monotonic() - start), 0.1)
            self.store.wait(keys, timedelta(seconds=left_s))
            self._awaited = []
        except RuntimeError as error:
            if "timeout" not in _first_line(error):
                raise
            raise NoWordError(f"no word from {self._missing(keys)} within {limit_s:g} s") from None

    def _look(self, keys: list[str], limit_s: float) -> None:
        """Call ``came`` whenever another rank has come; the pause grows with the time of a look."""
        assert self.came is not None
        start, values, reported = time.monotonic(), dict[str, Any](), -1
        while len(values) < len(keys) and (now := time.monotonic()) - start < limit_s:
            arrived = present_keys(self.store, [key for key in keys if key not in values])
            values |= zip(arrived, map(read, arrived, _get_all(self.store, arrived)), strict=True)
            if len(values) > reported:
                reported = len(values)
                self.came([*values.values()])
            if reported < len(keys):
                time.sleep(min(0.5, 0.05 + 5 * (time.monotonic() - now)))

    def _missing(self, keys: list[str]) -> str:
        if self.rank:
            return self.name(0)
        try:
            arrived = {*present_keys(self.store, keys)}
        except RuntimeError:
            return "the store"
        return self.names([_rank_of(key) for key in keys if key not in arrived]) or "the store"

    def lacking(self, store: Any) -> list[int]:
        """On rank 0 the ranks for whose value it waits, or waited in vain. ``store`` is asked."""
        if self.rank:
            return []
        arrived = {*present_keys(store, self._awaited)}
        return [_rank_of(key) for key in self._awaited if key not in arrived]

    def name(self, rank: int) -> str:
        """``rank 3 (host-b)``, once the hosts are known."""
        return f"rank {rank} ({self.hosts[rank]})" if rank < len(self.hosts) else f"rank {rank}"

    def names(self, ranks: Sequence[int]) -> str:
        """Of so many ranks as a line holds, and how many more there are."""
        return shorten(list(map(self.name, ranks)), _NAMED)


class NoWordError(HangError):
    """An exchange waited in vain for the value of some rank."""


class DamagedError(HangError):
    """A value in the store that no rank of this run has written, so that no rank is at fault."""

    def __init__(self, key: str, text: bytes) -> None:
        super().__init__(
            f"key {key} of the store",
            text.decode(errors="replace"),
            "what a rank of this run writes there",
            "Another program reaches the store's port: see docs/clusters.md.",
        )


def written(key: str, value: Any) -> str:
    """The text for ``value`` in the store, with the key, by which ``read`` recognises it."""
    text = json.dumps([key, value])
    if len(text) < _LONG:
        return text
    packed = zlib.compress(json.dumps(value).encode())
    return json.dumps([key, None, base64.b64encode(packed).decode()])


def read(key: str, text: bytes) -> Any:
    """The value of a text of ``written``. Raises DamagedError for any other text."""
    try:
        name, value, *packed = json.loads(text)
        if name == key:
            return json.loads(zlib.decompress(base64.b64decode(packed[0]))) if packed else value
    except (ValueError, TypeError, RecursionError, zlib.error):
        pass
    raise DamagedError(key, text)


def _rank_of(key: str) -> int:
    """The rank that writes this key of a gather or a share."""
    return int(key.partition("/")[2])


def present_keys(store: Any, keys: list[str]) -> list[str]:
    """The keys that the store has, in order. The store says only whether it has all of a list."""
    if not keys or store.check(keys):
        return keys
    if len(keys) == 1:
        return []
    half = len(keys) // 2
    return present_keys(store, keys[:half]) + present_keys(store, keys[half:])


def _get_all(store: Any, keys: list[str]) -> list[bytes]:
    if keys and store.has_extended_api():
        return list(store.multi_get(keys))
    return [store.get(key) for key in keys]  # FileStore


def alarm(store: Any, rank: int, status: dict[str, Any]) -> int:
    """Write the status of this rank, wake the watchdogs, and return who raised the alarm first."""
    store.set(f"alive/{rank}", written(f"alive/{rank}", status))
    # The first stays: the others may be its consequence.
    first = store.compare_set("alarm", "", str(rank))
    return int(first) if first.isdigit() else rank


def survey(
    store: Any,
    rank: int,
    ranks: int,
    pids: Mapping[int, int],
    status: dict[str, Any],
    grace_s: float = GRACE_S,
    hurries: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any] | None]:
    """The status of each rank: None without answer, {} for one that is not asked or waited for.
    hurries: whether the launcher has begun to end this rank.
    """
    first = alarm(store, rank, status)
    asked = asked_by(rank, ranks, [*pids, first])
    answers: list[dict[str, Any] | None] = [
        None if other in asked else {} for other in range(ranks)
    ]
    deadline, one_gone, hurried = time.monotonic() + grace_s, False, False
    while True:
        gone = dead_ranks(pids)  # before the look: a rank that is gone has written all it could
        keys = [f"alive/{other}" for other, answer in enumerate(answers) if answer is None]
        arrived = present_keys(store, keys)
        for key, text in zip(arrived, _get_all(store, arrived), strict=True):
            answers[_rank_of(key)] = _answer(key, text)
        # A rank that counts more ranks than others do would wait for some that were not started.
        there = min(
            [ranks, *(answer["ranks"] for answer in answers if answer and "ranks" in answer)]
        )
        silent = [other for other in range(there) if answers[other] is None]
        if not one_gone and not {*gone}.isdisjoint(silent):
            one_gone, deadline = True, min(deadline, time.monotonic() + MOMENT_S)
        if one_gone and not hurried and hurries():
            hurried, deadline = True, min(deadline, time.monotonic() + _HURRY_S)
        if {*silent} <= {*gone} or time.monotonic() > deadline:
            for other in {*silent} - {*gone} if one_gone else ():
                answers[other] = {}  # not asked
            break
        time.sleep(0.05)
    return answers


def asked_by(rank: int, ranks: int, others: Sequence[int]) -> set[int]:
    """The ranks that ``rank`` asks. others: ranks of its host, and the one with the alarm."""
    if ranks <= ALL_ASK or rank < ASKERS:
        return {*range(ranks)}
    return {*range(ASKERS), *others} & {*range(ranks)}


def _answer(key: str, text: bytes) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = read(key, text)
        return answer
    except DamagedError as error:
        return {"damaged": str(error)}


def claim_report(store: Any, rank: int, story: str) -> bool:
    """Whether no other rank has reported this story: a busy rank may hear of trouble later."""
    text = store.compare_set("told", "", written("told", [rank, story]))
    try:
        first, told_story = read("told", text)
    except DamagedError:
        return True
    return bool(first == rank or told_story != story)


def record_leaving(store: Any, rank: int) -> None:
    """Records that this rank asks nothing more of the store: rank 0 need not wait for it."""
    if rank:
        store.set(f"left/{rank}", "")


def grace_s(late_s: float) -> float:
    """How long to wait for the status of other ranks if threads of this host wake up so late."""
    return min(GRACE_S + _WAKINGS * late_s, _LONGEST_GRACE_S)


def wait_for_peers(
    store: Any, peers: Sequence[int], pids: Mapping[int, int], grace_s: float
) -> None:
    """Wait until these ranks have left, or have ended on this host: rank 0 may serve the store."""
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        leaving = [f"left/{rank}" for rank in {*peers} - {0, *dead_ranks(pids)}]
        if not leaving or store.check(leaving):
            break
        time.sleep(max(0.01, 2e-5 * len(leaving)))  # of many ranks a question is long


def dead_ranks(pids: Mapping[int, int]) -> list[int]:
    """The ranks of this host (rank -> process) that have ended, or were sent SIGKILL."""
    return [rank for rank, pid in pids.items() if not _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat, open(f"/proc/{pid}/status", "rb") as status:
            return not _has_ended(stat.read(), status.read())
    except (OSError, IndexError, ValueError):
        return os.path.exists(f"/proc/{pid}")


def _has_ended(stat: bytes, status: bytes) -> bool:
    """Reads /proc/PID/stat (state and flags) and /proc/PID/status (pending signals)."""
    fields = stat.rsplit(b")", 1)[1].split()
    if fields[0] in (b"Z", b"X") or int(fields[6]) & _EXITING:
        return True
    masks = (line.split()[1] for line in status.splitlines() if line[:6] in (b"SigPnd", b"ShdPnd"))
    return any(int(mask, 16) & _KILLED for mask in masks)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
