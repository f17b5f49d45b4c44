"""How ranks agree: through the store alone, never through a process group.

An agreement of 32 ranks on 2 cores takes 1.3 ms over the store and 87 ms over a second gloo group,
and a barrier on the data group would steal the cost of its first call. Values are JSON.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from torchcoll.core.errors import ExitCode, HangError, TorchcollError
from torchcoll.core.units import shorten
from torchcoll.machine.launcher import Launch

GRACE_S = 3.0  # how long a rank that suspects trouble waits for the others to say they live
_LONGEST_GRACE_S = 30.0
# Beside a rank that is gone, for the words of others: those that wait ask for an alarm a second
# after the last call. Once the launcher has sent its signal it ends all soon, Open MPI in a second;
# but then all say what they know.
MOMENT_S, _HURRY_S = 1.75, 0.5
# Of a watchdog, from trouble elsewhere to its own word: each comes late on a full host.
_WAKINGS = 10

# Of a start that ranks agree on: how far ahead it lies at least, and how long before it the ranks
# are awake, because a sleep may end 0.1 ms late.
_LEAST_NOTICE_NS, _AWAKE_NS = 1_000_000, 1_000_000

_runs = 0  # sweeps in this process so far: each needs its own keys in a shared store
# Kept for the next `run`: a rank that comes back early would find the port of the last one.
_stores: dict[Launch, Any] = {}


def store_of(torch: Any, launch: Launch, timeout_s: float, found_group: bool, fake: bool) -> Any:
    """The store of the default process group where there is one, else of the run; of a fake
    world, which has one participant, none that others see.
    """
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


def own_part(dist: Any, store: Any, several: bool) -> tuple[Any, Any]:
    """The part of the store that belongs to one sweep, and a second client of it. several: there is
    another participant.
    """
    base = cloneable(store)
    # Where torchrun's own prefix is lost (torch 2.6) a restart would meet the keys of before.
    prefix = f"sweep{_runs}.{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    try:
        second = second_client(dist, base) if several else base
    except RuntimeError:
        raise HangError("rendezvous: lost the store of rank 0 at once") from None
    return dist.PrefixStore(prefix, base), dist.PrefixStore(prefix, second)


def open_store(torch: Any, launch: Launch, timeout_s: float) -> Any:
    """The store of this run: torchrun's own, else one that rank 0 serves (bench/meeting.py).

    Raises HangError when it cannot be reached within ``timeout_s``.
    """
    dist = torch.distributed
    if launch.rendezvous_file is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        try:
            return next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))[0]
        except (RuntimeError, ValueError) as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            raise HangError(
                "rendezvous",
                f"no store at {where} within {timeout_s:g} s ({_first_line(error)})",
                "torchrun's own there",
                "Check that torchrun lives on its first node.",
            ) from None
    if launch.ranks == 1:
        return dist.HashStore()
    from torchcoll.bench.meeting import join

    return join(torch, launch, timeout_s)


def cloneable(store: Any) -> Any:
    """``store``, or what lies under its prefixes where this torch (2.6) cannot clone: a second
    client would need the prefixes, which such a store does not tell.
    """
    while not hasattr(store, "clone") and hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


_KILLED = 1 << signal.SIGKILL - 1  # of a mask of signals
_EXITING = 0x4  # PF_EXITING of Linux, in the flags of a process that has begun to end
_ENDED_S = 0.2  # by then the kernel has closed all of a process that it ends


def _knock(host: str, port: int) -> None:
    """Twice: a process that is being killed loses its connections before it loses the socket that
    takes new ones, and the store would seem to live.
    """
    with contextlib.suppress(ConnectionResetError):
        socket.create_connection((host, port), timeout=1).close()
    time.sleep(_ENDED_S)
    socket.create_connection((host, port), timeout=1).close()


def store_gone(store: Any, this_rank: str, server: str, silent: bool) -> tuple[bool, str]:
    """(whether the store is gone, what a rank knows of it that it fails), by one more connection.
    own: this rank; server: who serves it. silent: the store said nothing, and no connection broke.

    Where the network is gone on this side the kernel says so; on the other side nobody does.
    """
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    try:
        _knock(store.host, store.port)
    except AttributeError:  # of a file
        return not silent, f"the store is gone, lost {server}?"
    except ConnectionRefusedError:
        return True, f"the store is gone, lost {server}, which serves it?"
    except OSError as error:
        gone = f"{this_rank} is cut off from the store: its own connection is gone"
        if error.errno in (errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL):
            return False, f"{gone} ({error.strerror})"
        return not silent, f"{gone}, or that of {server}, which serves it"
    if silent:  # the kernel takes connections for a process that is stopped
        return False, f"the store does not answer, lost {server}, which serves it?"
    return False, f"{this_rank} is cut off from the store, which lives: its own connection is gone"


def second_client(dist: Any, store: Any) -> Any:
    """A connection of its own to the same store: one that waits blocks all that share it."""
    if hasattr(store, "clone"):
        return store.clone()
    if hasattr(store, "host"):
        return dist.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
    return store  # a FileStore opens its file for each step


_NAMED = 16  # ranks, in a message
_LONG = 1 << 12  # characters: a value from there on is packed
# All ranks ask all others where there are so few of them. Of more, the first of them ask all, and
# the others only those and the ranks of their own host: the questions grow with the ranks then, and
# not with their square. They would keep the store busy for an hour with 16,384 ranks.
ALL_ASK, ASKERS = 256, 16


class Control:
    """Agreement among ``ranks`` ranks over ``store``; with one rank every call is a no-op.

    Calls are collective: every rank makes the same calls in the same order. A wait beyond
    ``timeout_s`` raises HangError and names the ranks that did not come.
    """

    def __init__(self, store: Any, rank: int, ranks: int, timeout_s: float) -> None:
        self.store = store
        self.rank = rank
        self.ranks = ranks
        self.timeout_s = timeout_s
        self.hosts: list[str] = []  # of all ranks, from the hello on; names ranks in messages
        self.pids: dict[int, int] = {}  # of the ranks on this host, from the hello on
        self.came: Callable[[Sequence[Any]], None] | None = None  # told who has come, while waiting
        self.steps = 0
        self._awaited: list[str] = []  # what this rank waits for
        # Keys in the store, to be deleted once everyone has read them: a soak makes some in every
        # round. Each rank deletes its own, or rank 0 would make a trip for every rank.
        self._decided: list[str] = []
        self._said: list[str] = []
        self._shared: list[str] = []  # since the last gather
        self._heard: list[str] = []  # of those before: rank 0 has read them

    def gather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Every rank's value, in rank order, on rank 0; an empty list elsewhere."""
        self.steps += 1
        if self.ranks == 1:
            return [value]
        with self._connected():
            if self.rank:
                for old in self._heard:  # before this word, not after it: nobody leaves later
                    self.store.delete_key(old)
                self._heard = []
                self._said += self._shared
                self._shared = []
                self._said.append(f"g{self.steps}/{self.rank}")
                self.store.set(self._said[-1], written(self._said[-1], value))
                return []
            keys = [f"g{self.steps}/{rank}" for rank in range(1, self.ranks)]
            self._wait(keys, timeout_s)
            values = list(map(read, keys, _get_all(self.store, keys)))
            for key in self._decided:  # everyone has passed the decisions before this gather
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
        self._heard += self._said  # rank 0 has passed all that was before its decision
        self._said = []
        return decision

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Any step may be the one that finds the store gone."""
        try:
            yield
        except RuntimeError as error:
            raise self.cut_off(error) from None

    def cut_off(self, error: Exception) -> HangError:
        """The error of the store's client as one of ours."""
        this_rank = self.name(self.rank)
        return HangError(f"{this_rank} lost its connection to the store ({_first_line(error)})")

    # What follows sends to every rank a digest that rank 0 makes, never the values of all ranks:
    # rank 0 would send the square of their number.

    def largest(self, value: float) -> float:
        """The largest of the values of all ranks, on every rank."""
        values = self.gather(value)
        return float(self.decide(max(values) if values else None))

    def share(self, value: Any, peers: Sequence[int]) -> list[Any]:
        """The values of ``peers``, in their order, on each of them: for the ranks of a host. Every
        rank calls it, with the peers that it belongs to.
        """
        self.steps += 1
        if self.ranks == 1:
            return [value]
        with self._connected():
            key = f"s{self.steps}/{self.rank}"
            self.store.set(key, written(key, value))
            # Who has come to the next gather has read it.
            (self._shared if self.rank else self._decided).append(key)
            keys = [f"s{self.steps}/{peer}" for peer in peers]
            self._wait(keys, None)
            return list(map(read, keys, _get_all(self.store, keys)))

    def share_hosts(self, hosts: Sequence[str]) -> None:
        """Give every rank the hosts of all ranks, which rank 0 has; each name goes once, and is
        there once in the memory of a rank.
        """
        indices = {name: index for index, name in enumerate(dict.fromkeys(hosts))}
        names, of_ranks = self.decide([[*indices], [indices[host] for host in hosts]])
        self.hosts = [names[index] for index in of_ranks]

    def agree(self, refusal: TorchcollError | None, fact: Any = None) -> list[Any]:
        """Every rank's fact on rank 0, an empty list elsewhere; or the error of the first rank that
        has one, raised on all.
        """
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
        """(the ranks that failed, what the first of them says), None where none did. ``failure``:
        what this rank says, '' where it did not fail.
        """
        failures = self.gather(failure)
        ranks = [rank for rank, text in enumerate(failures) if text]
        failed = self.decide([self.names(ranks), failures[ranks[0]]] if ranks else None)
        return (failed[0], failed[1]) if failed else None

    def align(self) -> None:
        """No rank leaves before every rank has come. Skew at leaving: about one store round."""
        self.gather(None)
        self.decide()

    def start_together(self, now: Callable[[], int] = time.perf_counter_ns) -> int | None:
        """Return on all ranks at the same time, after every rank has called this.

        Rank 0 leaves a decision 80 to 120 us before the ranks that read it, so the ranks agree on a
        time in the near future and wait for it. That needs one clock: the monotonic clock of a
        host. Rank 0 asks each rank for its time between two looks at its own, and clocks whose
        answers do not lie between the two looks are not the same clock.

        now: the monotonic clock in ns. Returns the time of the start, or None where the ranks do
        not share a clock: rank 0 then leaves one trip of the store before the others.
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
        # Ranks that share a core need it to read the decision: only the end is spent waiting awake.
        time.sleep(max(0, start_ns - now() - _AWAKE_NS) / 1e9)
        while now() < start_ns:
            pass
        return start_ns

    def leave(self, all_came: Callable[[], None] = lambda: None) -> None:
        """Align, and let rank 0, which may serve the store, leave last. ``all_came``: called when
        no rank has anything left to do but to leave.
        """
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
        """Tell who has come, whenever another has, until all have. Of many ranks a look takes
        long: the pause grows with it.
        """
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
        """On rank 0 the ranks whose word it waits for, or waited for in vain; asks ``store``."""
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
    """A value in the store that no rank of this run has written: neither who should have nor who
    reads it is at fault.
    """

    def __init__(self, key: str, text: bytes) -> None:
        super().__init__(
            f"key {key} of the store",
            text.decode(errors="replace"),
            "what a rank of this run writes there",
            "Another program reaches the store's port: see docs/clusters.md.",
        )


def written(key: str, value: Any) -> str:
    """What stands in the store for ``value``: with its key, by which ``read`` knows it. A long one
    is packed: what rank 0 decides goes to every rank.
    """
    text = json.dumps([key, value])
    if len(text) < _LONG:
        return text
    packed = zlib.compress(json.dumps(value).encode())
    return json.dumps([key, None, base64.b64encode(packed).decode()])


def read(key: str, text: bytes) -> Any:
    """The value that ``written`` has made. Raises DamagedError."""
    try:
        name, value, *packed = json.loads(text)
        if name == key:
            return json.loads(zlib.decompress(base64.b64decode(packed[0]))) if packed else value
    except (ValueError, TypeError, RecursionError, zlib.error):
        pass
    raise DamagedError(key, text)


def _rank_of(key: str) -> int:
    """Whose value the key of a gather or a share is for."""
    return int(key.partition("/")[2])


def present_keys(store: Any, keys: list[str]) -> list[str]:
    """Those of ``keys`` that the store has, in order. The store says only whether it has all that
    it is asked for: of n keys of which m are missing it takes some m log2 n questions.
    """
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
    """Say how this rank is and what it met, and wake the watchdogs of the others. Returns the rank
    that was the first to.
    """
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
    """Who is alive, asked once trouble is suspected: each rank's word, None for no answer, {} for a
    rank that this one does not ask (``asked_by``).

    Called by the watchdog of every rank with its own client of the store. Where a rank of this host
    is gone without a word that is the news, and nobody else is waited for but a moment ({} for
    them): the launcher, which sees it too, ends this process soon. ``hurries``: whether it has
    begun to. A rank that ended the other says so meanwhile.
    """
    first = alarm(store, rank, status)
    asked = asked_by(rank, ranks, [*pids, first])
    answers: list[dict[str, Any] | None] = [
        None if other in asked else {} for other in range(ranks)
    ]
    deadline, one_gone, hurried = time.monotonic() + grace_s, False, False
    while True:
        gone = dead_ranks(pids)  # before the look: who is gone said all it had to say
        keys = [f"alive/{other}" for other, answer in enumerate(answers) if answer is None]
        arrived = present_keys(store, keys)
        for key, text in zip(arrived, _get_all(store, arrived), strict=True):
            answers[_rank_of(key)] = _answer(key, text)
        # One that counts more ranks than others would wait for some that nobody started.
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
    """The ranks whose word ``rank`` asks for; others: of its host, and that raised the alarm."""
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
    """Whether no other rank has told this: on a busy machine one may wait in vain for the words of
    those that hear of its trouble later, tell it and leave. Who has another story tells that too.
    """
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
    """How long to wait for the others where threads of this host wake up so much late: those that
    live are not to be taken for lost because the machine is full.
    """
    return min(GRACE_S + _WAKINGS * late_s, _LONGEST_GRACE_S)


def wait_for_peers(
    store: Any, peers: Sequence[int], pids: Mapping[int, int], grace_s: float
) -> None:
    """Waits until these ranks have left, or have ended on this host: rank 0 may serve the store."""
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        leaving = [f"left/{rank}" for rank in {*peers} - {0, *dead_ranks(pids)}]
        if not leaving or store.check(leaving):
            break
        time.sleep(max(0.01, 2e-5 * len(leaving)))  # of many ranks a question is long


def dead_ranks(pids: Mapping[int, int]) -> list[int]:
    """Which of these ranks, all on this host, have ended. A zombie counts as ended, and so does a
    process that is ending or that SIGKILL has been sent to: one that was killed may stay in the
    driver of its GPU for seconds. pids: by rank.
    """
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
