"""Who is suspected, on pairs made by hand."""

import itertools
import math
import random

import pytest

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Run
from torchcoll.questions.pairs import suspects
from torchcoll.questions.pairs.matches import EXCHANGE, LATENCY, SEND, Pairs, Timing, read_pairs
from torchcoll.questions.pairs.schedule import PASSES

BW, LAT, ONE_WAY = (EXCHANGE, 1 << 20), (LATENCY, 8), (SEND, 1 << 20)
SMALL = (EXCHANGE, 128 << 10)


def made(hosts, time_ns, key=BW, noise=0.01, alone=None):
    """``time_ns(a, b)`` of each pair, with some scatter."""
    draw = random.Random(1)
    directed = key[0] == SEND
    every = (itertools.permutations if directed else itertools.combinations)(range(len(hosts)), 2)
    scattered = {
        pair: Timing(t := time_ns(*pair) * draw.uniform(1 - noise, 1 + noise), t, noise)
        for pair in every
    }
    units = tuple((rank,) for rank in range(len(hosts)))
    found = Pairs("rank", units, tuple(hosts), {key: scattered})
    if alone:
        found.alone.append({key: {pair: scattered[pair] for pair in alone}})
    return found


def named(found):
    return [one.units for one in found]


def test_the_modified_z_score_by_hand():
    # Median 5, absolute deviations 2 1 0 1 4: MAD 1. 0.6745 (9 - 5) / 1 = 2.698.
    assert suspects.modified_z(9, *suspects.robust([3, 4, 5, 6, 9])) == pytest.approx(2.698)
    # MAD 0: the mean absolute deviation is 2: (15 - 5) / (1.253314 x 2).
    assert suspects.modified_z(15, *suspects.robust([5, 5, 5, 5, 15])) == pytest.approx(
        10 / (1.253314 * 2)
    )
    assert suspects.modified_z(4, *suspects.robust([5, 5, 5])) == -math.inf
    assert suspects.modified_z(5, *suspects.robust([5, 5, 5])) == 0
    # The scale is the least one where the values agree.
    assert suspects.modified_z(4, *suspects.robust([5, 5, 5], least=0.5)) == -2


@pytest.mark.parametrize("count", [3, 4, 5, 6, 8, 17, 40])
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_slow_rank_is_named(count, culprit):
    pairs = made(["h"] * count, lambda a, b: 1000 / 0.6 if culprit in (a, b) else 1000)
    assert named(suspects.find_suspects(pairs)) == [(culprit,)]


@pytest.mark.parametrize("count", [2, 3, 4, 6, 33])
def test_nobody_where_all_are_alike(count):
    assert suspects.find_suspects(made(["h"] * count, lambda a, b: 1000, noise=0.05)) == []


@pytest.mark.parametrize("count", [3, 5, 30])
def test_a_slow_link_is_no_slow_rank(count):
    pairs = made(["h"] * count, lambda a, b: 2000 if (a, b) == (0, 2) else 1000)
    assert named(suspects.find_suspects(pairs)) == [(0, 2)]


def test_ten_per_cent_is_below_the_threshold_however_clear():
    pairs = made(["h"] * 6, lambda a, b: 1100 if 3 in (a, b) else 1000, noise=0.001)
    assert suspects.find_suspects(pairs) == []
    assert named(suspects.find_suspects(pairs, threshold=0.05)) == [(3,)]


def test_beyond_the_threshold_but_no_outlier_where_calls_scatter():
    pairs = made(["h"] * 6, lambda a, b: 1000 / 0.7 if (a, b) == (1, 4) else 1000, noise=0.3)
    assert suspects.find_suspects(pairs) == []


def test_two_culprits_of_eight():
    pairs = made(["h"] * 8, lambda a, b: 2000 if {a, b} & {1, 6} else 1000)
    assert named(suspects.find_suspects(pairs)) == [(1,), (6,)]


