"""What the measuring thread of this rank does while nothing moves, seen from the watchdog's thread.

A rank that sleeps in somebody's code, one that spins and one that waits inside the collective have
made the same number of steps. Their Python stacks differ, and what the kernel says of the thread.
It is looked at while nothing moves, not afterwards: who was late may have come meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# Kinds of places. Of the first two nobody else is the cause; in the last two a rank waits for
# others.
CODE, BUSY, COLLECTIVE, EXCHANGE = "code", "busy", "collective", "exchange"

# torchcoll's own modules that have the call of the backend on top where torch has no frame for it.
_CALLERS = ("machine.devices", "bench.calls", "training.player")
# Numbers of nanosleep and clock_nanosleep, with which /proc/self/task/TID/syscall begins.
_SLEEPS = {"x86_64": ("35", "230"), "aarch64": ("101", "115")}.get(platform.machine(), ())
_SHORTEST_S = 1.0  # a stop that is over is told of if it lasted so long


class _Stretch:
    """A time without progress, as looks have seen it. cpu_s: of the thread, when it began."""

    def __init__(self, began: float, cpu_s: float | None) -> None:
        self.began = self.seen = began
        self.began_cpu_s = self.cpu_s = cpu_s
        self.looks: Counter[tuple[str, str]] = Counter()
        self.states: Counter[str] = Counter()

    @property
    def seconds(self) -> float:
        return self.seen - self.began

    def stated(self) -> dict[str, Any]:
        place, text = max(self.looks, key=self.looks.__getitem__)
        return {"place": place, "text": text, "how": self._how(), "s": round(self.seconds, 1)}

    def _how(self) -> str:
        """sleeps, spins, waits; '' where the kernel does not tell. One that has Python's lock is
        seen waiting for it, for the lock is ours while we look: its CPU time tells it.
        """
        looks, used = self.looks.total(), None
        if self.cpu_s is not None and self.began_cpu_s is not None and self.seconds:
            used = (self.cpu_s - self.began_cpu_s) / self.seconds
        if (used or 0) > 0.5 or self.states["R"] > looks / 2:
            return "spins"
        if self.states["sleep"] > looks / 2:
            return "sleeps"
        return "waits" if self.states else ""


class Whereabouts:
    """Looks at the thread that made it; ``look`` and ``moved`` are of one other thread."""

    def __init__(self) -> None:
        self._ident, self._native = threading.get_ident(), threading.get_native_id()
        self._now = _Stretch(time.monotonic(), self._cpu_s())
        self._last = self._now

    def moved(self) -> None:
        """There was progress: what was seen is over."""
        if self._now.seconds >= _SHORTEST_S:
            self._last = self._now
        self._now = _Stretch(time.monotonic(), self._cpu_s())

    def look(self) -> None:
        """Costs some 50 us."""
        place = place_of(sys._current_frames().get(self._ident))
        if place is None:
            return
        now = self._now
        now.looks[place] += 1
        now.seen, now.cpu_s = time.monotonic(), self._cpu_s()
        if state := self._state():
            now.states[state] += 1

    def stated(self, within_s: float) -> dict[str, Any]:
        """place, text, how and seconds of the stop that lasts, or of a longer one that ended less
        than ``within_s`` ago; {} where nothing was seen.
        """
        if not self._now.looks:
            self.look()
        found = self._now
        recent = time.monotonic() - self._last.seen < within_s
        if recent and self._last.looks and self._last.seconds > found.seconds:
            found = self._last
        return found.stated() if found.looks else {}

    def _cpu_s(self) -> float | None:
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._ident))
        except (AttributeError, OSError):
            return None

    def _state(self) -> str:
        """``sleep``, else the letter of proc(5)."""
        folder = f"/proc/self/task/{self._native}"
        if _SLEEPS and _text(f"{folder}/syscall").split(" ")[0] in _SLEEPS:
            return "sleep"
        return _letter(_text(f"{folder}/stat"))


def place_of(frame: Any) -> tuple[str, str] | None:
    """(kind of place, words for it) of the innermost frame that tells it; None for the watchdog's
    own.
    """
    while frame:
        module = str(frame.f_globals.get("__name__", ""))
        root, _, rest = module.partition(".")
        if root == "torch":
            return _in_torch(frame)
        if root == "torchcoll":
            if module == "torchcoll.bench.watchdog":
                return None
            if module == "torchcoll.bench.control":
                return EXCHANGE, _outermost(frame, module)
            if rest in _CALLERS:
                return COLLECTIVE, frame.f_code.co_name
            return BUSY, f"{rest}, {frame.f_code.co_name}"
        if root not in sys.stdlib_module_names:
            code = frame.f_code
            name = os.path.basename(code.co_filename)
            return CODE, f"{code.co_name}, {name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _in_torch(frame: Any) -> tuple[str, str]:
    """Calls of torch.distributed and what waits for the device are where collectives wait."""
    name, waits = "", False
    while frame and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "torch":
        module, own = frame.f_globals["__name__"], frame.f_code.co_name
        waits = waits or module.startswith("torch.distributed") or own == "synchronize"
        name = name if own == "wrapper" and name else own  # c10d_logger's
        frame = frame.f_back
    return (COLLECTIVE, name) if waits else (BUSY, f"torch, {name}")


def _outermost(frame: Any, module: str) -> str:
    name = ""
    while frame and frame.f_globals.get("__name__") == module:
        name, frame = frame.f_code.co_name, frame.f_back
    return name


def last_calls(group: str, begun: int) -> list[str]:
    """What this process gave to its last three calls on ``group`` after the call number ``begun``,
    as torch has recorded it below torchcoll (its Flight Recorder; of gloo alone). Without barriers,
    which stand between the timed calls. [] where this torch keeps none. 2,000 calls: some 0.1 s.
    """
    with contextlib.suppress(Exception):  # an inner function of torch, in somebody's last seconds
        from torch._C import _distributed_c10d as c10d

        data = c10d._dump_fr_trace(includeStackTraces=False)  # type: ignore[attr-defined]
        own = [e for e in pickle.loads(data)["entries"]
               if e["process_group"][0] == group and e["collective_seq_id"] > begun]  # fmt: skip
        calls = [e for e in own if not e["is_p2p"] and e["input_sizes"]]
        return [_given(entry) for entry in calls[-3:]]
    return []


def _given(entry: dict[str, Any]) -> str:
    """``all_reduce of 2 Float``."""
    buffers = zip(entry["input_sizes"], entry["input_dtypes"], strict=True)
    texts = [f"{'x'.join(map(str, sizes)) or 1} {dtype}" for sizes, dtype in buffers]
    more = f" and {len(texts) - 2} more" if len(texts) > 2 else ""
    return f"{entry['profiling_name'].rpartition(':')[2]} of {', '.join(texts[:2])}{more}"


def seen_from_outside(pid: int) -> str:
    """What a process of this host does that does not answer for itself; '' where nobody tells."""
    # Of its main thread: those of the library may use a little whatever that one does.
    path = f"/proc/{pid}/task/{pid}/stat"
    first = _text(path)
    letter = _letter(first)
    if letter in ("T", "t"):
        return "its process is stopped"
    if letter == "D":
        return "its process waits for a disk or a device"
    time.sleep(0.2)
    last = _text(path)
    ticks = [_ticks(text) for text in (first, last)]
    if None in ticks or not letter:
        return ""
    # Its threads cannot run Python where native code keeps the lock.
    used = (ticks[1] or 0) > (ticks[0] or 0) or "R" in (letter, _letter(last))
    return f"its process {'spins' if used else 'sleeps or waits'} in native code"


def _ticks(stat: str) -> int | None:
    words = stat.rpartition(")")[2].split()
    return int(words[11]) + int(words[12]) if len(words) > 12 else None


def _letter(stat: str) -> str:
    return stat.rpartition(")")[2].strip()[:1]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# -------------------------------------------------------------------------------------------------
# Which rank is the odd one out, from what all of them said when nothing moved any more. Pure.
#
# A rank is named for a difference that can be told: it is in code that waits for nobody, it has
# made another number of calls than its place asks for, it owes the word that rank 0 waits for, its
# thread spins or sleeps where those of the others wait, it is behind. Else nobody is.

# What a rank says of itself. steps: how far it is; doing: in words. place, text, how, s: see
# Whereabouts.stated. part, calls: the sub-group, and the calls that torch has counted in it. lacks:
# ranks for whose word rank 0 waits. last: see last_calls. ranks: how many there are. still_s: how
# long its process stood still. Unknown ones are not there.
Word = dict[str, Any]
Names = Callable[[Sequence[int]], str]

SAME = "all ranks wait at the same place"
_PLACES = {
    CODE: "user code",
    BUSY: "torchcoll",
    COLLECTIVE: "the collective",
    EXCHANGE: "the control exchange",
}


def odd_one(words: Sequence[Word], names: Names) -> str:
    """One clause; ``words`` of all ranks, in order."""
    found = _not_waiting(words, names) or _out_of_step(words, names) or _owing(words, names)
    found = found or _other_call(words, names)
    return found or _unlike(words, names) or _behind(words, names) or _nobody(words, names)


def other_world(words: Sequence[Word | None], names: Names) -> str:
    """Ranks that were told of another number of ranks; None and {} for those that say nothing."""
    told = [rank for rank, word in enumerate(words) if word and word.get("ranks")]
    counts = _grouped(told, lambda rank: str((words[rank] or {})["ranks"]))
    counts.sort(key=lambda count: len(count[1]))
    if len(counts) < 2:
        return ""
    return ", ".join(
        f"{names(own)} count{'s' if len(own) == 1 else ''} {count} ranks" for count, own in counts
    )


STILL = "A stopped process, swapping, a paused machine or native code with Python's lock does that"


def stood_still(words: Sequence[Word | None], names: Names) -> str:
    """Ranks whose clock has jumped: they were away themselves, whatever they see of the others."""
    ranks = [rank for rank, word in enumerate(words) if word and word.get("still_s")]
    seconds = [(words[rank] or {})["still_s"] for rank in ranks]
    return f"{names(ranks)} stood still for {max(seconds)} s" if ranks else ""


def other_buffers(words: Sequence[Word | None], names: Names) -> str:
    """Ranks that gave their last call another buffer than the calls before, within one case, where
    not all that are there did.

    Compared with its own past, not with the others: roots give what others do not. What it sends is
    too much for who receives it, and gloo ends the receiver: that that one is lost is no news.
    """
    known = {rank: last for rank, word in enumerate(words) if (last := (word or {}).get("last"))}
    odd = [rank for rank, last in known.items() if len({*last[:-1]}) == 1 and last[-1] != last[-2]]
    if len(odd) == len(known) > 1:
        return ""
    return ", ".join(
        f"{names(ranks)} gave another buffer ({text})"
        for text, ranks in _grouped(odd, lambda rank: f"{known[rank][-1]}, before {known[rank][0]}")
    )


def _not_waiting(words: Sequence[Word], names: Names) -> str:
    """Ranks in code of their own while others wait: somebody else's code before torchcoll's."""
    for kind in (CODE, BUSY):
        odd = [rank for rank, word in enumerate(words) if word.get("place") == kind]
        waiting = [
            rank for rank, word in enumerate(words) if word.get("place") in (COLLECTIVE, EXCHANGE)
        ]
        if odd and waiting:
            clauses = [
                f"{names(ranks)} {_be(ranks)} in {_PLACES[kind]} ({text})"
                for text, ranks in _grouped(odd, lambda rank: _thread(words[rank]))
            ]
            return ", ".join([*clauses, _waits(words, waiting, names)])
    return ""


def _thread(word: Word) -> str:
    how = word.get("how")
    stated = f": {how}" if how in ("sleeps", "spins") else ""
    return f"{word.get('text')}{stated}"


def _waits(words: Sequence[Word], ranks: Sequence[int], names: Names) -> str:
    """``rank 0 (a), rank 1 (a) wait in the collective``, by place."""
    by_place = _grouped(ranks, lambda rank: _PLACES.get(words[rank].get("place", ""), "?"))
    return ", ".join(
        f"{names(own)} wait{'s' if len(own) == 1 else ''} in {place}" for place, own in by_place
    )


def _be(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _grouped(ranks: Iterable[int], key: Callable[[int], str]) -> list[tuple[str, list[int]]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        found[key(rank)].append(rank)
    return list(found.items())


def _out_of_step(words: Sequence[Word], names: Names) -> str:
    """Who is further must have made more calls of the library, as torch counts them. Where that is
    not so one has left a call out, or made one too many: the fewer who contradict the more.
    """
    kinds: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for rank, word in enumerate(words):
        if word.get("calls") is not None:
            inside = word.get("place") == COLLECTIVE
            kinds[(word.get("part"), word["steps"], word["calls"], inside)].append(rank)
    further: set[tuple[Any, ...]] = set()
    nearer: set[tuple[Any, ...]] = set()
    for ahead in kinds:
        for back in kinds:
            same = ahead[0] == back[0] and ahead[1] > back[1] and back[3]
            if same and ahead[2] < back[2] + ahead[3]:
                further.add(ahead)
                nearer.add(back)
    if not further:
        return ""
    left_out, too_many = (sorted(r for kind in side for r in kinds[kind]) for side in
                          (further, nearer))  # fmt: skip
    skipped = f"{names(left_out)} left out a call of the library: past it, with fewer calls made"
    added = f"{names(too_many)} made a call of the library too many"
    if len(left_out) == len(too_many):
        return f"{skipped}, or {added}"
    if len(left_out) < len(too_many):
        return f"{skipped}; {_waits(words, too_many, names)}"
    return f"{added}; {names(left_out)} {_be(left_out)} past it"


def _owing(words: Sequence[Word], names: Names) -> str:
    """Rank 0 waits for the words of some, which wait for rank 0 as if they had given theirs."""
    lacks = words[0].get("lacks") or []
    owing = [rank for rank in lacks if words[rank].get("place") == EXCHANGE]
    if not owing or len(owing) == len(words) - 1:
        return ""
    return f"{names(owing)} did not give {'its' if len(owing) == 1 else 'their'} word to rank 0"


def _other_call(words: Sequence[Word], names: Names) -> str:
    """Equally far, and in different calls of the library: the fewer are named, of two both."""
    if len({(word["steps"], word.get("part"), word.get("place")) for word in words}) > 1:
        return ""
    if words[0].get("place") != COLLECTIVE:
        return ""
    calls = _grouped(range(len(words)), lambda rank: str(words[rank].get("text")))
    calls.sort(key=lambda call: len(call[1]))
    if len(calls) == 1:
        return ""
    return ", ".join(f"{names(own)} {_be(own)} in {text}" for text, own in calls)


def _unlike(words: Sequence[Word], names: Names) -> str:
    """Threads that sleep or spin in a place where most of those of the others wait."""
    calm = [rank for rank, word in enumerate(words) if word.get("how") == "waits"]
    odd = [rank for rank, word in enumerate(words) if word.get("how") in ("sleeps", "spins")]
    if not odd or len(odd) > len(calm):
        return ""
    clauses = [
        f"{names(ranks)} {text}"
        for text, ranks in _grouped(
            odd,
            lambda rank: f"{words[rank]['how']} in {_PLACES.get(words[rank].get('place', ''))}",
        )
    ]
    return ", ".join([*clauses, _waits(words, calm, names)])


def _behind(words: Sequence[Word], names: Names) -> str:
    done = [word["steps"] for word in words]
    behind = [rank for rank, steps in enumerate(done) if steps < max(done)]
    return f"behind: {names(behind)}, in {words[behind[0]]['doing']}" if behind else ""


def _nobody(words: Sequence[Word], names: Names) -> str:
    if len({word.get("place") for word in words}) == 1:
        return SAME
    return f"{_waits(words, range(len(words)), names)}: cannot tell who is late"
