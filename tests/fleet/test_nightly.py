"""Which node, since when, and what to do: the lives of nodes, told as they were, every night."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from made_fleet import made_fleet, made_summaries
from made_lives import FIRST_NIGHT, KINDS, made_life
from made_nccl_tests import made_json

from torchcoll.cli import main
from torchcoll.parts.fleet.fleet_model import FleetModel
from torchcoll.parts.fleet.incident import OPEN
from torchcoll.parts.fleet.night_judgements import Acceptance, judge_summaries, nights_of_panel
from torchcoll.parts.fleet.nightly import NightFinding
from torchcoll.parts.fleet.nightly_show import answer_of, night_text
from torchcoll.parts.fleet.records import summarise_run
from torchcoll.parts.fleet.series import SummariesBuilder, format_night, overview_of
from torchcoll.parts.fleet.snapshot import pack, unpack

OCTOBER_1 = 20_727  # 2026-10-01, the first night of made_fleet


def judged(runs, last=None, accept=(), first_calls=False):
    """The steady times, or the first calls, of these runs, judged up to the night ``last``."""
    builder = SummariesBuilder()
    for summary, cases in runs:
        builder.add(summary, cases)
    summaries = builder.build()
    nights = overview_of(summaries).nights
    end = nights[-1] if last is None else OCTOBER_1 + last
    accepted = [Acceptance(which, "me", "why") for which in accept]
    of_both = judge_summaries(summaries, end, {end: accepted})
    assert [each.model.first_calls for each in of_both] == [False, True]
    return of_both[first_calls]


def said(runs, **options):
    """(event, who, night) of all that was said, and the open incidents."""
    only = judged(runs, **options)
    events = [
        (each.event, each.incident.split("@")[0], each.since - OCTOBER_1) for each in only.records
    ]
    return events, [each for each in only.model.incidents if each.state == OPEN]


def test_made_summaries_are_those_of_the_made_runs():
    plan = (3, 2, lambda node, night, case: 1 + node + night / 10 + case / 100)
    labels = lambda node, night: {"rack": f"r{node // 2}"}  # noqa: E731
    by_run = [summarise_run(run) for run in made_fleet(*plan, labels)]
    fields = ("run_id", "node", "hosts", "start_us", "facts", "labels", "status", "ranks")
    for (run, cases), (summary, summaries) in zip(
        by_run, made_summaries(*plan, labels), strict=True
    ):
        assert [getattr(run, n) for n in fields] == [getattr(summary, n) for n in fields]
        assert [(c.key, c.status, c.time_ns) for c in cases] == [
            (c.key, c.status, c.time_ns) for c in summaries
        ]


def with_first_calls(summaries, times):
    """First calls vary by 20 %, and one in 50 takes three times as long."""
    random = np.random.default_rng(4)
    for number, (run, cases) in enumerate(summaries):
        level = times(number % 12, number // 12, 0) * (3 if random.random() < 0.02 else 1)
        factors = level * np.exp(random.normal(0, 0.2, len(cases)))
        firsts = [50e6 * factor for factor in factors]
        yield run, [replace(c, first_call_ns=ns) for c, ns in zip(cases, firsts, strict=True)]


def slow(node, *spans):
    """Factors of a node: (first night, factor) from that night on."""

    def times(other, night, case):
        reached = [factor for first, factor in spans if night >= first]
        return reached[-1] if other == node and reached else 1.0

    return times


# What happens to node 3 of 12, and what is to be said: event and night, and the level at the end.
LIVES = {
    "a relapse is dated to the relapse": (
        slow(3, (15, 1.08), (25, 1.0), (40, 1.08)),
        44,
        [("opened", 15), ("closed", 25), ("relapsed", 40)],
        0.08,
    ),
    "a fault that grows is shown with its new size": (
        slow(3, (40, 1.05), (60, 1.28)),
        71,
        [("opened", 40), ("worse", 60)],
        0.28,
    ),
    "a fault of the first weeks is not forgotten": (
        slow(3, (12, 1.22)),
        100,
        [("opened", 12)],
        0.22,
    ),
    "a repair ends it": (
        slow(3, (20, 1.1), (33, 1.0)),
        60,
        [("opened", 20), ("closed", 33)],
        None,
    ),
    "half of it is mended": (
        slow(3, (20, 1.2), (33, 1.1)),
        60,
        [("opened", 20), ("better", 33)],
        0.1,
    ),
    "one bad night is no fault": (slow(3, (20, 1.5), (21, 1.0)), 40, [], None),
    "nothing happens": (slow(3), 40, [], None),
}


@pytest.mark.parametrize("name", LIVES)
def test_a_life_is_told_as_it_was(name):
    times, nights, expected, level = LIVES[name]
    events, open_now = said(made_summaries(12, nights, times, noise=0.004))
    assert events == [(event, "node003", night) for event, night in expected]
    assert [each.subject for each in open_now] == (["node003"] if level else [])
    if level:
        (incident,) = open_now
        assert math.expm1(incident.effect) == pytest.approx(level, abs=0.006)
        assert incident.low < incident.effect < incident.high
        assert incident.where == "all collectives"


def test_first_calls_are_judged_too():
    """And steady times do not change what is said of them."""
    steady = slow(5, (25, 1.1))
    runs = list(with_first_calls(made_summaries(12, 40, steady), slow(3, (18, 3.0))))
    events, (incident,) = said(runs, first_calls=True)
    assert events == [("opened", "node003", 18)]
    assert incident.id == "node003@2026-10-19-first"
    assert incident.where == "first calls of all collectives"
    assert math.expm1(incident.effect) == pytest.approx(2, abs=0.4)
    events, (incident,) = said(runs)
    assert events == [("opened", "node005", 25)] and incident.where == "all collectives"
    assert said(with_first_calls(made_summaries(12, 90), slow(3)), first_calls=True) == ([], [])


@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 16])
def test_a_few_nodes_are_judged_by_their_own_past(nodes):
    events, (incident,) = said(made_summaries(nodes, 20, slow(0, (12, 1.1)), noise=0.004))
    assert events == [("opened", "node000", 12)]
    assert incident.good_nights == 12


def test_a_node_that_has_always_been_slow_is_slower_than_its_peers():
    events, (incident,) = said(made_summaries(12, 9, slow(3, (0, 1.3)), noise=0.004))
    assert events == [("opened", "node003", 0)]
    assert incident.always and math.expm1(incident.effect) == pytest.approx(0.3, abs=0.02)
    # Its repair ends it.
    times = slow(3, (0, 1.3), (20, 1.0))
    events, open_now = said(made_summaries(12, 30, times, noise=0.004))
    assert events[-1] == ("closed", "node003", 20) and not open_now


@pytest.mark.parametrize(
    ("chosen", "where"),
    [
        (range(5), "all_reduce"),
        ((2, 3, 4, 7, 8, 9), "1M and more"),
        ((0,), "all_reduce 1K"),
        ((1, 8), "all_reduce 64K, all_gather 16M"),
    ],
)
def test_some_cases_are_named_with_their_own_size(chosen, where):
    """Never a mean over cases that are not slower."""
    times = lambda node, night, case: 1.2 if (node, case) in slow_cases and night >= 20 else 1  # noqa: E731
    slow_cases = {(3, case) for case in chosen}
    _, (incident,) = said(made_summaries(12, 30, times, noise=0.004))
    named = set(incident.where.split(", "))
    assert named == set(where.split(", "))
    assert math.expm1(incident.effect) == pytest.approx(0.2, abs=0.01)


def versions(changed_on, **facts):
    """environment of made_fleet: each fact is ``1`` before that night, then ``2``."""
    return lambda node, night: {n: "2" if night >= changed_on else "1" for n in facts}


@pytest.mark.parametrize(
    ("changed_on", "facts", "changed"),
    [
        (21, {"nccl": 1}, ("nccl 1 -> 2",)),
        (21, {"nccl": 1, "driver": 1}, ("driver 1 -> 2", "nccl 1 -> 2")),
        (15, {"nccl": 1}, ()),
    ],
)
def test_a_step_of_the_fleet_names_what_changed_with_it(changed_on, facts, changed):
    times = lambda node, night, case: 1.06 if night >= 21 else 1  # noqa: E731
    runs = made_summaries(16, 30, times, environment=versions(changed_on, **facts))
    events, (incident,) = said(runs)
    assert events == [("opened", "fleet", 21)]
    assert incident.changed == changed and len(incident.nodes) == 16
    assert math.expm1(incident.effect) == pytest.approx(0.06, abs=0.003)


def test_two_steps_of_the_fleet_are_two():
    times = lambda node, night, case: 1.05 * 1.22 if night >= 60 else 1.05 if night >= 40 else 1  # noqa: E731
    events, (incident,) = said(made_summaries(12, 70, times))
    assert events == [("opened", "fleet", 40), ("worse", "fleet", 60)]
    assert math.expm1(incident.effect) == pytest.approx(1.05 * 1.22 - 1, abs=0.01)


def test_half_of_the_fleet_is_not_the_fleet():
    """24 of 48 nodes are slower: no healthy node is, and no number is halved."""
    times = lambda node, night, case: 1.06 if night >= 25 and node < 24 else 1  # noqa: E731
    labels = lambda node, night: {"hall": "a" if node < 24 else "b"}  # noqa: E731
    events, (incident,) = said(made_summaries(48, 35, times, labels))
    assert events == [("opened", "hall=a", 25)]
    assert math.expm1(incident.effect) == pytest.approx(0.06, abs=0.004)


def several(node, night, case):
    """A driver step of the fleet, and two slow nodes, one of them later."""
    step = 1.06 if night >= 20 else 1
    own = {5: (18, 1.1), 7: (26, 1.15)}.get(node, (99, 1))
    return step * (own[1] if night >= own[0] else 1)


@pytest.mark.parametrize("which", ["nccl=2", "fleet@2026-10-21", "node005", "node007@2026-10-27"])
def test_one_acceptance_acquits_one_incident(which):
    runs = list(made_summaries(16, 36, several, environment=versions(20, nccl=1)))
    before = {each.id for each in said(runs)[1]}
    assert before == {"fleet@2026-10-21", "node005@2026-10-19", "node007@2026-10-27"}
    after = judged(runs, accept=[which])
    left = {each.id for each in after.model.incidents if each.state == OPEN}
    assert len(left) == 2 and left < before
    (record,) = [each for each in after.records if each.event == "accepted"]
    assert (record.accepted_by, record.reason) == ("me", "why")


def test_what_was_said_does_not_change_when_more_nights_come():
    """The records of each night, read on every later night."""
    life = made_life("worse", np.random.default_rng(3), 16, 80, quiet=20)
    model = FleetModel()
    by_night = {night: list(records) for night, records in nights_of_panel(model, life.panel, {})}
    for upto in (25, 40, 60):
        again = FleetModel()
        for night, records in nights_of_panel(again, life.panel, {}):
            if night > FIRST_NIGHT + upto:
                break
            assert records == by_night[night]


@pytest.mark.parametrize("kind", ["relapse", "version staged"])
def test_the_memory_of_the_model_is_whole(kind):
    """A model that was written and read after each night says the same."""
    life = made_life(kind, np.random.default_rng(5), 16, 70, quiet=20, missing=0.1)
    whole, read = FleetModel(), FleetModel()
    expected = [records for _, records in nights_of_panel(whole, life.panel, {})]
    found = []
    for _ in range(len(life.panel.log_times)):
        _, records = next(nights_of_panel(read, life.panel, {}))
        found.append(records)
        read = unpack(pack(read))
    assert found == expected and any(found)
    assert read.incidents == whole.incidents


@pytest.mark.parametrize("kind", KINDS)
def test_lives_of_the_benchmark(kind):
    """Nobody is blamed for somebody else's fault. tests/benchmarks/nightly.py has many fleets."""
    life = made_life(kind, np.random.default_rng([7, 0]), 32, 90, quiet=35)
    model = FleetModel()
    for _ in nights_of_panel(model, life.panel, {}):
        pass
    blamed = {each.subject or "fleet" for each in model.incidents}
    truth = {"fleet" if f.scope == "fleet" else f.subject for f in life.faults}
    assert blamed <= truth
    lasting = {
        "fleet" if f.scope == "fleet" else f.subject
        for f in life.faults
        if f.levels(90)[-10:].all()
    }
    open_now = {each.subject or "fleet" for each in model.incidents if each.state == OPEN}
    assert open_now == lasting
    for fault in life.faults:
        began = FIRST_NIGHT + fault.events[0].night
        mine = [i for i in model.incidents if (i.subject or "fleet") in (fault.subject, "fleet")]
        dates = [i.levels[0].night for i in mine if i.scope == fault.scope]
        assert fault.creep or kind == "one bad night" or dates == [began]


