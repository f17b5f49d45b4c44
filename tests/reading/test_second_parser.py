"""torchcoll's rows against those of a parser that shares no code with it."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
import second_parser
from first_tries import THREADS, read_truth

HEADING = (
    "#                                                              out-of-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time"
    "   algbw   busbw #wrong\n"
)


def shown(us):
    return f"{us:.2f}" if us < 1000 else f"{us:.1f}" if us < 10000 else f"{us:.0f}"


def nccl_tests(source, count):
    lines = ["# Collective test starting: all_reduce_perf", HEADING.rstrip("\n")]
    for k in range(count):
        size = 8 << k % 30
        halves = []
        for _ in range(2):
            us = shown(source.uniform(8, 60) + size / source.uniform(2e3, 4e5))
            algbw = size / float(us) / 1e3
            halves.append(f"{us:>8} {algbw:>7.2f} {algbw * 1.75:>7.2f}      0")
        lines.append(f"{size:>12}  {size // 4:>12}     float     sum      -1 {' '.join(halves)}")
    return [*lines, "# Out of bounds values : 0 OK"]


def osu(source, count):
    lines = ["# OSU MPI Allreduce Latency Test v7.4", "# Size       Avg Latency(us)"]
    lines += [f"{4 << k % 20:<12}{source.uniform(1, 9e4):>17.2f}" for k in range(count)]
    return lines


def imb(source, count):
    lines = ["# Benchmarking Allreduce", "# #processes = 8"]
    lines += ["       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]"]
    for k in range(count):
        us = source.uniform(2, 5e4)
        lines.append(
            f"{4 << k % 20:>13}         1000 {us * 0.9:>12.2f} {us * 1.1:>12.2f} {us:>12.2f}"
        )
    return lines


def decorated(kind, lines, source):
    """The lines as launchers, containers and libraries leave them."""
    if kind == "docker":
        return "".join(
            json.dumps({"log": f"{line}\n", "stream": "stdout"}) + "\n" for line in lines
        )
    if kind == "messages":
        message = "38dcf168f605:17:17 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
        lines = [
            x for line in lines for x in ([line, message] if source.random() < 0.3 else [line])
        ]
    prefix = {
        "mpirun": "[1,0]<stdout>:",
        "pod": "2026-07-20T19:33:49.123Z [pod/nccl-0/worker] ",
        "srun": "0: ",
        "colour": "\x1b[32m",
    }.get(kind, "")
    return "".join(f"{prefix}{line}\n" for line in lines)


def imported_figures(result):
    counter = Counter()
    for run in result.runs:
        for each in run.results:
            size = each.reported.size_bytes or each.size_bytes
            counter[size, round(each.reported.time_ns / 1e3, 4)] += 1
    return counter


KINDS = ("plain", "docker", "messages", "mpirun", "pod", "srun", "colour")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool", [nccl_tests, osu, imb])
def test_generated_tables(imported, tool, kind):
    """300 rows of each tool in each decoration, nccl-tests with two figures each: 8,400 figures."""
    source = random.Random(f"{tool.__name__}/{kind}")
    for count in (1, 29, 120, 150):
        lines = tool(source, count)
        expected = second_parser.rows("\n".join(lines))
        assert expected.total() == count * (2 if tool is nccl_tests else 1)
        result = imported(decorated(kind, lines, source))
        assert imported_figures(result) == expected
        assert result.refused == []


@pytest.mark.parametrize("name", [truth["file"] for truth in read_truth() if truth.get("cases")])
def test_the_public_shapes(imported, name):
    """Whatever the second parser reads of a file, torchcoll reads alike, or refuses it."""
    text = (THREADS / name).read_text()
    result = imported(text, name)
    expected = second_parser.rows(text)
    lost = expected - imported_figures(result)
    refused = {refused.line for refused in result.refused}
    lines = text.splitlines()
    for size, time in lost:
        numbers = [n for n, line in enumerate(lines, 1) if line.split()[:1] == [str(size)]]
        assert refused & set(numbers), (size, time)
