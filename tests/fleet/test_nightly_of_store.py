"""`nightly` says the same of files and of the store that collected them, and a store keeps it."""

from __future__ import annotations

import contextlib
import io
import json
import os
from dataclasses import replace
from pathlib import Path

from made_fleet import made_fleet
from made_stores import rows

import torchcoll
from torchcoll.cli import main
from torchcoll.core.result import Verification
from torchcoll.parts.fleet.night_charts import night_charts
from torchcoll.parts.fleet.nightly import NightRequest, judge_night
from torchcoll.questions.page.document import page_of


def printed(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(arguments))
    return code, out.getvalue()


def saved_fleet(folder: Path, nights: int, slow_from: int, slow_to: int = 99) -> str:
    """12 nodes over some nights, of which node004 is 8 % slower from one night to another."""
    folder.mkdir()
    slow = lambda node, night, _: 1.08 if node == 4 and slow_from <= night < slow_to else 1.0  # noqa: E731
    for run in made_fleet(12, nights, slow):
        torchcoll.save(run, folder / f"{run.header['run_id']}.jsonl")
    return str(folder)


def test_the_same_answers_from_files_and_from_a_store(tmp_path, store):
    nightly = saved_fleet(tmp_path / "nightly", 14, slow_from=8)
    assert printed("collect", nightly, "--into", store)[0] == 0
    for options in (("table",), ("json",), ("line",), ("table", "--why")):
        asked = ("--night", "last", "--format", *options)
        of_files = printed("nightly", nightly, *asked)
        assert of_files[0] == 1
        assert "node004" in of_files[1]
        assert printed("nightly", store, *asked) == of_files
    page = page_of([store])
    assert page.answers[0].subject.startswith("node004: 8.")
    (strip,) = page.sections[0].charts[0].charts[0].traces
    # Slow in the last 6 of 14 nights: the nights before have no colour.
    assert (strip["y"], [value is not None for value in strip["z"][0]][-7:]) == (
        ["node004<br>8.1 % slower since 2026-10-09"],
        [False] + [True] * 6,
    )


def test_a_node_that_recovered_stays_in_the_picture(tmp_path):
    """The nights count from 2026-10-01; the picture begins 7 nights before the first slow one."""
    nightly = saved_fleet(tmp_path / "nightly", 24, slow_from=9, slow_to=15)
    request = NightRequest(last=True)
    (chart,) = night_charts(judge_night([nightly], request))
    (strip,) = chart.traces
    (name,) = strip["y"]
    assert name.endswith("slower from 10-10 to 10-15")
    assert [value is not None for value in strip["z"][0]] == 7 * [False] + 6 * [True] + 9 * [False]
    assert chart.caption[1] == ("nights 2026-10-03 to 2026-10-24 of 24; blank: as usual, or no run")


def test_one_night_of_many(tmp_path, store):
    """Only that night is read of a store; nodes, nights and clocks of the others count alike."""
    nightly = saved_fleet(tmp_path / "nightly", 7, slow_from=3)
    for number, (changed, labels) in enumerate(
        (
            ({"start_utc": "2026-10-04T03:00:00Z"}, {"node": "gone"}),
            ({"start_utc": "2036-10-04T03:00:00Z"}, {"node": "ahead"}),
            ({"start_utc": None}, {"node": "undated"}),
        )
    ):
        (run,) = made_fleet(1, labels=lambda node, night, own=labels: own)
        run.header |= {"run_id": f"odd-{number}", **changed}
        path = f"{nightly}/odd-{number}.jsonl"
        torchcoll.save(run, path)
        # Received on 2026-10-04: the undated run counts in that night.
        os.utime(path, (1_791_072_000, 1_791_072_000))
    assert printed("collect", nightly, "--into", store)[0] == 0
    drain = ("--drain-command", "drain {node}")
    for options in (
        ["--night", "2026-10-04"],
        ["--night", "2026-10-06", *drain],
        ["--night", "last"],
    ):
        of_files = printed("nightly", nightly, "--format", "json", *options)
        assert printed("nightly", store, "--format", "json", *options) == of_files
    assert printed("nightly", store, "--night", "2020-01-01")[0] == 2


