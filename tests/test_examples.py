"""examples/: the commands of nccl_vs_oneccl run, and print what its README shows."""

import re
import shlex
from pathlib import Path

import pytest
from ranks import Measured

from torchcoll.cli import main
from torchcoll.reading.inputs import load

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples/nccl_vs_oneccl"
README = (FOLDER / "README.md").read_text()
COMMANDS = re.findall(r"^```bash\n([^`]*)\n```\n", README, re.M | re.S)
SHOWN = dict(re.findall(r"^```bash\n([^`]*)\n```\n\n```text\n(.*?)^```\n", README, re.M | re.S))
(LAUNCH,) = set(COMMANDS) - set(SHOWN)


@pytest.mark.parametrize("command", SHOWN)
def test_nccl_vs_oneccl_prints_what_its_readme_shows(command, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(command)
    assert program == "torchcoll"
    assert main(arguments) == 0
    assert capsys.readouterr().out == SHOWN[command]


def test_nccl_vs_oneccl_has_no_verdict_where_there_is_no_evidence():
    measured, across, alike = (text for command, text in SHOWN.items() if " compare " in command)
    # What the version that measured it said, of the same samples in the schema of that time.
    assert measured.startswith("ccl is 4.6x faster than gloo (geometric mean of 32 cases, ")
    assert "; not decided: broadcast 16M\n  1.11x faster" in measured
    assert not re.search(r"\b(faster|slower|same)\b", across)
    assert "; not proven: single means, 1 run a side; " in alike.replace("\n  ", " ")
    assert (across.count("not comparable (different hardware"), alike.count("inconclusive (")) == (
        2,
        1,
    )


def test_the_launch_that_made_the_gloo_file(tmp_path):
    launcher, _, arguments = LAUNCH.partition(" -m torchcoll.allreduce ")
    arguments, _, _ = arguments.partition(" -J ")
    run = load(FOLDER / "gloo-2ranks-cpu.jsonl")
    assert launcher.split()[-1] == str(run.ranks) == "2"
    assert run.header["argv"][:-2] == arguments.split()
    again = Measured(tmp_path / "again", "all_reduce", arguments, run.ranks).ended(0).run
    assert [r.case for r in again.results] == [r.case for r in run.results]
