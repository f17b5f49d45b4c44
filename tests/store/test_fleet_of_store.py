"""`fleet` and `history` say the same of files and of the store that collected them."""

from __future__ import annotations

import contextlib
import io

import pytest
from made_fleet import made_fleet

import torchcoll
from torchcoll.cli import main


def printed(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(arguments))
    return code, out.getvalue()


@pytest.fixture
def nightly(tmp_path) -> str:
    """12 nodes over 30 nights, of which node004 is 8 % slower from night 20 on."""
    folder = tmp_path / "nightly"
    folder.mkdir()
    for run in made_fleet(
        12, 30, lambda node, night, case: 1.08 if node == 4 and night >= 20 else 1.0
    ):
        torchcoll.save(run, folder / f"{run.header['run_id']}.jsonl")
    return str(folder)


def test_the_same_answers_from_files_and_from_a_store(nightly, store):
    assert printed("collect", nightly, "--into", store)[0] == 0
    for command in ("fleet", "history"):
        for form in ("table", "json"):
            of_files = printed(command, nightly, "--format", form)
            assert of_files[0] == 1
            assert "node004" in of_files[1]
            assert printed(command, store, "--format", form) == of_files