@pytest.mark.parametrize("key", [BW, LAT, ONE_WAY])
def test_one_pair_says_nothing(key):
    # Not even its two directions, one far slower than the other: there is no other link.
    times = {(0, 1): 50_000, (1, 0): 4_000}
    assert suspects.find_suspects(made(["a", "b"], lambda a, b: times[a, b], key=key)) == []


def test_one_direction_of_a_link_is_compared_with_other_links():
    def time_ns(a, b):
        return 2000 if (a, b) == (0, 2) else 1000

    assert named(suspects.find_suspects(made(["h"] * 3, time_ns, key=ONE_WAY))) == [(0, 2)]
    alone = [(a, b) for a in range(3) for b in range(3) if a != b]
    (found,) = suspects.find_suspects(made(["h"] * 3, time_ns, key=ONE_WAY, alone=alone))
    assert found.confirmed and found.evidence[0].alone_ratio == pytest.approx(0.5, rel=0.03)


def test_within_and_between_nodes_are_never_compared():
    hosts = ["a"] * 4 + ["b"] * 4
    pairs = made(hosts, lambda a, b: 100 if hosts[a] == hosts[b] else 5000)
    assert suspects.find_suspects(pairs) == []


@pytest.mark.parametrize("nodes", [3, 4, 6])
def test_a_node_with_a_bad_network_is_named_by_its_ranks(nodes):
    hosts = [f"h{rank // 4}" for rank in range(4 * nodes)]

    def time_ns(a, b):
        if hosts[a] == hosts[b]:
            return 100
        return 10000 if "h1" in (hosts[a], hosts[b]) else 5000

    pairs = made(hosts, time_ns)
    found = suspects.find_suspects(pairs)
    assert named(found) == [(4,), (5,), (6,), (7,)]
    assert all(not one.evidence[0].within for one in found)
    (event,) = suspects.suspect_events(pairs, found)
    assert (event["host"], event["ranks"], event["kind"]) == ("h1", [4, 5, 6, 7], "suspect")
    assert event["message"].startswith("4 of 4 ranks of node h1; rank 4 (h1): ")


@pytest.mark.parametrize(("place", "what"), [(0, "sending"), (1, "receiving")])
def test_one_way_tells_sending_from_receiving(place, what):
    pairs = made(["h"] * 6, lambda *pair: 2000 if pair[place] == 3 else 1000, key=ONE_WAY)
    (one,) = suspects.find_suspects(pairs)
    assert one.units == (3,)
    assert [e.what for e in one.evidence] == [what]
    assert one.evidence[0].ratio == pytest.approx(0.5, rel=0.02)
    assert (one.evidence[0].slow, one.evidence[0].pairs) == (5, 5)


def test_latency_is_suspect_from_twice_the_time_on():
    def with_factor(factor):
        return suspects.find_suspects(
            made(["h"] * 6, lambda a, b: factor if 2 in (a, b) else 1, key=LAT)
        )

    assert with_factor(1.8) == []
    assert named(with_factor(2.2)) == [(2,)]


def test_a_long_way_is_no_suspect_link():
    far = made(["h"] * 6, lambda a, b: 5000 if (a, b) == (1, 4) else 1000, key=LAT)
    assert suspects.find_suspects(far) == []


def passes(pairs, *tables):
    """Each table: the time of each pair in one pass alone."""
    pairs.alone = [
        {BW: {pair: Timing(float(ns), float(ns), 0.01) for pair, ns in table.items()}}
        for table in tables
    ]


