import random
import subprocess
import sys

import pytest
from error_form import error_text

from torchcoll.bench import plan as module
from torchcoll.bench.plan import (
    case_limit_s,
    impossible,
    need_bytes,
    needs_bytes,
    plan,
    plan_lines,
    slow_call_s,
)
from torchcoll.bench.stopping import PATIENCE, SteadyStateRule, StoppingRule
from torchcoll.core.case import Case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import Spec

M = 1 << 20


def sizing(collective, size_bytes, ranks, **fields):
    spec = Spec(collectives=collective, sizes=(size_bytes,), **fields)
    return spec.sizings(ranks)[0]


@pytest.mark.parametrize(
    ("collective", "size_bytes", "fields", "unchecked", "checked"),
    [
        # 256 elements of one buffer; the check holds 24 bytes an element.
        ("all_reduce", 1024, {}, 1024, 1024 + 6144),
        # 32 Mi elements would be 768 MiB: chunks of 64 MiB.
        ("all_reduce", 128 * M, {}, 128 * M, 192 * M),
        ("all_reduce", 1024, {"dtypes": "int8"}, 1024, 1024 + 24576),
        # in 512 B, out 1024 B
        ("all_gather", 1024, {}, 1536, 1536 + 6144),
        ("all_gather", 1024, {"in_place": True}, 1024, 1024 + 6144),
        # in 1024 B, 256 elements that must stay, out 128
        ("reduce_scatter", 1024, {}, 1536, 1536 + 6144),
        ("sendrecv", 1024, {}, 2048, 2048 + 6144),
        ("barrier", 1, {}, 0, 0),
        # Calls in a group share the buffers. What several sums in place leave is not verified.
        ("all_reduce", 1024, {"coalesce": 4}, 1024, 1024),
        ("all_gather", 1024, {"coalesce": 4}, 1536, 1536 + 6144),
        ("broadcast", 1024, {"coalesce": 4}, 1024, 1024 + 6144),
        ("reduce_scatter", 1024, {"coalesce": 4}, 1536, 1536 + 6144),
        ("reduce_scatter", 1024, {"coalesce": 4, "in_place": True}, 1024, 1024),
    ],
)
def test_need_on_two_ranks(collective, size_bytes, fields, unchecked, checked):
    one = sizing(collective, size_bytes, 2, **fields)
    for rank in range(2):
        assert need_bytes(one, rank, False) == unchecked
        assert need_bytes(one, rank, True) == checked


@pytest.mark.parametrize("root", [0, 1, 2])
def test_need_of_the_root(root):
    # gather of 1200 B on 3 ranks: 100 elements each, which must stay; 300 at the root, which alone
    # has an output.
    one = sizing("gather", 1200, 3, roots=root)
    expected = [1600 + 7200 if rank == root else 400 + 2400 for rank in range(3)]
    assert needs_bytes(one, True) == expected
    # reduce: everyone has the buffer, the root checks.
    one = sizing("reduce", 1200, 3, roots=root)
    expected = [1200 + 7200 if rank == root else 1200 for rank in range(3)]
    assert needs_bytes(one, True) == expected


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_needs_of_all_ranks_are_those_of_each(collective, ranks):
    for root in range(ranks):
        one = sizing(collective, 1000, ranks, roots=root)
        for check in (True, False):
            expected = [need_bytes(one, rank, check) for rank in range(ranks)]
            assert needs_bytes(one, check) == expected
            assert all(need >= one.buffer_bytes(rank) for rank, need in enumerate(expected))


def test_the_host_has_all_ranks():
    # gather on 5 ranks: 400 B a rank, 2000 more at the root; unchecked.
    row = plan(Spec(collectives="gather", sizes="2000", roots=3, check=False), 5)[0]
    assert (row.need_bytes, row.host_bytes) == (2400, 4000)
    row = plan(Spec(sizes="1K", check=False), 5)[0]
    assert (row.need_bytes, row.host_bytes) == (1024, 5120)


def test_buffers_that_calls_walk_through_are_counted():
    """1K has 9 places in 10,000 bytes, 4K two: in place one buffer each; the largest has its own
    size. all_gather has one of the size to send from beside it.
    """
    spec = Spec("all_reduce,all_gather", sizes="1K,4K,10000", buffer_reuse="rotate", check=False)
    rows = module.plan(spec, 2)
    assert [row.need_bytes for row in rows[:3]] == [9 * 1024, 2 * 4096, 10_000]
    assert [row.need_bytes for row in rows[3:]] == [18 * 1024, 4 * 4096, 15_000]
    assert [row.host_bytes for row in rows[:3]] == [18 * 1024, 4 * 4096, 20_000]


