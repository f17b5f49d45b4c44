"""Every command that reads a file refuses what it cannot use, in one line with exit code 3."""

import contextlib
import io
from pathlib import Path

import pytest
from sent import ddp, traffic

from torchcoll import cli
from torchcoll.cli import main

ROOT = Path(__file__).parents[1]
RUN = "run.jsonl"  # a good result file
# Arguments of each command; @ is the file that cannot be used.
READERS = {
    "show": "show @",
    "check": "check @",
    "check --baseline": f"check {RUN} --baseline @",
    "show --explain": "show @ --explain",
    "log": "log @",
    "convert": "convert @ -o rows.csv",
    "plot": "plot @ -o picture.png",
    "report": "report @ -o page.md",
    "compare": f"compare {RUN} @",
    "compare, base": f"compare @ {RUN}",
    "again": "again @ --dry-run",
    "algorithms": "algorithms @",
    "cold": "cold @",
    "curve": "curve @",
    "scaling": "scaling @",
    "pairs": "pairs @",
    "model fit": "model fit @ -o fitted.json",
    "model predict": "model predict @ --sizes 1M --ranks 2",
    "postmortem": "postmortem @",
    "nightly": "nightly @ --night last",
    "check --learn": "check --learn @ -o good.json",
    "collect": "collect @ --into collected.sqlite",
    "collect --prune": "collect --into @ --prune 400d",
    "trace": "trace @",
    "gradients": "gradients @ --machine 8xH100",
    "gradients --machine": "gradients capture.jsonl --machine @",
    "plan": "plan @ --machine 8xH100",
    "plan --machine": "plan llama-3-8b --parallel fsdp=8 --machine @",
}
# These read no file that exists already, or run on the ranks.
OTHERS = {"run", "doctor", "versus", "bisect", "matrix", "replay"}
# What some commands can use.
USABLE = {
    "headless.jsonl": {"show", "check", "convert", "report", "postmortem"} | {"nightly", "collect"},
    "capture.jsonl": {"show", "report", "postmortem", "trace", "gradients", "plan"},
    "store.sqlite": {
        "check --baseline",
        "nightly",
        "check --learn",
        "collect --prune",
        "report",
    },
}
NAMES = (
    "missing.json",
    "empty",
    "folder",
    "binary",
    "history.csv",
    "other.json",
    "manifest.jsonl",
    *USABLE,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("inputs")
    text = (ROOT / "examples/nccl_vs_oneccl/gloo-2ranks-cpu.jsonl").read_text()
    (path / RUN).write_text(text)
    # Killed before the first case.
    (path / "headless.jsonl").write_text(text[: text.index("\n") + 1])
    (path / "empty").touch()
    (path / "folder").mkdir()
    (path / "binary").write_bytes(bytes(range(256)) * 8)
    (path / "history.csv").write_text("date,value\n2026-11-01,3.5\n")
    # Of a matrix whose every run failed: what DIR/*.jsonl is then.
    (path / "manifest.jsonl").write_text('{"record":"matrix","version":1}\n')
    (path / "other.json").write_text('{"a": [1, 2]}\n')
    traffic(ddp, steps=3).save(path / "capture.jsonl")
    with contextlib.chdir(path), contextlib.redirect_stdout(io.StringIO()):
        assert main(["collect", RUN, "--into", "store.sqlite"]) == 0
    return path


def test_each_command_is_here():
    assert {name.split()[0].rstrip(",") for name in READERS} | OTHERS == set(cli.commands())


@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_used_is_refused_in_one_line(reader, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for name in NAMES:
        if reader in USABLE.get(name, ()):
            continue
        code = main([name if word == "@" else word for word in READERS[reader].split()])
        out, err = capsys.readouterr()
        assert code == 3, (name, err)
        assert out == "" or reader == "collect"
        assert err.startswith("torchcoll: error: ") and err.count("\n") == 1, err
        assert ": got " in err and ", expected " in err, err


def test_a_node_whose_run_has_no_case_failed(folder, capsys):
    assert main(["nightly", str(folder / "headless.jsonl"), "--night", "last"]) == 1
    assert "the run did not end" in capsys.readouterr().out