def test_a_suspicion_falls_where_the_pairs_are_fast_alone():
    pairs = made(["h"] * 6, lambda a, b: 2000 if 1 in (a, b) else 1000)
    usual, own = suspects.pairs_to_repeat(pairs, suspects.find_suspects(pairs))
    assert len(usual) == 3 and not any(1 in pair for pair in usual)
    assert len(own) == 3 and all(1 in pair for pair in own)
    again = [*usual, *own]
    passes(pairs, dict.fromkeys(again, 1000))
    (one,) = suspects.find_suspects(pairs)
    assert not one.confirmed
    assert suspects.suspect_events(pairs, [one]) == []
    assert suspects.largest_sound_group(pairs, [one]) == [0, 1, 2, 3, 4, 5]
    assert suspects.suspected_kinds([one]) == set()
    passes(pairs, {pair: 2000 if 1 in pair else 1000 for pair in again})
    (one,) = suspects.find_suspects(pairs)
    assert one.confirmed and one.evidence[0].alone_ratio == 0.5
    assert suspects.suspected_kinds([one]) == {BW}


@pytest.mark.parametrize("last", [{(0, 2): 1100}, {(0, 2): 2000, (1, 3): 2100}])
def test_one_pass_clears(last):
    """Slow in three passes of four; then fast, or no slower than a usual pair."""
    pairs = made(["h"] * 6, lambda a, b: 2000 if (a, b) == (0, 2) else 1000)
    usual, own = suspects.pairs_to_repeat(pairs, suspects.find_suspects(pairs))
    assert own == {(0, 2): [0]}
    slow = dict.fromkeys([*usual, (1, 3)], 1000) | {(0, 2): 2000}
    passes(pairs, slow, slow, slow)
    (one,) = suspects.find_suspects(pairs)
    assert one.confirmed and one.evidence[0].alone_ratio == 0.5
    passes(pairs, slow, slow, slow, slow | last)
    (one,) = suspects.find_suspects(pairs)
    assert not one.confirmed


def test_pairs_of_two_modes_accuse_nobody():
    """Each pair exchanges at one of two speeds, the half of them at random in every pass, as gloo
    does: 4 sound pairs are told apart by chance, one of them in every pass.
    """
    draw, accused, suspected = random.Random(3), 0, 0
    for _ in range(400):
        pairs = made(["h"] * 6, lambda a, b: 2000 if (a, b) == (0, 2) else 1000)
        usual, own = suspects.pairs_to_repeat(pairs, suspects.find_suspects(pairs))
        again = [*usual, *own]
        passes(pairs, *({pair: draw.choice((1000, 2000)) for pair in again} for _ in range(PASSES)))
        suspected += 1
        accused += any(one.confirmed for one in suspects.find_suspects(pairs))
    # Alone slow in a pass: 1 / 2 ** 4; in all four: 1 / 65536.
    assert suspected == 400 and accused == 0


def test_a_cleared_rank_hides_no_link_of_its_own():
    """Both ways rank 1 seems slow; one way nothing is but its link to 5."""
    pairs = made(["h"] * 6, lambda a, b: 2000 if 1 in (a, b) else 1000)
    one_way = made(["h"] * 6, lambda *p: 2000 if {*p} == {1, 5} else 1000, key=ONE_WAY)
    pairs.times |= one_way.times
    assert named(suspects.find_suspects(pairs)) == [(1,)]
    found = suspects.find_suspects(pairs, with_hidden=True)
    assert named(found) == [(1,), (1, 5)]
    usual, own = suspects.pairs_to_repeat(pairs, found)
    assert (1, 5) in own
    pairs.alone = [
        {
            BW: dict.fromkeys([*usual, *own], Timing(1000.0, 1000.0, 0.01)),
            ONE_WAY: {p: t for p, t in one_way.times[ONE_WAY].items() if tuple(sorted(p)) in own}
            | {p: one_way.times[ONE_WAY][p] for p in usual},
        }
    ]
    assert [(one.units, one.confirmed) for one in suspects.find_suspects(pairs)] == [
        ((1,), False),
        ((1, 5), True),
    ]


