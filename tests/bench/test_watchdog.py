"""What a thread is seen to do, from inside and from outside of its process."""

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from ranks import past

from torchcoll.bench import watchdog
from torchcoll.bench.departure import seen_from_outside
from torchcoll.bench.watchdog import StackSampler, place_of


def told_of(work, monkeypatch, until=0.4):
    """What is told of a thread that does ``work(event)`` for so many seconds. The clock is the CPU
    time of this process: on a busy machine a thread that spins does not get much of a second.
    """
    names = ("clock_gettime", "pthread_getcpuclockid")
    clock = SimpleNamespace(**{name: getattr(time, name, None) for name in names})
    clock.monotonic = time.process_time
    monkeypatch.setattr(watchdog, "time", clock)
    seen, over = {}, threading.Event()

    def run():
        seen["where"] = StackSampler()
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
def test_a_thread_in_code_of_its_own(monkeypatch, work, how):
    stated = told_of(work, monkeypatch)
    assert stated["place"] == "code"
    assert stated["text"].startswith(f"{work.__name__}, test_watchdog.py:")
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
    where = StackSampler()
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
        ("torchcoll.bench.departure", None),
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