def test_all_to_all_v_by_hand():
    # Weights 1,2,4: 70 elements sent by each, 30, 60, 120 received (tests/core/test_case.py).
    spec = Spec(collectives="all_to_all_v", sizes="480", splits="1,2,4", check=False)
    (row,) = plan(spec, 3)
    assert (row.count, row.size_bytes, row.bytes_in, row.bytes_out) == (40, 480, 280, 480)
    assert (row.need_bytes, row.host_bytes) == (760, 400 + 520 + 760)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 15.0),
        ({"max_time_s": 0.5}, 10.0),
        ({"iters": 0}, 5.0),  # cold calls alone
        ({"iters": 20}, None),  # twenty calls, however long they take
        ({"warmup": 1}, None),
        ({"cold": 20}, 15.0),
        ({"cold": 21}, None),
    ],
)
def test_limit_of_a_case(fields, limit):
    spec = Spec(sizes="1K,2K", **fields)
    assert case_limit_s(spec) == limit
    assert [row.limit_s for row in plan(spec, 2)] == [limit] * 2


def test_the_limits_are_those_of_the_bench():
    """bench/plan.py repeats these numbers, because it may not import them."""
    assert (module.PATIENCE, module.COLD_CALLS) == (PATIENCE, SteadyStateRule.MOST)
    assert module.COLD_LIMIT_S * 1e9 == SteadyStateRule.MOST_NS


def test_the_rules_of_the_bench_keep_the_limit():
    """Calls of any length up to ``slow_call_s``, alike or not, played through the real rules."""
    rng = random.Random(0)
    longest_of_all = 0.0
    for _ in range(300):
        spec = Spec(max_time_s=rng.choice([0.1, 1.0, 5.0]), cold=rng.choice([1, 3, 20]))
        longest = int(slow_call_s(spec) * 1e9 * rng.choice([1.0, rng.random()]))
        shortest = rng.choice([longest, 1])
        settling, cold = SteadyStateRule(spec.cold), 0
        while block := settling.next_block():
            durations = [rng.randint(shortest, longest) for _ in range(block)]
            settling.add(durations)
            cold += sum(durations)
        assert cold <= module.COLD_LIMIT_S * 1e9
        rule, steady = StoppingRule(2, None, spec.precision, spec.max_time_s), 0
        while batch := rule.next_batch(steady):
            durations = [rng.randint(shortest, longest) for _ in range(batch)]
            rule.add(durations)
            steady += sum(durations)
        assert steady <= module.PATIENCE * spec.max_time_s * 1e9
        limit = case_limit_s(spec) * 1e9
        assert cold + steady <= limit
        longest_of_all = max(longest_of_all, (cold + steady) / limit)
    assert longest_of_all > 0.3  # a bound, and no fantasy


def case(collective, **fields):
    entry = COLLECTIVES[collective]
    values = {"dtype": "float32", "op": "sum", "in_place": entry.placements[0], **fields}
    root = 0 if entry.has_root else None
    return Case(
        collective, 8, values["dtype"], values["op"] if entry.has_op else None, root,
        values["in_place"], "synchronized", "gloo", "cpu",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("one", "ranks", "expected"),
    [
        (case("hypercube"), 1, None),
        (case("hypercube"), 8, None),
        (case("hypercube"), 6, ("skipped", "hypercube needs a power of two of ranks, here 6")),
        (case("sendrecv"), 2, None),
        (case("sendrecv"), 1, ("skipped", "sendrecv needs 2 ranks or more")),
        (case("all_reduce"), 1, None),
        (
            case("all_reduce", in_place=False),
            2,
            ("unsupported", "torch.distributed has all_reduce in place only"),
        ),
        (
            case("all_to_all", in_place=True),
            2,
            ("unsupported", "torch.distributed has all_to_all out of place only"),
        ),
        (case("all_reduce", op="bxor", dtype="int8"), 2, None),
        (
            case("reduce", op="band", dtype="bfloat16"),
            2,
            ("unsupported", "band needs whole numbers, not bfloat16"),
        ),
    ],
)
def test_impossible(one, ranks, expected):
    assert impossible(one, ranks) == expected


def test_what_cannot_run_costs_nothing():
    the_plan = plan(Spec(collectives="hypercube,all_reduce", sizes="1K"), 3)
    skipped, run = the_plan
    assert (skipped.status, skipped.need_bytes, skipped.host_bytes) == ("skipped", 0, 0)
    assert (skipped.limit_s, run.limit_s) == (0.0, 15.0) and run.need_bytes