def test_scatter_hides_a_slow_pair():
    """A pair 30 % slower than the others. Calls spread by 35 %: 1 - exp(-3.5 x 0.35) = 71 %."""
    pairs = made(["h"] * 6, lambda a, b: 1000 / 0.7 if (a, b) == (1, 4) else 1000, key=SMALL)
    timings = pairs.times[SMALL]
    assert named(suspects.find_suspects(pairs)) == [(1, 4)]
    pairs.times[SMALL] = {pair: t._replace(spread=0.35, calls=5) for pair, t in timings.items()}
    assert suspects.find_suspects(pairs) == []
    assert suspects.scatter_remedy(pairs).startswith("repeat with --sizes 8M -n 10 while")
    # A link: 1 - exp(-(3.5 + 2) x 0.35) = 85.4 %.
    (found,) = suspects.find_detectable(pairs)
    assert found.link == pytest.approx(0.854, abs=0.001) and found.within


def test_latencies_decide_what_is_detectable_where_nothing_else_was_measured():
    pairs = made(["h"] * 6, lambda a, b: 1000)
    noisy = {pair: t._replace(spread=0.3, calls=10) for pair, t in pairs.times[BW].items()}
    pairs.times = {LAT: noisy, (SEND, 8 << 20): noisy, (EXCHANGE, 8 << 20): noisy}
    assert suspects.scatter_remedy(pairs).startswith("repeat with -n 40 while")
    assert suspects.find_detectable(pairs)[0].link > 0.5
    pairs.times = {LAT: noisy}
    (found,) = suspects.find_detectable(pairs)
    assert found.link is None and found.unit > 0.5


def test_two_nodes_cannot_be_compared_with_each_other():
    pairs = made(["a", "a", "a", "b", "b", "b"], lambda a, b: 1000, noise=0)
    inside, between = suspects.find_detectable(pairs)
    assert (inside.unit, between.unit) == (pytest.approx(0.2), None)
    assert between.link == pytest.approx(0.2)


def test_nothing_runs_again_without_a_suspect():
    assert suspects.pairs_to_repeat(made(["h"] * 6, lambda a, b: 1000), []) == ([], {})


def test_the_largest_group_without_them():
    pairs = made(["h"] * 6, lambda a, b: 2000 if (a, b) in ((0, 2), (2, 5)) else 1000)
    found = suspects.find_suspects(pairs)
    assert named(found) == [(0, 2), (2, 5)]
    assert suspects.largest_sound_group(pairs, found) == [0, 1, 3, 4, 5]  # 2 is an end of both
    links = suspects.suspect_events(pairs, found)
    assert [(e["link"], e["ranks"]) for e in links] == [(["h", "h"], [0, 2]), (["h", "h"], [2, 5])]
    assert all("host" not in e for e in links)


def test_the_text_of_a_suspect():
    hosts = ["x", "y", "z", "u"]
    pairs = made(hosts, lambda a, b: 2000 if 1 in (a, b) else 1000, noise=0)
    (one,) = suspects.find_suspects(pairs)
    text = "rank 1 (y): 50 % of the others' speed both ways (not measured alone, 3 of 3 pairs slow)"
    assert suspects.suspect_text(pairs, one) == text


def test_the_figure_of_a_suspect_is_that_of_its_pairs_alone():
    """A path at 25 %: in the rounds it shares the network with others, and has 15 %."""
    hosts = ["a", "b", "c", "d", "e", "f"]
    pairs = made(hosts, lambda a, b: 20000 if (a, b) == (2, 5) else 3000, noise=0)
    passes(pairs, *[{(2, 5): 4000, (0, 1): 1000, (0, 3): 1000, (1, 4): 1000}] * 4)
    (link,) = suspects.find_suspects(pairs)
    name = "link of rank 2 (c) and rank 5 (f)"
    text = f"{name}: 25 % of the others' speed both ways, alone (15 % while other pairs ran)"
    assert suspects.suspect_text(pairs, link) == text


def case(group, size_bytes, root, times, status="ok"):
    asked = Case(
        "sendrecv", size_bytes, "float32", None, root, False, "synchronized", "gloo", "cpu"
    )
    asked = Case.from_json(asked.to_json() | {"group": group})
    own = {"host": [list(times), [t + 10 for t in times]]} if times else {}
    return CaseResult(
        asked, status, 2, reason="" if times else "lost", size_bytes=size_bytes, time_ns=own
    )


