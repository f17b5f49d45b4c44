"""torch's own analysis of Flight Recorder dumps (``fr_trace``), run on a folder, for comparison.

    python tests/benchmarks/recorder_trace.py FOLDER [--ranks N]

``python -m torch.distributed.flight_recorder.fr_trace FOLDER`` reads pickles alone, from all ranks
unless ``--allow-incomplete-ranks`` is given, all below the folder with one prefix and then the rank
as their names. It looks up the groups of calls in ``pg_config``, which is empty on gloo: there it
ends with a KeyError. With ``helped`` it gets what it lacks: a folder of the dumps alone, named as
it wants, with the ranks of the groups in each.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed  # noqa: F401  before forking

from torchcoll.core.errors import TorchcollError
from torchcoll.reading.safe_pickle import is_pickle, read_pickle
from torchcoll.reading.torch_names import rank_in_name

TIMEOUT_S = 60


@dataclass(frozen=True)
class FrTrace:
    """What fr_trace says of a folder.

    read: whether it came to an end without an exception. missing: ranks that, as it says, did not
    join the first call that it complains about; culprits: ranks that it calls so, in that call.
    number: of that call, as collective_seq_id. undecided: whether it says that it cannot decide.
    """

    read: bool
    missing: frozenset[int] = frozenset()
    culprits: frozenset[int] = frozenset()
    number: int | None = None
    undecided: bool = False
    seconds: float = 0.0
    text: str = ""


def run_fr_trace(folder: Path, ranks: int, helped: bool = False) -> FrTrace:
    """Run it on the dumps below a folder.

    ranks: of the job, for the default group. helped: see above.
    """
    if not helped:
        return _run(folder)
    with tempfile.TemporaryDirectory() as copy:
        write_readable(folder, Path(copy), ranks)
        return _run(Path(copy))


def write_readable(folder: Path, target: Path, ranks: int) -> None:
    """Copy the pickles below a folder as fr_trace wants them. Those that are damaged are left out.

    The default group has all ranks, another group those whose dump has a call in it.
    """
    dumps: dict[int, dict[str, Any]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        rank, data = rank_in_name(path, bare=True), path.read_bytes()
        if rank is None or not is_pickle(data):
            continue
        try:
            value = read_pickle(data, path)
        except TorchcollError:
            continue
        if isinstance(value, dict) and isinstance(value.get("entries"), list):
            dumps[rank] = value
    members: dict[tuple[str, str], set[int]] = defaultdict(set)
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            members[entry["process_group"]].add(rank)
    for rank, dump in dumps.items():
        config = {name: group for name, group in dump["pg_config"].items() if name}
        for (name, description), known in members.items():
            listed = range(ranks) if description == "default_pg" else sorted(known)
            group = {"name": name, "desc": description, "ranks": str([*listed])}
            if rank in listed:
                config.setdefault(name, group)
        (target / f"nccl_trace_rank_{rank}").write_bytes(
            pickle.dumps({**dump, "pg_config": config}, protocol=2)
        )


def _run(folder: Path) -> FrTrace:
    """In a forked process: to import torch again would take seconds for each folder."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(TIMEOUT_S)  # which ends the process
                for stream in (1, 2):
                    os.dup2(output.fileno(), stream)
                sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
                # Imported here, because its logger keeps the stderr that it finds.
                from torch.distributed.flight_recorder.fr_trace import main as analyse

                analyse([str(folder), "--allow-incomplete-ranks"])
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        seconds = time.perf_counter() - began
        output.seek(0)
        text = output.read().decode(errors="replace")
    return parse(text, status == 0, seconds)


def parse(text: str, read: bool, seconds: float = 0.0) -> FrTrace:
    """What a text of fr_trace says of the first call with an error."""
    begin = re.compile(
        r"(?:Not all ranks joining collective, sequence number:|Collective sequence number:) (\d+)"
    )
    first = begin.search(text)
    if first is None:
        return FrTrace(read, undecided="cannot decide" in text, seconds=seconds, text=text)
    following = begin.search(text, first.end())
    block = text[first.start() : following.start() if following else len(text)]
    missing = re.search(r"missing ranks: \{([\d, ]*)\}", block)
    return FrTrace(
        read,
        frozenset(map(int, re.findall(r"\d+", missing[1] if missing else ""))),
        frozenset(map(int, re.findall(r"Culprit rank (\d+)", block))),
        int(first[1]),
        "cannot decide" in text,
        seconds,
        text,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    for helped in (False, True):
        result = run_fr_trace(options.folder, options.ranks, helped)
        print(
            f"{'helped' if helped else 'as it is'}: {'read' if result.read else 'not read'}, call "
            f"{result.number}, missing {sorted(result.missing)}, culprits "
            f"{sorted(result.culprits)}, {result.seconds:.1f} s"
        )
        if not result.read:
            print(f"    {result.text.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
