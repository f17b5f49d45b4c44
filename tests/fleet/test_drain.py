"""--drain-command: which nodes, how they are quoted, and where each format has the commands."""

from __future__ import annotations

import csv
import io
import json
import shlex

import pytest
from error_form import error_text
from made_fleet import made_fleet

import torchcoll
from torchcoll.cli import main
from torchcoll.parts.fleet.fleet_show import DrainCommands
from torchcoll.parts.fleet.node_report import DrainList

TEMPLATE = "scontrol update nodename={node} state=drain reason={reason}"
REASON = "torchcoll: slow or wrong in 4 of 5 nights"


def saved(folder, nodes, slow, nights=5, first_slow_night=1):
    """A folder of results in which the nodes of ``slow`` take 8 % longer from a night on."""
    folder.mkdir()
    times = lambda n, night, _: 1.08 if n in slow and night >= first_slow_night else 1  # noqa: E731
    for run in made_fleet(nodes, nights, times):
        torchcoll.save(run, folder / f"{run.header['run_id']}.jsonl")
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("fleet") / "runs", 16, {7})


def drain(capsys, folder, *options, code=1):
    assert main(["fleet", folder, "--drain-command", TEMPLATE, *options]) == code
    return capsys.readouterr()


def test_the_commands_follow_the_table(folder, capsys):
    lines = drain(capsys, folder).out.splitlines()
    assert lines[-2] == "1 node to drain: bad in 3 of the last 5 nights"
    assert lines[-1] == f"scontrol update nodename=node007 state=drain reason='{REASON}'"


def test_json_is_one_document(folder, capsys):
    document = json.loads(drain(capsys, folder, "--format", "json").out)
    assert document["drain"] == {
        "headline": "1 node to drain: bad in 3 of the last 5 nights",
        "commands": [f"scontrol update nodename=node007 state=drain reason='{REASON}'"],
    }
    assert document["rows"][0]["node"] == "node007"
    assert main(["fleet", folder, "--format", "json"]) == 1
    assert "drain" not in json.loads(capsys.readouterr().out)


def test_csv_stays_csv(folder, capsys):
    captured = drain(capsys, folder, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(captured.out)))
    assert len(rows) == 16 and rows[0]["node"] == "node007"
    assert captured.err.splitlines()[-1].startswith("scontrol update nodename=node007 ")


def test_markdown_has_them_as_a_block(folder, capsys):
    text = drain(capsys, folder, "--format", "markdown").out
    assert "\n\n1 node to drain: bad in 3 of the last 5 nights\n\n```bash\nscontrol " in text
    assert text.endswith("\n```\n")


def test_nodes_that_are_drained_already(folder, capsys, tmp_path):
    names = tmp_path / "drained"
    names.write_text("node003\nnode007\n")
    lines = drain(capsys, folder, "--drained", str(names)).out.splitlines()
    assert lines[-1].startswith("0 nodes to drain; 1 drained already")
    names.write_text("")  # the usual case: no node of the cluster is drained
    assert "nodename=node007 " in drain(capsys, folder, "--drained", str(names)).out


def test_two_slow_nodes_of_16_are_more_than_2_percent(tmp_path, capsys):
    lines = drain(capsys, saved(tmp_path / "runs", 16, {3, 7})).out.splitlines()
    assert lines[-1] == (
        "fleet-wide: drain nothing. 2 of 16 nodes were slow in 3 of 5 nights; at most 1 may be"
    )


def test_two_slow_nights_are_not_enough(tmp_path, capsys):
    folder = saved(tmp_path / "runs", 16, {7}, first_slow_night=3)
    assert drain(capsys, folder).out.splitlines()[-1].startswith("0 nodes to drain: ")


def test_two_nights_are_not_enough(tmp_path, capsys):
    folder = saved(tmp_path / "runs", 16, {7}, nights=2, first_slow_night=0)
    last = drain(capsys, folder).out.splitlines()[-1]
    assert last == "drain nothing: 2 nights, at least 3 are needed"


@pytest.mark.parametrize("node", ["n[1-999]", "ALL", "a,b", "-x", "{reason}", "a b", "a\nb", ""])
def test_a_name_that_slurm_would_take_as_several_nodes_gets_no_command(node):
    commands = DrainCommands.fill(TEMPLATE, DrainList("1 node to drain", ((node, "slow"),)))
    assert commands.commands == ()
    assert "\n" not in commands.headline
    assert commands.headline.startswith("1 node to drain; no command for what is no host name: ")


def test_a_reason_is_one_word_to_the_shell():
    reason = "it's {node}; $(reboot)"
    (command,) = DrainCommands.fill(TEMPLATE, DrainList("", (("n1", reason),))).commands
    words = ["scontrol", "update", "nodename=n1", "state=drain", f"reason={reason}"]
    assert shlex.split(command) == words


def test_a_command_without_a_node(folder, capsys):
    assert main(["fleet", folder, "--drain-command", "reboot"]) == 2
    assert error_text("drain-command", "reboot", "a command with {node}") in capsys.readouterr().err
