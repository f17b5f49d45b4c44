"""A file that another command reads is refused with the name of that command."""

import gzip
import json

import pytest

from torchcoll.core.errors import UnreadableError
from torchcoll.libraries.job_logs import read_log
from torchcoll.parts.training.traces import read_traffic
from torchcoll.reading.registry import import_file

LOG = "node1:11:12 [0] NCCL INFO Using network IB\n" * 3
TOPOLOGY = '<?xml version="1.0"?>\n<system version="1">\n <cpu numaid="0"/>\n</system>\n'
DUMP = json.dumps({"version": "2.10", "pg_config": {}, "entries": []})
TABLE = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8\n# Avg bus bandwidth    : 21.6\n"
IMB = "#---\n#    Intel(R) MPI Benchmarks 2021.3, MPI-1 part\n#---\n"
# A launcher's report, as torchrun of torch 2.9 prints it.
DEAD = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Root Cause (first observed failure):
[0]:
  host      : node3
  rank      : 5 (local_rank: 1)
  exitcode  : 2 (pid: 41513)
"""

READERS = {
    "show": lambda path: import_file(path),
    "trace": lambda path: read_traffic([path]),
    "log": lambda path: read_log(path),
}


@pytest.mark.parametrize(
    ("asked", "name", "text", "reads"),
    [
        ("show", "nccl.log", LOG, "log"),
        ("show", "topo.xml", TOPOLOGY, "log"),
        ("show", "dump.json", DUMP, "trace"),
        ("trace", "nccl.log", LOG, "log"),
        ("trace", "topo.xml", TOPOLOGY, "log"),
        ("trace", "all reduce.txt", TABLE, "show"),
        ("log", "dump.json", DUMP, "trace"),
        ("log", "table.txt", TABLE, "show"),
        ("log", "imb.txt", IMB, "show"),
        ("log", "job.out", DEAD, "postmortem"),
        ("show", "job.out", DEAD, "postmortem"),
        ("log", "ucc.txt", "       Count        Size                Time, us\n", "show"),
        ("log", "hccl.txt", "data_size(Bytes): | aveg_time(us):\n", "show"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_the_command_that_reads_it(tmp_path, asked, name, text, reads, packed):
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with pytest.raises(UnreadableError) as caught:
        READERS[asked](str(path))
    quoted = f"'{path}'" if " " in str(path) else str(path)
    assert str(caught.value).endswith(f". torchcoll {reads} {quoted} reads it.")


def test_what_no_command_reads(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_text("Dear all,\n")
    with pytest.raises(UnreadableError) as caught:
        READERS["trace"](str(path))
    assert "torchcoll" not in str(caught.value).partition("expected")[2].replace(
        "a traffic file of torchcoll", ""
    )