def test_pairs_are_read_from_a_run():
    run = Run(header={"ranks": 3}, members=[{"rank": r, "host": f"h{r}"} for r in range(3)])
    run.results = [
        case("pair/0-1", 8, None, [90, 190, 290]),
        case("pair/0-1", 64, None, [990]),
        case("pair/0-1", 64, 0, [490]),
        case("pair/0-1", 64, 1, [590]),
        case("pair alone/0-1", 64, None, [790]),
        case("pair alone/0-1", 64, None, [690]),
        case("pair/0-2", 64, None, []),
        case("pair/0-7", 64, None, [1]),
    ]
    pairs = read_pairs(run)
    assert pairs.by == "rank" and pairs.hosts == ("h0", "h1", "h2")
    # The later of the two ranks: 100, 200, 300 ns; the least is 100, the lower quartile 150.
    timing = pairs.times[LATENCY, 8][0, 1]
    assert timing == pytest.approx((200, 100, math.log(200 / 150) / 0.6745, 3))
    assert pairs.times[EXCHANGE, 64][0, 1].median_ns == 1000
    assert {p: t.median_ns for p, t in pairs.times[SEND, 64].items()} == {(0, 1): 500, (1, 0): 600}
    medians = [tables[EXCHANGE, 64][0, 1].median_ns for tables in pairs.alone]
    assert medians == [800, 700]  # pass by pass
    assert pairs.gbps((EXCHANGE, 64), (0, 1), 1000) == 0.064
    assert len(pairs.failed) == 2 and "pair 0-2" in pairs.failed[0]
    assert read_pairs(Run()) is None


@pytest.mark.parametrize(("affinity", "found"), [("0-1", []), ("0-2", [(2,)])])
def test_ranks_that_wait_for_a_core_accuse_nobody(affinity, found):
    """Three ranks of host a share two cores, or three; b and c have one rank each."""
    members = [
        {"rank": r, "host": "a" if r < 3 else "bc"[r - 3], "affinity": affinity} for r in range(5)
    ]
    run = Run(header={"ranks": 5}, members=members)
    run.results = [
        case(f"pair/{a}-{b}", 1 << 20, None, [2000 if 2 in (a, b) else 1000] * 3)
        for a, b in itertools.combinations(range(5), 2)
    ]
    pairs = read_pairs(run)
    assert pairs.crowded == (frozenset() if found else {"a"})
    assert named(suspects.find_suspects(pairs)) == found
    for result in run.results:  # a GPU does not wait for the host's cores
        result.case = Case.from_json(result.case.to_json() | {"device": "cuda"})
    assert named(suspects.find_suspects(read_pairs(run))) == [(2,)]


def test_a_host_is_that_of_its_rank_where_others_are_missing():
    run = Run(header={"ranks": 4}, members=[{"rank": 3, "host": "d"}, {"rank": 0, "host": "a"}])
    run.results = [case("pair/0-3", 64, None, [100])]
    assert read_pairs(run).hosts == ("a", "?", "?", "d")


def test_a_pair_is_measured_when_all_of_its_calls_are():
    run = Run(header={"ranks": 3})
    for pair in ("0-1", "0-2", "1-2"):
        run.results += [case(f"pair/{pair}", 64, root, [100]) for root in (None, 0, 1)]
    assert read_pairs(run).pairs == [(0, 1), (0, 2), (1, 2)]
    run.results[5] = case("pair/0-2", 64, 1, [])
    del run.results[0]
    assert read_pairs(run).pairs == [(1, 2)]


def test_one_of_512_ranks_is_named():
    found = suspects.find_suspects(made(["h"] * 512, lambda a, b: 2000 if 9 in (a, b) else 1000))
    assert named(found) == [(9,)]