def test_wrong_results_are_an_incident_from_the_first_night():
    life = made_life("healthy", np.random.default_rng(1), 8, 40)
    model = FleetModel()
    wrong = {FIRST_NIGHT + 5: {"node002": "all_reduce 1M"}}
    for night, records in nights_of_panel(model, life.panel, wrong):
        if night == FIRST_NIGHT + 5:
            (record,) = records
            assert record.incident == f"node002@{format_night(night)}-wrong"
    (incident,) = model.incidents
    assert incident.state == "closed"  # after 14 nights with right results
    assert incident.ended - incident.seen == 14


@pytest.mark.parametrize("gone", [0, 3])
def test_missing_nights_delay_and_do_not_mislead(gone):
    """The node has no run in some nights before and after the fault, and 3 in 10 otherwise."""
    life = made_life("step", np.random.default_rng(2), 16, 90, quiet=45, missing=0.3)
    (fault,) = life.faults
    began, node = fault.events[0].night, fault.nodes[0]
    life.panel.environment[began - 1 : began + gone, node] = -1
    life.panel.log_times[began - 1 : began + gone, node] = np.nan
    model = FleetModel()
    for _ in nights_of_panel(model, life.panel, {}):
        pass
    (incident,) = model.incidents
    assert incident.subject == fault.subject
    (level,) = incident.levels
    ran = np.flatnonzero(life.panel.environment[:, node] >= 0)
    assert level.night - FIRST_NIGHT == ran[ran >= began][0]
    assert level.night - FIRST_NIGHT - level.unseen == ran[ran < began][-1] + 1
    assert level.unseen >= gone + 1


