"""FSDP2's copies in traces of torch.profiler."""

from torchcoll.parts.training.kineto_events import find_copies, read_events


def event(name, ts, dur, category="cpu_op", tid=1, **args):
    return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": dur, "pid": 0, "tid": tid,
            "args": args}  # fmt: skip


OPERATORS = [
    event("aten::mm", 0, 5, **{"External id": 1}),
    event("fsdp::all_gather_copy_in", 10, 20, **{"External id": 2}),
    event("aten::_foreach_copy_", 12, 10, **{"External id": 3}),
    event("aten::_foreach_copy_", 40, 5, **{"External id": 4}),  # the optimizer's
    event("fsdp::chunk_cat", 50, 8, tid=2, **{"External id": 5}),
]


def test_on_a_cpu_the_operators_are_the_copies():
    copies = find_copies(read_events({"traceEvents": OPERATORS})[0])
    assert sorted(copies) == [(10_000, 30_000), (50_000, 58_000)]


def test_on_a_device_their_kernels_are_the_copies():
    def kernel(ts, number, external):
        ids = {"External id": external, "correlation": number}
        return event("multi_tensor_apply", ts, 7, "kernel", tid=9, **ids)

    kernels = [kernel(100, 11, 3), kernel(120, 12, 4), kernel(140, 13, 5), kernel(160, 14, 1)]
    copies = find_copies(read_events({"traceEvents": OPERATORS + kernels})[0])
    assert copies == [(100_000, 107_000), (140_000, 147_000)]


def test_without_fsdp_there_are_none():
    assert find_copies(read_events({"traceEvents": OPERATORS[:1]})[0]) == []
