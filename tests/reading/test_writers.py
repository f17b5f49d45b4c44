"""Who wrote which line: prefixes of launchers, containers, daemons and mails."""

import pytest

from torchcoll.reading.writers import Writers, document_parts, unwrapped, wrapping_width

# A line as public logs have it, and what its prefixes say.
CERTAIN = (
    ("[rank3]: Traceback (most recent call last):", {"rank": 3}),
    ("[1,12]<stderr>:Traceback", {"rank": 12}),
    ("   [1,0]<stdout>: Traceback", {"rank": 0}),
    ("[prterun-node0-4711@1,5]<stderr>: Traceback", {"rank": 5}),
    ("[default2]:Traceback", {"local_rank": 2}),
    ("(RayWorkerVllm pid=41) Traceback", {"pid": 41}),
    (
        "(train pid=512, ip=10.4.0.7) [rank9]: Traceback",
        {"pid": 512, "node": "10.4.0.7", "rank": 9},
    ),
    ("[pod/nccl-x7k2p/worker] Traceback", {"node": "nccl-x7k2p"}),
    ("2026-07-20T19:33:49.1234567Z Traceback", {"time": "2026-07-20T19:33:49.1234567Z"}),
    ("[2026-07-20 19:33:49,123] Traceback", {"time": "2026-07-20 19:33:49,123"}),
    (
        "Jul 20 19:33:49 node4 kernel: [ 1234.567890] Traceback",
        {"node": "node4", "kernel": True, "time": "Jul 20 19:33:49"},
    ),
    (
        "2026-07-20T19:33:49+02:00 node4 slurmd[812]: Traceback",
        {"node": "node4", "pid": 812, "time": "2026-07-20T19:33:49+02:00"},
    ),
    (
        "[rank7]:[E1120 18:00:00.123456 4711 ProcessGroupNCCL.cpp:632] Traceback",
        {"rank": 7, "time": "1120 18:00:00.123456"},
    ),
)
# What stands in front of all lines of a text.
LEARNED = (
    (["node1: ", "node2: "], {"node": "node1"}, {"node": "node2"}),
    (["0: ", "1: "], {"rank": 0}, {"rank": 1}),
    (["[0] ", "[1] "], {"rank": 0}, {"rank": 1}),
    (["nccl-1  | ", "nccl-2  | "], {"node": "nccl-1"}, {"node": "nccl-2"}),
    (["> "], {}, {}),
)


def said(written):
    values = {name: getattr(written, name) for name in ("rank", "local_rank", "pid")}
    named = {name: value for name, value in values.items() if value is not None}
    texts = {name: getattr(written, name) for name in ("node", "time", "kernel")}
    return named | {name: value for name, value in texts.items() if value}


@pytest.mark.parametrize(("line", "expected"), CERTAIN)
def test_a_prefix_that_nothing_else_looks_like(line, expected):
    written = Writers([]).split(5, line)
    assert (written.text.startswith("Traceback"), said(written)) == (True, expected)
    assert written.prefix + written.text == line
    assert written.number == 5


@pytest.mark.parametrize(("prefixes", "first", "last"), LEARNED)
def test_a_prefix_that_nearly_all_lines_have(prefixes, first, last):
    texts = ["size time", "8 1.5", "16 1.6", "32 1.7"]
    lines = [prefix + text for text in texts for prefix in prefixes]
    writers = Writers(lines)
    written = [writers.split(number, line) for number, line in enumerate(lines, 1)]
    assert [each.text for each in written[:: len(prefixes)]] == texts
    assert (said(written[0]), said(written[-1])) == (first, last)
    few = Writers(["size time", *lines[:2], "8 1.5"])
    assert few.split(1, lines[0]).text == lines[0]


def test_numbers_of_lines_are_no_ranks():
    lines = [f"{number}:{number * 8} 1.5" for number in range(17, 23)]
    written = Writers(lines).split(1, lines[0])
    assert (written.text, written.rank, written.writer) == ("136 1.5", None, "")


def test_names_of_settings_are_no_hosts():
    lines = ["hidden_size: 512", "layers: 2", "heads: 8", "vocab: 1000"]
    assert Writers(lines).split(1, lines[0]).text == lines[0]


def test_a_label_that_torch_contradicts_is_the_node():
    lines = [f"{node}: [rank{rank}]: RuntimeError" for rank in range(8) for node in (rank // 4,)]
    assert [Writers(lines).split(1, line).rank for line in lines] == [*range(8)]
    assert Writers(lines).split(1, "1: slow").rank is None


def test_the_name_of_a_writer():
    writers = Writers([])
    names = ("[rank3]: x", "(RayWorker pid=41, ip=10.0.0.1) x", "[pod/a-0/nccl] x", "x")
    assert [writers.split(1, line).writer for line in names] == [
        "rank 3",
        "pid 41 on 10.0.0.1",
        "a-0",
        "",
    ]


def test_lines_that_a_terminal_wrapped():
    text = "0123456789" * 11
    lines = [text[:40], text[40:80], text[80:], "short", text[:40], "end"]
    assert wrapping_width(lines) == 40
    assert wrapping_width(lines[3:]) == 0
    assert [*unwrapped(enumerate(lines, 1), 40)] == [
        (1, text),
        (4, "short"),
        (5, f"{text[:40]}end"),
    ]


def test_the_parts_of_an_issue():
    text = """\
I see this since the upgrade.

**Before:**
```
8 1.5
```

### After
```console
$ mpirun -np 8 ./all_reduce_perf
8 2.5
```
Any idea?
"""
    parts = document_parts(enumerate(text.splitlines(), 1))
    assert [(part.title, part.lines[0]) for part in parts] == [
        ("", (1, "I see this since the upgrade.")),
        ("Before", (5, "8 1.5")),
        ("", (7, "")),
        ("After", (10, "$ mpirun -np 8 ./all_reduce_perf")),
        ("", (13, "Any idea?")),
    ]
    assert document_parts(enumerate(["no fence"], 1)) == []