def test_a_version_is_not_blamed_on_a_rack_whose_other_nodes_have_no_run():
    life = made_life("version on a third", np.random.default_rng([1, 2]), 48, 75, missing=0.3)
    model = FleetModel()
    for _ in nights_of_panel(model, life.panel, {}):
        pass
    assert {each.subject for each in model.incidents} == {"nccl=2.27.7"}


@pytest.mark.parametrize("kind", ["step", "version on a third"])
def test_errors_are_as_large_as_the_intervals_say(kind):
    """The half width of a 90 % interval is 1.645 standard deviations."""
    errors = []
    for seed in range(30):
        life = made_life(kind, np.random.default_rng([3, seed]), 12, 40, quiet=20)
        model = FleetModel()
        for _ in nights_of_panel(model, life.panel, {}):
            pass
        (incident,) = model.incidents
        errors.append(1.645 * (incident.effect - 0.08) / ((incident.high - incident.low) / 2))
    assert 0.8 < np.sqrt(np.mean(np.square(errors))) < 1.2


def test_a_fault_that_began_within_the_first_week_has_its_date():
    events, (incident,) = said(made_summaries(12, 9, slow(3, (3, 1.08))))
    assert events == [("opened", "node003", 3)]
    assert math.expm1(incident.effect) == pytest.approx(0.08, abs=0.006)