@pytest.mark.parametrize("ranks", [0, -2])
def test_refused(ranks):
    with pytest.raises(UsageError) as caught:
        plan(Spec(), ranks)
    assert str(caught.value) == error_text("ranks", str(ranks), "a whole number from 1 on")


def test_text_without_options():
    assert plan_lines(Spec(), 2) == [
        "Dry run: nothing was started, and no device was looked for.",
        "Assumed: 2 ranks on one host, gloo on cpu, synchronized calls.",
        "Memory: buffers and verification, without what the communication library takes.",
        "Time: at most 5 s of cold and 10 s of steady calls a case, unless a call takes",
        "  over 0.25 s.",
        "",
        "  size    in   out   a rank    a host  at most",
        "all_reduce  float32  sum  in place",
        "     8     8     8     56 B     112 B     15 s",
        "    32    32    32    224 B     448 B     15 s",
        "   128   128   128    896 B  1.75 KiB     15 s",
        "   512   512   512  3.5 KiB     7 KiB     15 s",
        "    2K    2K    2K   14 KiB    28 KiB     15 s",
        "    8K    8K    8K   56 KiB   112 KiB     15 s",
        "   32K   32K   32K  224 KiB   448 KiB     15 s",
        "  128K  128K  128K  896 KiB  1.75 MiB     15 s",
        "  512K  512K  512K  3.5 MiB     7 MiB     15 s",
        "    2M    2M    2M   14 MiB    28 MiB     15 s",
        "    8M    8M    8M   56 MiB   112 MiB     15 s",
        "   32M   32M   32M   96 MiB   192 MiB     15 s",
        "  128M  128M  128M  192 MiB   384 MiB     15 s",
        "",
        "Total: 13 cases, at most 3 min 15 s; the largest needs 192 MiB a rank, 384 MiB a",
        "  host.",
    ]


def test_text_of_a_mixed_plan():
    spec = Spec(
        collectives="hypercube,gather,barrier",
        sizes="1000",
        roots=1,
        iters=20,
        check=False,
        order="shuffled",
    )
    lines = plan_lines(spec, 3)
    # The groups stand in the order of the shuffle; each with its lines.
    assert lines[:4] == [
        "Dry run: nothing was started, and no device was looked for.",
        "Assumed: 3 ranks on one host, gloo on cpu, synchronized calls.",
        "Memory: buffers, without what the communication library takes.",
        "Time: no bound, as calls are counted. --timeout ends a run without progress.",
    ]
    assert lines[5] == "  size  actual   in  out   a rank    a host  at most"
    groups = {lines[i]: lines[i + 1 : i + 3] for i in range(6, len(lines) - 3)}
    assert groups["hypercube  float32  out of place"] == [
        "  1000     996  332  996        -         -  skipped",
        "skipped: hypercube needs a power of two of ranks, here 3",
    ]
    # 83 elements a rank, 332 B; 996 B more at the root: 1328 B = 1.296875 KiB
    assert groups["gather  float32  root 1  out of place"][0] == (
        "  1000     996  332  996  1.3 KiB  1.95 KiB        -"
    )
    assert groups["barrier"][0] == ("     0       0    0    0      0 B       0 B        -")
    assert lines[-2:] == [
        "Total: 3 cases (1 cannot run), no bound in time; the largest needs 1.3 KiB a",
        "  rank, 1.95 KiB a host.",
    ]


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (4, "at most 1 min;"),
        (5, "at most 1 min 15 s;"),
        (240, "at most 1 h;"),
        (500, "at most 2 h 5 min;"),
        (3, "at most 45 s;"),
    ],
)
def test_total_time(sizes, text):
    spec = Spec(sizes=range(4, 4 + 4 * sizes, 4))
    assert f"Total: {sizes} cases, {text}" in "\n".join(plan_lines(spec, 2))


def test_1024_ranks_without_torch():
    code = (
        "import sys\n"
        "from torchcoll.core.spec import Spec\n"
        "from torchcoll.bench.plan import plan, plan_lines\n"
        "print(len(plan_lines(Spec(collectives='all'), 1024)))\n"
        "heavy = {'torch', 'numpy', 'pandas', 'rich', 'scipy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # 7 lines of preamble and heading, 12 groups, 116 cases (small sizes fall together), 3 of total
    assert int(done.stdout) > 116
