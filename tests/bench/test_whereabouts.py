"""Who is the odd one out of what the ranks say of themselves: stories by hand, no process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from ranks import past

from torchcoll.bench.whereabouts import (
    SAME,
    Whereabouts,
    odd_one,
    other_buffers,
    other_world,
    place_of,
    seen_from_outside,
)


def names(ranks):
    return "+".join(map(str, ranks))


def word(place="collective", steps=7, calls=20, how="waits", **more):
    return {
        **{"place": place, "text": "f, x.py:1", "how": how, "steps": steps, "calls": calls},
        **{"doing": f"step {steps}", "part": 0, **more},
    }


WAITS = word()
STORIES = [
    # One sleeps, spins or is stuck in code of its own; behind or not.
    ([WAITS, WAITS, word("code", how="sleeps")],
     "2 is in user code (f, x.py:1: sleeps), 0+1 wait in the collective"),
    ([word("code", steps=9, how="spins"), WAITS],
     "0 is in user code (f, x.py:1: spins), 1 waits in the collective"),
    ([word("code", how=""), word("exchange"), WAITS],
     "0 is in user code (f, x.py:1), 1 waits in the control exchange, 2 waits in the collective"),
    # Somebody else's code before torchcoll's, which may be busy with what it ought to do.
    ([word("busy"), word("code"), WAITS],
     "1 is in user code (f, x.py:1), 2 waits in the collective"),
    ([word("busy"), WAITS, WAITS], "0 is in torchcoll (f, x.py:1), 1+2 wait in the collective"),
    # A skipped call: past the others, with fewer calls of the library, in the exchange...
    ([WAITS, word("exchange", steps=8, calls=19), WAITS],
     "1 left out a call of the library: past it, with fewer calls made; "
     "0+2 wait in the collective"),
    # ... or in the next call, which then has the number of the one that it left out.
    ([WAITS, word(steps=8, calls=20), WAITS],
     "1 left out a call of the library: past it, with fewer calls made; "
     "0+2 wait in the collective"),
    # One too many: the others are past it with no more calls.
    ([word(steps=8), word(steps=7), word(steps=8)],
     "1 made a call of the library too many; 0+2 are past it"),
    # Of two nobody can tell.
    ([word(steps=8), word(steps=7)],
     "0 left out a call of the library: past it, with fewer calls made, or 1 made a call of the "
     "library too many"),
    # In order: the one that is further has made the next call too.
    ([word(steps=8, calls=21), WAITS, word(steps=8, calls=21)], "behind: 1, in step 7"),
    # Sub-groups count for themselves.
    ([word(steps=8, calls=3, part=0), word(steps=7, calls=20, part=1)], "behind: 1, in step 7"),
    # A backend that counts no calls.
    ([word(calls=None), word("exchange", steps=8, calls=None)], "behind: 0, in step 7"),
    # Rank 0 waits for a word that its owner believes to have given.
    ([word("exchange", lacks=[2]), word("exchange"), word("exchange")],
     "2 did not give its word to rank 0"),
    # The same place in Python, and the kernel sees another thing.
    ([WAITS, word(how="spins"), WAITS], "1 spins in the collective, 0+2 wait in the collective"),
    ([word(text="all_reduce"), word(text="broadcast"), word(text="all_reduce")],
     "1 is in broadcast, 0+2 are in all_reduce"),
    # Libraries that poll: all of them spin.
    ([word(how="spins"), word(how="spins"), word(how="spins")], SAME),
    ([WAITS, WAITS, WAITS], SAME),
    ([word("exchange"), WAITS],
     "0 waits in the control exchange, 1 waits in the collective: cannot tell who is late"),
    ([{"steps": 1, "doing": "a"}, {"steps": 1, "doing": "a"}], SAME),  # nothing could be seen
]  # fmt: skip


@pytest.mark.parametrize(("words", "text"), STORIES)
def test_stories(words, text):
    assert odd_one(words, names) == text


def gave(*last):
    return {"last": [*last]}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        # Who received it is lost. Others gave the same, or say nothing, or cannot know.
        ([gave("a", "a", "b"), gave("a", "a", "a"), None], "0 gave another buffer (b, before a)"),
        ([None, gave("a", "a", "b"), {}], "1 gave another buffer (b, before a)"),
        ([{}, gave("a", "a", "b"), {"last": []}], "1 gave another buffer (b, before a)"),
        # Roots give what others do not, each the same again.
        ([gave("a", "a", "a"), gave("c", "c", "c"), None], ""),
        # All change: somebody's loop wants it so.
        ([gave("a", "a", "b"), gave("a", "a", "b"), None], ""),
        # One that has never given the same twice, or not yet twice.
        ([gave("a", "b", "c"), gave("a", "a", "a")], ""),
        ([gave("b"), gave("a"), None], ""),
        ([None, {}, None], ""),
    ],
)
def test_who_gave_another_buffer(words, text):
    assert other_buffers(words, names) == text


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([3, 4, 3, None], "1 counts 4 ranks, 0+2 count 3 ranks"),
        ([4, 3, None], "0 counts 4 ranks, 1 counts 3 ranks"),
        ([3, 3, None], ""),
        ([3, None, None], ""),
    ],
)
def test_who_counts_other_ranks(counts, text):
    words = [{"ranks": count} if count else None for count in counts]
    assert other_world(words, names) == text


# -- what a thread is seen to do -------------------------------------------------------------------


def told_of(work, until=0.4):
    """What is told of a thread that does ``work(event)`` for so many seconds."""
    seen, over = {}, threading.Event()

    def run():
        seen["where"] = Whereabouts()
        seen["made"] = True
        work(over)

    thread = threading.Thread(target=run)
    thread.start()
    while "made" not in seen:
        time.sleep(0.001)
    for _ in range(20):
        time.sleep(until / 20)
        seen["where"].look()
    stated = seen["where"].stated(10)
    over.set()
    thread.join()
    return stated


def sleeps(over):
    while not over.is_set():
        time.sleep(0.1)


def spins(over):
    while not over.is_set():
        pass


# time.sleep of Python 3.10 is a select() without files: the kernel sees it wait.
SLEEPING = "sleeps" if sys.version_info >= (3, 11) else "waits"


@pytest.mark.parametrize(("work", "how"), [(sleeps, SLEEPING), (spins, "spins")])
def test_a_thread_in_code_of_its_own(work, how):
    stated = told_of(work)
    assert stated["place"] == "code"
    assert stated["text"].startswith(f"{work.__name__}, test_whereabouts.py:")
    assert stated["how"] == how


SLEEPS = """
import hashlib, threading, time
args = ("sha256", b"", b"", 1 << 30)
threading.Thread(target=hashlib.pbkdf2_hmac, args=args, daemon=True).start()
print(flush=True)
time.sleep(100)
"""


def test_a_process_that_does_not_answer_is_judged_by_its_main_thread():
    """Threads of a library may run on while the call that made them waits."""
    with subprocess.Popen([sys.executable, "-S", "-c", SLEEPS], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        began = time.monotonic()
        while "sleeps" not in seen_from_outside(process.pid) and not past(began, 5):
            pass  # it is on its way there
        seen = {seen_from_outside(process.pid) for _ in range(6)}
        process.kill()
    assert seen == {"its process sleeps or waits in native code"}


def test_who_was_late_is_told_after_it_came():
    """The longest stop of late, not the place where it is now."""
    where = Whereabouts()
    where._now.looks["code", "nap"] += 1
    where._now.seen += 5
    where.moved()
    assert (where.stated(10)["text"], where.stated(10)["s"]) == ("nap", 5.0)


def frame_of(module, source, name):
    """The innermost frame of a function of that module."""
    frames = {}
    space = {"__name__": module, "keep": lambda frame: frames.setdefault("frame", frame)}
    exec(f"import sys\ndef {name}(inner=None):\n    {source}", space)
    return space[name], frames


@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("torch.distributed.distributed_c10d", ("collective", "wanted")),
        ("torch.nn.functional", ("busy", "torch, wanted")),
        ("torchcoll.bench.control", ("exchange", "wanted")),
        ("torchcoll.machine.devices", ("collective", "wanted")),
        ("torchcoll.bench.verify", ("busy", "bench.verify, wanted")),
        ("torchcoll.bench.watchdog", None),
    ],
)
def test_places(module, place):
    call, frames = frame_of(module, "keep(sys._getframe())", "wanted")
    call()
    assert place_of(frames["frame"]) == place


def test_the_standard_library_belongs_to_who_called_it():
    call, frames = frame_of("json.decoder", "keep(sys._getframe())", "decode")
    call()
    assert place_of(frames["frame"])[0] == "code"  # this test's
