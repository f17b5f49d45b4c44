"""`fleet` and `history` say the same of files and of the store that collected them."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from made_fleet import made_fleet

import torchcoll
from torchcoll.cli import main


def printed(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(arguments))
    return code, out.getvalue()


def saved_fleet(folder: Path, nights: int, slow_from: int) -> str:
    """12 nodes over some nights, of which node004 is 8 % slower from one night on."""
    folder.mkdir()
    slow = lambda node, night, case: 1.08 if node == 4 and night >= slow_from else 1.0  # noqa: E731
    for run in made_fleet(12, nights, slow):
        torchcoll.save(run, folder / f"{run.header['run_id']}.jsonl")
    return str(folder)


def test_the_same_answers_from_files_and_from_a_store(tmp_path, store):
    nightly = saved_fleet(tmp_path / "nightly", 12, slow_from=7)
    assert printed("collect", nightly, "--into", store)[0] == 0
    for command in ("fleet", "history"):
        for form in ("table", "json"):
            of_files = printed(command, nightly, "--format", form)
            assert of_files[0] == 1
            assert "node004" in of_files[1]
            assert printed(command, store, "--format", form) == of_files


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
        [],
        ["--night", "2026-10-04"],
        ["--night-start", "23:30"],
        ["--night", "2026-10-01"],
        ["--night", "2026-10-06", *drain],
        [*drain],
    ):
        of_files = printed("fleet", nightly, "--format", "json", *options)
        assert printed("fleet", store, "--format", "json", *options) == of_files
    assert printed("fleet", store, "--night", "2020-01-01")[0] == 2
    assert "clock of ahead" in printed("fleet", store)[1]
    assert "drain node004" in printed("fleet", store, *drain)[1]