def test_nights_have_both_days_and_missing_nodes_a_next_step():
    texts = [night_text(OCTOBER_1 + night) for night in (0, 30)]
    assert texts == ["the night of 1/2 Oct 2026", "the night of 31 Oct/1 Nov 2026"]
    finding = NightFinding(OCTOBER_1, 1, ("node1",), (), (), ("node4",), ())
    assert answer_of(finding).headline == (
        "1 node without a run: node4. See whether a node is down, a job did not start, or a file "
        "was not collected"
    )


def test_files_of_nccl_tests_are_of_the_nights_that_they_record(tmp_path, capsys):
    """Copied files have the time of the copy; nccl-tests records when its run began."""
    random = np.random.default_rng(7)
    for night in range(12):
        for node in range(6):
            factor = 1.3 if node == 4 and night >= 8 else 1.0
            times = [[800.0 * factor * math.exp(random.normal(0, 0.004))] * 3] * 2
            file = made_json(times)
            file["start_time"] = f"2026-05-{10 + night} 23:40:0{node}"
            for device in file["config"]["devices"]:
                device["hostname"] = f"trn{node}"
            (tmp_path / f"{night}-{node}.json").write_text(json.dumps(file))
    main(["nightly", str(tmp_path), "--night", "2026-05-21"])
    out = " ".join(capsys.readouterr().out.split())
    assert "trn4: 30 % slower" in out and "since the night of 18/19 May 2026" in out
    assert "of their own" not in out

    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("start_time", "unnamed_time"))
    main(["nightly", str(tmp_path)])
    out = " ".join(capsys.readouterr().out.split())
    assert "72 runs without a time of their own: the night is when the files were last" in out