def test_what_was_said_stays(tmp_path, store):
    """Night by night: what a store kept of a night is what was printed in it."""
    nightly = Path(saved_fleet(tmp_path / "nightly", 16, slow_from=9))
    of_night: dict[str, str] = {}
    for number in range(16):
        files = [str(path) for path in sorted(nightly.glob(f"{number:04}-*"))]
        # The collector reads half of the night first, and judges it.
        for some in (files[:6], files[6:]):
            assert printed("collect", *some, "--into", store)[0] == 0
            date = f"2026-10-{number + 1:02}"
            of_night[date] = printed("nightly", store, "--night", date, "--format", "json")[1]
    for date, text in of_night.items():
        again = json.loads(printed("nightly", store, "--night", date, "--format", "json")[1])
        said = json.loads(text)
        assert [row["incident"] for row in again["rows"]] == [r["incident"] for r in said["rows"]]
        assert again["answer"]["headline"] == said["answer"]["headline"]
    # Runs that are removed change nothing of it.
    assert printed("collect", "--into", store, "--prune", "1s")[0] == 0


def test_an_acceptance_stays_and_acquits_one_incident(tmp_path, store):
    nightly = Path(saved_fleet(tmp_path / "nightly", 16, slow_from=9))
    first = [str(path) for path in sorted(nightly.glob("*")) if path.name < "0014"]
    assert printed("collect", *first, "--into", store)[0] == 0
    last = ("--night", "last")
    assert printed("nightly", store, *last)[0] == 1
    assert printed("nightly", store, *last, "--accept", "node007")[0] == 2
    accepted = printed("nightly", store, *last, "--accept", "node004@2026-10-10", "--reason", "x")
    assert accepted[0] == 0 and "accepted: node004@2026-10-10" in accepted[1]
    assert printed("nightly", store, *last)[0] == 0
    assert printed("collect", str(nightly), "--into", store)[0] == 0
    assert printed("nightly", store, *last)[0] == 0
    (row,) = rows(store, "SELECT * FROM incident_records WHERE event = 'accepted'")
    assert (row["incident"], row["reason"]) == ("node004@2026-10-10", "x")


def checked(store: str, *files: Path) -> tuple[int, list[str]]:
    code, text = printed("check", *map(str, files), "--baseline", store, "--format", "json")
    return code, [each["verdict"]["word"] for each in json.loads(text)]


def test_check_and_nightly_say_the_same_of_a_run(tmp_path):
    """Wrong results 2 nights ago are open; an accepted level is usual, and the one before is not.
    The first slow night of a fleet is named by both.
    """
    store, folder = str(tmp_path / "store.sqlite"), tmp_path / "nightly"
    folder.mkdir()
    times = lambda node, night, case: 1.08 if (node == 4 and night >= 9) else 1.0  # noqa: E731
    for run in made_fleet(8, 20, times, noise=0.004):
        number = run.header["run_id"]
        if number == "0015-0002":
            wrong = replace(run.results[0], verification=Verification(checked=100, wrong=1))
            run = replace(run, results=[wrong, *run.results[1:]])
        torchcoll.save(run, folder / f"{number}.jsonl")
    until = [str(path) for path in sorted(folder.glob("*")) if path.name < "0017-0008"]
    assert printed("collect", *until, "--into", store)[0] == 0
    tonight = [folder / f"0017-{node:04}.jsonl" for node in (2, 3, 4)]
    assert printed("nightly", store, "--night", "last")[0] == 1
    assert checked(store, *tonight) == (1, ["FAIL", "PASS", "FAIL"])
    accepted = printed("nightly", store, "--night", "last", "--accept", "node004@2026-10-10")[1]
    assert "node002: wrong results" in accepted and "node004: 8" not in accepted
    assert checked(store, *tonight) == (1, ["FAIL", "PASS", "PASS"])


def test_the_first_slow_night_of_all_nodes_is_named(tmp_path):
    folder = tmp_path / "nightly"
    folder.mkdir()
    for run in made_fleet(8, 15, lambda node, night, case: 1.08 if night == 14 else 1.0):
        torchcoll.save(run, folder / f"{run.header['run_id']}.jsonl")
    code, text = printed("nightly", str(folder), "--night", "last", "--format", "json")
    (row,) = json.loads(text)["rows"]
    assert (code, row["result"], row["who"]) == (1, "slow tonight", "fleet")
    assert 7 < row["slower_percent"] < 9
    files = sorted(folder.glob("0014-*"))
    assert checked(str(folder), *files) == (1, ["FAIL"] * 8)
