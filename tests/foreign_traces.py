"""Small traces of torch."""

from __future__ import annotations

from typing import Any

from torchcoll.core.traffic import TrafficCall

CREATED = 1_724_779_239_936_775_119


CONFIG = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
    "7": {"name": "7", "desc": "undefined", "ranks": "[1, 0]"},
}


def entry(
    name: str, number: int, sizes: Any = ((3, 4),), outputs: Any = None, **changed: Any
) -> Any:
    """The call ``number`` of the default group, of 12 floats, issued ``number`` ms after the first
    and done in 2.5 ms."""
    inputs, outputs = list(sizes), list(sizes if outputs is None else outputs)
    return {
        **{"record_id": number - 1, "pg_id": 0, "process_group": ["0", "default_pg"]},
        **{"collective_seq_id": number, "p2p_seq_id": 0, "op_id": number},
        **{"profiling_name": f"nccl:{name}", "time_created_ns": CREATED + number * 1_000_000},
        **{"duration_ms": 2.5, "state": "completed", "retired": True, "is_p2p": False},
        **{"input_sizes": inputs, "input_dtypes": ["Float"] * len(inputs)},
        **{"output_sizes": outputs, "output_dtypes": ["Float"] * len(outputs)},
        **{
            "time_discovered_started_ns": 0,
            "time_discovered_completed_ns": 0,
            "timeout_ms": 600000,
        },
        **changed,
    }


INFO = {
    "backend": "nccl",
    "rank": 0,
    "world_size": 2,
    "pg_config": [
        {
            **{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]},
            "backend_config": "cpu:gloo,cuda:nccl",
        }
    ],
}


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    """An X event of thread 1, in microseconds. Arguments with blanks: ``_`` stands for one."""
    tid = args.pop("tid", 1)
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur,
            "args": named}  # fmt: skip


def param(name: str, ts: float, id: int, n_in: int = 250, n_out: int = 250, **args: Any) -> Any:
    fields = {
        **{"External_id": id, "Collective_name": name, "dtype": "Float", "Rank": 0},
        **{"In_msg_nelems": n_in, "Out_msg_nelems": n_out, "Group_size": 2},
        **{"Process_Group_Name": "0", "Process_Group_Description": "default_pg"},
        **{"Process_Group_Ranks": "[0, 1]", "In_split_size": "[]", "Out_split_size": "[]"},
    }
    return event("record_param_comms", ts, 10, **(fields | args))


def kernel(name: str, ts: float, dur: float, id: int, **args: Any) -> Any:
    return event(name, ts, dur, "kernel", External_id=id, device=0, tid=20, **args)


def step(number: int, ts: float, dur: float, cat: str = "user_annotation") -> Any:
    return event(f"ProfilerStep#{number}", ts, dur, cat)


def fields(call: TrafficCall, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(call, name) for name in names)
