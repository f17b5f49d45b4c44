"""Output of tools that do not measure collectives is refused with the name of the tool."""

import pytest
from error_form import error_tail, got
from foreign_files import text

from torchcoll.cli import main
from torchcoll.core.errors import ForeignError

NVBANDWIDTH = """\
nvbandwidth Version: v0.4
Built from Git version: v0.4.2-12-g8857188

NOTE: This tool reports current measured bandwidth on your system.

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
          0         1
0       N/A    264.30
1    262.10       N/A

SUM device_to_device_memcpy_read_ce 526.40
"""
NVBANDWIDTH_JSON = """\
{
  "nvbandwidth" : {
    "CUDA Runtime Version" : 12080,
    "testcases" : []
  }
}
"""
PERFTEST = """\
************************************
* Waiting for client to connect... *
************************************
---------------------------------------------------------------------------------------
                    {title}
 Dual-port       : OFF          Device         : mlx5_0
 Number of qps   : 1            Transport type : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             184.60             184.59             0.352073
---------------------------------------------------------------------------------------
"""
# The output of ncclras in the user's guide of NCCL.
RAS = """\
NCCL version 2.24.3 compiled with CUDA 12.7
CUDA runtime version 12070, driver version 12070

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.00s)
=============
"""
OUTPUTS = [
    (NVBANDWIDTH, "nvbandwidth", "torchcoll.pairs"),
    (NVBANDWIDTH_JSON, "nvbandwidth", "torchcoll.pairs"),
    (PERFTEST.format(title="RDMA_Read Latency Test"), "perftest", "torchcoll.pairs"),
    (RAS, "NCCL's RAS", "torchcoll postmortem"),
]


@pytest.mark.parametrize(("content", "tool", "action"), OUTPUTS)
@pytest.mark.parametrize("before", ["", "$ ./run.sh\nHello\n"])
@pytest.mark.parametrize("command", ["show", "convert", "compare"])
def test_one_line_names_the_tool(tmp_path, capsys, command, before, content, tool, action):
    path = tmp_path / "x.txt"
    path.write_text(before + content)
    assert main([command, *[str(path)] * (1 + (command == "compare"))]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert got(error_tail(path, f"results of collectives; this is output of {tool}")) in err
    assert action in err


def test_they_are_skipped_in_a_folder_with_results(tmp_path, capsys):
    """Such files in a folder are skipped and named, like all files that are not results."""
    (tmp_path / "bandwidth.txt").write_text(NVBANDWIDTH)
    (tmp_path / "nccl.txt").write_text(text())
    assert main(["show", str(tmp_path)]) == 0
    assert "bandwidth.txt" in capsys.readouterr().err


def test_collectives_after_it_are_read(imported):
    assert imported(NVBANDWIDTH + text()).importer == "nccl-tests"
    assert imported(PERFTEST.format(title="Send BW Test") + text()).importer == "nccl-tests"


def test_another_importer_may_be_forced(imported):
    with pytest.raises(ForeignError):
        imported(RAS)
    assert imported(RAS, importer="plain").runs == []
