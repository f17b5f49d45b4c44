"""The limits of a topology in ``torchcoll log``: what the links allow."""

import csv
import io
import json
import os
import re

import pytest
from error_form import error_line, error_text
from made_topologies import hgx

from torchcoll.cli import main


@pytest.fixture
def host(tmp_path):
    path = tmp_path / "topo.xml"
    path.write_text(hgx())
    return str(path)


def test_the_sentence_ends_it(host, capsys):
    assert main(["log", host]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "within the host, 8 GPUs: RING at most 370.800 GB/s busbw, NCCL expects NVLS 490.280 "
        "in all_reduce; "
        "over 2 hosts like it, 16 GPUs: RING at most 370.800 GB/s busbw, "
    )


def test_what_contains_a_tuning_constant_is_no_bound(host, capsys):
    """0.85 of nvlsEfficiency x 370.8 x 2 x 7 / 9 = 490.28: a later NCCL may be faster."""
    assert main(["log", host, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["limits"]["rows"]
    inside = {row["algorithm"]: row for row in rows if row["hosts"] == 1 and row["busbw_gbps"]}
    assert (inside["RING"]["is_bound"], inside["NVLS"]["is_bound"]) == (True, False)
    assert main(["log", host]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    cells = [line for line in lines if line[:1] == ["NVLS"] and "490.280" in line]
    assert cells and all(line[line.index("490.280") - 1] == "-" for line in cells)


def test_one_interface_limits_several_hosts(tmp_path, capsys):
    """0.125 GB/s over hosts because the file has one interface of 1 Gbit/s: it says so."""
    path = tmp_path / "topo.xml"
    one = re.sub(r'<net name="mlx5_[1-7]".*?/>', "", hgx()).replace(
        'speed="400000"', 'speed="1000"'
    )
    path.write_text(one)
    assert main(["log", str(path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(": the file has 1 network interface, 0.125 GB/s")
    assert "4 hosts" not in last


def test_a_cut_file_bounds_nothing(tmp_path, capsys):
    path = tmp_path / "cut.xml"
    path.write_text(hgx()[:1500])
    assert main(["log", str(path)]) == 0
    stated = capsys.readouterr()
    assert "no limit is known: the file is cut off" in stated.out.splitlines()[-1]
    assert "at most" not in stated.out
    assert "warning:" in stated.err


def test_of_several_files_those_without_a_limit_are_named(tmp_path, capsys):
    (tmp_path / "a.xml").write_text(hgx())
    (tmp_path / "b.xml").write_text(hgx()[:1500])
    assert main(["log", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "no limit is known: 1 of 2 files gives none, such as b.xml: the file is cut off" in last


def test_a_topology_for_nccl_names_how_to_get_a_dump(tmp_path, capsys):
    path = tmp_path / "input.xml"
    path.write_text(re.sub(r"<gpu.*?</gpu>|<gpu[^>]*/>", "", hgx(), flags=re.DOTALL))
    assert main(["log", str(path)]) == 0
    assert capsys.readouterr().out.startswith(
        "8 GPUs and 8 network interfaces on PCI links of 48.000 GB/s; the links of the GPUs are "
        "not in this file, as in one for NCCL_TOPO_FILE\nNext: set NCCL_TOPO_DUMP_FILE=topo.xml "
        "for a job on this machine, and give that file\n"
    )


def test_several_hosts_are_as_fast_as_the_slowest(tmp_path, host, capsys):
    slow = tmp_path / "slow.xml"
    slow.write_text(hgx(gbits=200))
    assert main(["log", host, str(slow), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["limits"]["rows"]
    (ring,) = (row for row in rows if (row["hosts"], row["algorithm"]) == (2, "RING"))
    assert ring["busbw_gbps"] == 200


def test_csv_has_every_limit(host, capsys):
    assert main(["log", host, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["hosts"] for row in rows if row["table"] == "limits"} == {"1", "2", "4"}


def test_a_file_without_gpus_has_no_limits(tmp_path, capsys):
    path = tmp_path / "empty.xml"
    path.write_text('<system version="1"></system>')
    assert main(["log", str(path)]) == 0
    err = capsys.readouterr().err
    expected = error_text("topology", f"no GPU in {path}", "one or more")
    assert err == f"torchcoll: warning: no limits: {expected}\n"


# What the child does with torch: a machine of so many GPUs, whose NCCL writes its files.
FAKE_TORCH = """
import os

def zeros(n, device):
    return device

class nccl:
    def all_reduce(inputs):
        assert inputs == [f"cuda:{n}" for n in range(8)], inputs
        with open(os.environ["NCCL_TOPO_DUMP_FILE"], "w") as file:
            file.write(open(os.environ["TOPOLOGY"]).read())

class cuda:
    nccl = nccl
    device_count = staticmethod(lambda: int(os.environ["GPUS"]))

import sys
sys.modules["torch.cuda"] = cuda
"""


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """A stand-in for torch with this number of GPUs, for a child process."""
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text(FAKE_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "own.xml").write_text(hgx())
    monkeypatch.setenv("TOPOLOGY", str(tmp_path / "own.xml"))
    return lambda number: monkeypatch.setenv("GPUS", str(number))


def test_this_machines_topology_is_dumped(gpus, host, capsys):
    """The result is that of the file which NCCL would write, with the name of this host."""
    gpus(8)
    assert main(["log"]) == 0
    live = capsys.readouterr().out
    assert main(["log", host]) == 0
    assert live == capsys.readouterr().out.replace(host, os.uname().nodename)
    gpus(0)
    assert main(["log"]) == 4
    assert capsys.readouterr().err == error_line(
        "limits of this machine",
        "no GPU that torch can use",
        "GPUs and NCCL. Where they are, set NCCL_TOPO_DUMP_FILE=topo.xml for a run; "
        "then torchcoll log topo.xml.\n",
    )
