"""--drain-command: which nodes, how they are quoted, and where each format has the commands."""

import csv
import io
import json
import re
import shlex
from types import SimpleNamespace

import pytest
from error_form import error_text
from made_fleet import made_fleet

import torchcoll
from torchcoll.cli import main
from torchcoll.parts.fleet.nightly import drain_of, expand_nodes

TEMPLATE = "scontrol update nodename={node} state=drain reason={reason}"
REASON = "torchcoll: 8.0 % slower since 2026-10-10 (node007@2026-10-10)"


def saved(folder, nodes, slow, nights=13, first_slow_night=9, wrong=()):
    """A folder of results in which the nodes of ``slow`` take 8 % longer from a night on, and those
    of ``wrong`` have a wrong result in the last night.
    """
    folder.mkdir()
    times = lambda n, night, _: 1.08 if n in slow and night >= first_slow_night else 1  # noqa: E731
    for index, run in enumerate(made_fleet(nodes, nights, times)):
        if index // nodes == nights - 1 and index % nodes in wrong:
            run.results[0].status = "wrong"
        torchcoll.save(run, folder / f"{run.header['run_id']}.jsonl")
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("fleet") / "runs", 16, {7})


def finding_of(node, incident):
    """With wrong results of one node."""
    wrong = SimpleNamespace(kind="wrong", scope="node", subject=node, id=incident)
    return SimpleNamespace(open=[wrong], nodes=(node,))


def drain(capsys, folder, *options, code=1):
    arguments = ["nightly", folder, "--night", "last", "--drain-command", TEMPLATE, *options]
    assert main(arguments) == code
    return capsys.readouterr()


def test_the_commands_follow_the_table(folder, capsys):
    lines = drain(capsys, folder).out.splitlines()
    assert lines[-2] == "1 node to drain"
    assert re.sub(r"[78]\.\d %", "8.0 %", lines[-1]) == (
        f"scontrol update nodename=node007 state=drain reason='{REASON}'"
    )


def test_json_is_one_document(folder, capsys):
    document = json.loads(drain(capsys, folder, "--format", "json").out)
    assert document["drain"]["headline"] == "1 node to drain"
    (command,) = document["drain"]["commands"]
    assert command.startswith("scontrol update nodename=node007 state=drain reason='torchcoll: ")
    assert document["rows"][0]["who"] == "node007"
    assert main(["nightly", folder, "--night", "last", "--format", "json"]) == 1
    assert "drain" not in json.loads(capsys.readouterr().out)


def test_csv_stays_csv(folder, capsys):
    captured = drain(capsys, folder, "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(captured.out))
    assert (row["who"], row["result"]) == ("node007", "slow")
    assert captured.err.splitlines()[-1].startswith("scontrol update nodename=node007 ")


def test_nodes_that_are_drained_already(folder, capsys, tmp_path):
    names = tmp_path / "drained"
    names.write_text("node003\nnode007\n")
    lines = drain(capsys, folder, "--drained", str(names)).out.splitlines()
    assert lines[-1].startswith("0 nodes to drain; 1 drained already")
    names.write_text("")  # the usual case: no node of the cluster is drained
    assert "nodename=node007 " in drain(capsys, folder, "--drained", str(names)).out


def test_many_slow_nodes_have_a_common_cause(tmp_path, capsys):
    lines = drain(capsys, saved(tmp_path / "runs", 16, {3, 7, 11})).out.splitlines()
    assert lines[-1] == (
        "0 nodes to drain; 3 of 16 nodes are slow: find their common cause before you drain them "
        "(at most 2 are listed)"
    )


def test_one_wrong_result_is_enough_however_many_there_are(tmp_path, capsys):
    """A node with wrong results goes, whatever else is slow."""
    path = saved(tmp_path / "runs", 16, {3, 7, 11}, wrong={5, 6, 8})
    out = drain(capsys, path).out
    assert "3 nodes to drain; 3 of 16 nodes are slow" in out
    assert [line.split()[2] for line in out.splitlines() if line.startswith("scontrol")] == [
        "nodename=node005",
        "nodename=node006",
        "nodename=node008",
    ]


def test_one_slow_night_is_not_enough(tmp_path, capsys):
    folder = saved(tmp_path / "runs", 16, {7}, first_slow_night=12)
    captured = drain(capsys, folder).out
    assert captured.splitlines()[-1] == "0 nodes to drain"
    assert "tonight, for the first time. Run it again" in " ".join(captured.split())


@pytest.mark.parametrize("node", ["n[1-999]", "ALL", "a,b", "-x", "{reason}", "a b", "a\nb", ""])
def test_a_name_that_slurm_would_take_as_several_nodes_gets_no_command(node):
    drained = drain_of(finding_of(node, "id"), TEMPLATE)
    assert drained.commands == ()
    assert "\n" not in drained.headline
    assert drained.headline.startswith("1 node to drain; no command for what is no host name: ")


def test_a_reason_is_one_word_to_the_shell():
    (command,) = drain_of(finding_of("n1", "it's {node}; $(reboot)"), TEMPLATE).commands
    reason = "torchcoll: wrong results (it's {node}; $(reboot))"
    words = ["scontrol", "update", "nodename=n1", "state=drain", f"reason={reason}"]
    assert shlex.split(command) == words


def test_a_command_without_a_node(folder, capsys):
    assert main(["nightly", folder, "--drain-command", "reboot"]) == 2
    assert error_text("drain-command", "reboot", "a command with {node}") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        # The forms of Slurm's own manuals (sinfo, scontrol, slurm.conf).
        ("lx[0003,8]", ["lx0003", "lx8"]),
        ("adev[8-10],tux1", ["adev8", "adev9", "adev10", "tux1"]),
        ("rack[1-2]node[09-10]", ["rack1node09", "rack1node10", "rack2node09", "rack2node10"]),
        ("linux[00-02,10]-ib", ["linux00-ib", "linux01-ib", "linux02-ib", "linux10-ib"]),
    ],
)
def test_nodes_as_slurm_lists_them(text, nodes):
    assert expand_nodes(text) == frozenset(nodes)


@pytest.mark.parametrize("text", ["", "n[1-", "n[3-1]", "a,,b", "n[a-b]", "n]", "n[1-999999999]"])
def test_what_is_no_list_of_nodes(folder, text, capsys):
    assert main(["nightly", folder, "--night", "last", "--expected-nodes", text]) == 2
    error = error_text(
        "expected-nodes", text or "an empty text", "nodes such as gpu[001-048],login1"
    )
    assert error in capsys.readouterr().err


def test_expected_nodes_are_missing_and_no_others(folder, capsys):
    expected = ("--expected-nodes", "node[000-015,099]")
    main(["nightly", folder, "--night", "last", "--format", "json", *expected])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["who"] for row in rows if row["result"] == "missing"] == ["node099"]
