"""Chakra execution traces: bytes written by hand, and ASTRA-sim's examples."""

from __future__ import annotations

import pytest

from torchcoll.core.errors import UnreadableError
from torchcoll.importers.traces import read_traffic
from torchcoll.libraries.execution_trace import (
    COLLECTIVE,
    COMP,
    ChakraNode,
    encode_nodes,
    read_nodes,
)

# examples/workload/microbenchmarks/all_gather/16npus_1MB/all_gather.0.et of ASTRA-sim, as it is:
# GlobalMetadata 0.0.4, then one COMM_COLL node with comm_type 2 and comm_size 1 MiB.
EXAMPLE = (
    b"\x07\x0a\x050.0.4\x49\x12\x15all_gather_16npus_1MB\x18\x07"
    b"R\x0e\n\tis_cpu_op\xd8\x01\x00R\r\n\tcomm_typeH\x02R\x0f\n\tcomm_sizeH\x80\x80@"
)


def test_astra_sims_own_example(tmp_path):
    for rank in range(3):
        (tmp_path / f"all_gather.{rank}.et").write_bytes(EXAMPLE)
    traffic = read_traffic([tmp_path])
    assert (traffic.source, traffic.ranks, sorted(traffic.calls)) == ("chakra", 3, [0, 1, 2])
    (call,) = traffic.calls[2]
    assert (call.collective, call.bytes_in, call.bytes_out) == ("all_gather", 1 << 20, 3 << 20)
    assert traffic.groups["world"].ranks == (0, 1, 2)


def test_what_is_written_is_that_example():
    attributes = {"is_cpu_op": False, "comm_type": 2, "comm_size": 1 << 20}
    node = ChakraNode(0, "all_gather_16npus_1MB", COLLECTIVE, attributes=attributes)
    assert encode_nodes([node]) == EXAMPLE


def test_a_step_is_read_as_it_was_written(tmp_path):
    nodes = [
        ChakraNode(0, "compute", COMP, (), 5, 300, {"is_cpu_op": False}),
        ChakraNode(
            1, "sum", COLLECTIVE, (0,), 305, 40, {"comm_type": 0, "comm_size": 64, "pg_name": "2"}
        ),
        ChakraNode(2, "to", 5, (0, 1), 0, 0, {"comm_size": 8, "comm_dst": 1, "comm_tag": 300}),
    ]
    path = tmp_path / "step.0.et"
    path.write_bytes(encode_nodes(nodes))
    assert read_nodes(path) == nodes
    (tmp_path / "step.1.et").write_bytes(encode_nodes(nodes[1:2]))
    summed, sent = read_traffic([tmp_path]).calls[0]
    assert (summed.start_ns, summed.time_ns, summed.group) == (305_000, 40_000, "2")
    assert (sent.collective, sent.peer, sent.bytes_in) == ("send", 1, 8)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.0.et", EXAMPLE[:-3], "cut off at byte 9"),
        ("a.0.et", b"", "it is empty"),
        ("a.0.et", b'{"traceEvents": []}', "cut off at byte 1"),
        ("a.et", EXAMPLE, "a name that ends with .RANK.et"),
        ("a.0.et", EXAMPLE[:8], "calls: COMM_COLL"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableError, match=why):
        read_traffic([tmp_path / name])
