"""Pickles of plain values are read as Python's own reader reads them, all others are refused."""

from __future__ import annotations

import collections
import datetime
import io
import math
import os
import pickle
import struct
import subprocess
import tracemalloc

import pytest

from torchcoll.core import bounds
from torchcoll.core.errors import UnreadableError
from torchcoll.reading.safe_pickle import is_pickle, read_pickle

SHARED = {"name": "f", "line": 3}
VALUE = {
    "numbers": [0, -1, 255, 256, 65536, -(2**31), 2**31, 2**63, -(2**70), 1.5, math.inf],
    "others": [None, True, False, "", "ä\n\\u0041", "x" * 300, "\ud800"],
    "nested": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, [[], [SHARED, SHARED]]],
    7: {None: 1, 2.5: 2, True: 3},
}


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_values(protocol):
    data = pickle.dumps(VALUE, protocol)
    assert is_pickle(data)
    value = read_pickle(data, "x")
    assert value == VALUE
    assert repr(value) == repr(VALUE)  # 1, 1.0 and True are equal
    assert value["nested"][7][1][0] is value["nested"][7][1][1]


@pytest.mark.parametrize("protocol", (4, 5))
def test_sets_and_bytes(protocol):
    value = [{1, "a"}, set(), b"", b"x" * 300]
    assert read_pickle(pickle.dumps(value, protocol), "x") == value


def test_protocols_0_and_1_are_no_pickles_here():
    """torch writes protocol 2, and Python's default is 4 or 5."""
    for protocol in (0, 1):
        assert not is_pickle(pickle.dumps(VALUE, protocol))


class Reduced:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


class Stateful:
    def __setstate__(self, state):
        raise AssertionError("it ran")

    def __getstate__(self):
        return {"a": 1}


def refusal(data: bytes) -> str:
    with pytest.raises(UnreadableError) as caught:
        read_pickle(data, "dump")
    assert caught.value.line().isprintable()
    return str(caught.value).removeprefix("pickle dump: got ")


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Reduced(os.system, "false"), f"{os.name}.system"),
        (Reduced(eval, "1/0"), "eval"),
        (Reduced(getattr, 1, "real"), "getattr"),
        (Reduced(subprocess.Popen, ["false"]), ".Popen"),
        ({"a": [Reduced(os.system, Reduced(eval, "1"))]}, f"{os.name}.system"),
        (Stateful(), "_reconstructor"),
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (datetime.timedelta(1), "datetime.timedelta"),
        (io.open, "io.open"),
        (bytearray(b"x"), "bytearray"),
        (complex(1, 2), "complex"),
        (frozenset([1]), "frozenset"),
    ],
)  # fmt: skip
def test_what_is_no_plain_value_is_refused_by_name(value, named, protocol):
    text = refusal(pickle.dumps(value, protocol))
    assert text.startswith("one that needs ")
    other = {"_reconstructor": "test_safe_pickle.Stateful", "frozenset": "FROZENSET"}
    newer = {**other, "bytearray": "BYTEARRAY8"}
    assert named in text or newer.get(named, "?") in text


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"cos\nsystem\n(S'false'\ntR.", "os.system"),
        (b"(S'false'\nios\nsystem\n.", "STRING"),
        (b"(ios\nsystem\n.", "os.system"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", "builtins.eval"),
        (b"\x80\x04K\x01K\x02\x93.", "STACK_GLOBAL"),
        (b"cos\n", "GLOBAL"),
        (b"}}b.", "BUILD"),
        (b")\x81.", "NEWOBJ"),
        (b")}\x92.", "NEWOBJ_EX"),
        (b"(o.", "OBJ"),
        (b")R.", "REDUCE"),
        (b"\x97.", "NEXT_BUFFER"),
        (b"\x98.", "READONLY_BUFFER"),
        (b"\x82\x07.", "EXT1"),
        (b"\x82", "EXT1"),
    ],
)
def test_instructions(data, named):
    assert refusal(data).startswith(f"one that needs {named}, expected")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff.", "byte 255 is no instruction"),
        (b"j\x09\0\0\0.", "value 9 is used before it was made"),
        (b"}]K\x01s.", "a key that is a list"),
        (b"})K\x01s.", "a key that is a tuple"),
        (b"}\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x01K\x01s.", "a key of more than 64 bits"),
        (b"}K\x01a.", "dict in place of list"),
        (b"}(K\x01u.", "a key without a value"),
        (b"X\x01\0\0\0\xff.", "can't decode"),
    ],
)
def test_damage(data, why):
    assert why in refusal(data)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_cut(protocol):
    data = pickle.dumps(VALUE, protocol)
    for end in range(len(data)):
        assert refusal(data[:end]).startswith("a pickle that was cut off")


