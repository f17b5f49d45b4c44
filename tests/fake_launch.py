"""A run of torchcoll that measures nothing: it writes a small result file in 30 ms.

Run as ``python fake_launch.py [WORDS] --output FILE --label k=v ...``; each word is something that
a run may do: see ``main``.
"""

from __future__ import annotations

import json
import os
import sys
import time

CASE = {
    **{"collective": "all_reduce", "size_bytes": 8, "dtype": "float32", "op": "sum", "root": None},
    **{"in_place": True, "mode": "synchronized", "backend": "gloo", "device": "cpu"},
}
UNAVAILABLE = "Error : no algorithm/protocol available for function AllReduce with datatype float"


def main(arguments: list[str]) -> int:
    place = arguments.index("--output")
    path, words = arguments[place + 1], arguments[:place]
    labels = dict(pair.split("=", 1) for pair in arguments[place + 3 :: 2])
    says = dict(word.split("=", 1) for word in words if "=" in word)
    print(f"fake run of cell {labels['cell']}", flush=True)
    if "look" in says:
        print(f"there: {os.path.exists(says['look'])}", flush=True)
    if "once" in says:  # a word that holds for the first run only: once=hang
        flag = f"{os.path.dirname(path)}/logs/been-here"
        if not os.path.exists(flag):
            open(flag, "w").close()
            words.append(says["once"])
    if "refuse" in words:
        print("torchcoll: error: sizes: got 1KB, expected a number", file=sys.stderr)
        return 2
    if "silent" in words:
        return 0
    if "killed" in words:
        os.abort()
    if "stop" in words:  # as Ctrl-C does, while it runs
        os.kill(os.getppid(), 2)
        time.sleep(60)
    if "remove" in words:
        for folder, _, files in os.walk(os.path.dirname(path), topdown=False):
            for file in files:
                os.remove(f"{folder}/{file}")
            os.rmdir(folder)
        return 0
    variables = {k: v for k, v in os.environ.items() if k.startswith(("NCCL_", "GLOO_", "LD_"))}
    if says.get("lose"):
        variables.pop(says["lose"], None)
    ranks = int(says.get("ranks", 2))
    members = [{"rank": rank, "host": "vm", "device": "cpu"} for rank in range(ranks)]
    if "differ" in says:
        members[-1]["variables_that_differ"] = {says["differ"]: None}
    if "mapped" in says:
        name = os.path.basename(says["mapped"])
        members[0]["mapped"] = [{"name": name, "path": says["mapped"], "version": says["version"]}]
    if "wrong-label" in words:
        labels["cell"] = "another"
    header = {
        "record": "header",
        "schema": "torchcoll/2",
        "ranks": ranks,
        "launcher": says.get("launcher", "torchrun"),
        "spec": {"labels": labels},
        "environment": {"variables": variables},
    }
    bad = "wrong" if "wrong" in words else "failed" if "lacking" in words else "ok"
    reason = {"wrong": "3 elements differ", "failed": UNAVAILABLE, "ok": ""}[bad]
    asked = {**CASE, "backend": says.get("backend", CASE["backend"])}
    case = {"record": "case", "case": asked, "status": bad, "ranks": ranks, "reason": reason}
    time_ns = 1000
    if "slow" in says:  # the variable that makes it slow; runs differ a little
        time_ns = (2000 if says["slow"] in variables else 1000) + int(labels["run"])
    case["size_bytes"] = CASE["size_bytes"]
    case["time_ns"] = {"host": [[time_ns] * 3] * ranks}
    if "ran" in says:  # as the library's log tells: RING/LL
        algorithm, _, protocol = says["ran"].partition("/")
        case["choices"] = [{"algorithm": algorithm, "protocol": protocol}]
    if "log" in words:  # as --library-log does
        os.mkdir(f"{path}.log")
    with open(path, "x") as file:
        print(json.dumps(header), file=file)
        print(json.dumps({"record": "ranks", "ranks": members}), file=file, flush=True)
        if "hang" in words:
            time.sleep(60)
        if "stubborn" in words:
            hang_with_a_child()
        if "cut" in words:
            return 1
        print(json.dumps(case), file=file)
        if "second" in says:  # a case of 16 bytes, wrong with this variable
            bad = "wrong" if says["second"] in variables else bad
            second = {**case, "case": {**asked, "size_bytes": 16}, "size_bytes": 16, "status": bad}
            print(json.dumps(second), file=file)
        code = 0 if bad == "ok" else 1
        end = {"record": "end", "status": "complete", "exit_code": code, "wall_s": 0.1}
        print(json.dumps(end), file=file)
    return int(says.get("exit", code))


def hang_with_a_child() -> None:
    """Both ignore TERM, and the child has a session of its own, as torchrun's ranks have."""
    import signal  # these take longer to import than all the rest
    import subprocess

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    time.sleep(60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