def test_what_a_cut_pickle_still_has():
    value = {"version": "2.10", "entries": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]}
    data = pickle.dumps(value, 2)
    problems: list[str] = []
    assert read_pickle(data[: data.rindex(b"K\x04")], "x", problems) == {
        "version": "2.10",
        "entries": [{"a": 1, "b": 2}, {"a": 3}],
    }
    assert problems == [f"x: cut off after {data.rindex(bytes([75, 4]))} bytes"]
    assert read_pickle(b"\x80\x02", "x", problems) is None
    assert problems[1:] == ["x: cut off after 2 bytes"]
    with pytest.raises(UnreadableError):
        read_pickle(b"](a.", "x", problems)
    with pytest.raises(UnreadableError):
        read_pickle(b"}(]K\x01", "x", [])


def test_marks_in_marks_are_refused_before_their_end():
    """Each opens a container: what follows is not read, and would be damage."""
    assert refusal(b"(" * 3000 + b"\xff") == refusal(b"(" * 2000 + b"\xff")
    assert "levels of lists" in refusal(b"(" * 3000 + b"\xff")


def test_the_stack_is_guarded_by_its_marks():
    """An item before a mark belongs to somebody else."""
    for data in (b"](a.", b"K\x01(.", b"K\x01(\x85.", b"K\x01(q\0.", b".", b"t."):
        assert refusal(data).startswith("a damaged pickle")


HUGE = struct.pack("<Q", 1 << 40)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"B" + b"\xff" * 4 + b"x.", "cut off"),
        (b"\x8e" + HUGE + b"x.", "cut off"),
        (b"\x8d" + HUGE + b"x.", "cut off"),
        (b"\x8b\xff\xff\xff\x7f.", "a number of 2147483647 bytes"),
        (b"\x8b\xff\xff\xff\xff.", "a number of 4294967295 bytes"),
        (b"]q\0h\0a.", "contains itself"),
        (b"]q\0h\0\x85a.", "contains itself"),
        (b"]" * 1_000 + b"a" * 999 + b".", "more than 100 levels"),
        (b")" + b"\x85" * 1_000 + b".", "more than 100 levels"),
    ],
)
def test_bombs(data, why):
    tracemalloc.start()
    assert why in refusal(data)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_a_large_index_of_the_memo_takes_no_memory():
    """Python's own reader allocates a table up to the index."""
    tracemalloc.start()
    assert read_pickle(b"K\x01r\xff\xff\xff\x7f.", "x") == 1
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_lists_that_double():
    """50 lists, each twice in the next: 2**50 items if read as a tree."""
    doubled = "x"
    for _ in range(50):
        doubled = [doubled, doubled]
    assert "repeated too often" in refusal(pickle.dumps(doubled, 2))
    assert "repeated too often" in refusal(pickle.dumps({"a": ["x" * 100_000] * 10_000}, 2))
    # Measured once: each time again would take minutes.
    assert "repeated too often" in refusal(pickle.dumps([[1] * 30_000] * 30_000, 2))
    ordinary = [[SHARED] * 40 for _ in range(2000)]
    assert read_pickle(pickle.dumps(ordinary, 2), "x") == ordinary


@pytest.mark.parametrize("piece", [b"}", b"J\x00\x10\x00\x00", b"h\0"])
def test_memory_is_limited(monkeypatch, piece):
    """The estimate of the memory is at least what Python takes; the limit is 1 GB, here 2 MB."""
    monkeypatch.setattr(bounds, "_HELD_BYTES", 2_000_000)
    monkeypatch.setattr(bounds, "_HELD_RATIO", 0)
    data = b"}q\0" + piece * 150_000 + b"."
    tracemalloc.start()
    assert "records that fit into 1 GB" in refusal(data)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
