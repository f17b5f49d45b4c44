"""ASTRA-sim itself on what `torchcoll model export --astra-sim` writes: its times beside those of
the law, and of the run.

    python tests/benchmarks/astra_sim.py SIMULATOR [SIMULATOR ...] [--runs RUN ...]

SIMULATOR: AstraSim_Analytical_Congestion_Unaware, or _Aware, built from github.com/astra-sim.
laws: each law of a collective, 5 us to launch, 2 us a step, 10 GB/s, fitted on 2, 4 and 16 ranks
and exported for 8. hosts: a ring on 3 hosts of 8 ranks, fitted on 1, 2 and 4, 1 us and 100 GB/s
within them, 4 us and 20 GB/s between. Ratios to the law. --runs: one model of all; each is exported
and simulated.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from common import title

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_runs import measured
from made_runs import run as made_run

from torchcoll import load
from torchcoll.comparison.prediction import error_summary
from torchcoll.core.result import Run
from torchcoll.core.summary import summarise
from torchcoll.curves.astra_export import export_run
from torchcoll.curves.model import MachineModel
from torchcoll.curves.model_fit import fit_model
from torchcoll.curves.model_show import show_fit
from torchcoll.curves.rank_laws import StepLaw, step_laws
from torchcoll.curves.validation import validate_predicted
from torchcoll.curves.validation_show import show_simulated
from torchcoll.libraries.execution_trace import SIMULATED

SIZES = tuple(1 << power for power in range(10, 29, 2))
SHOWN = (1 << 20, 1 << 26)
Times = dict[tuple[str, int, int], float]


def simulated(model: MachineModel, run: Run, simulator: str, within: Path) -> tuple[Times, str]:
    """Nanoseconds of each (collective, size, ranks), and what the simulator printed."""
    folder = Path(tempfile.mkdtemp(dir=within))
    export_run(model, run, folder)
    environ = {**os.environ, "ASTRA_SIM": simulator}
    said = subprocess.run(
        ["sh", str(folder / "run.sh")], env=environ, capture_output=True, text=True, check=True
    )
    assert "critical" not in said.stdout, said.stdout
    log = folder / "sim.log"
    log.write_text(said.stdout)
    times = {}
    for result in load(log).results:
        assert result.reported
        times[result.case.collective, result.size_bytes, result.ranks] = result.reported.time_ns
    return times, said.stdout


def of_laws(simulators: Sequence[str], folder: Path) -> None:
    print("\nlaws: simulated / law, 8 ranks, 1 and 64 MiB")
    for name in SIMULATED:
        for law in step_laws(name):
            expected = made_ns(law)
            model = fit_model([of(name, n, SIZES, expected) for n in (2, 4, 16)]).model
            row(f"{name}, {law.name}", model, of(name, 8, SIZES, expected), simulators, folder)


def of(name: str, ranks: int, sizes: Sequence[int], time_ns: Callable[[int, int], float]) -> Run:
    cases = [
        measured(round(time_ns(ranks, size)), ranks, size_bytes=size, collective=name)
        for size in sizes
    ]
    return made_run(*cases, ranks=ranks)


def made_ns(law: StepLaw) -> Callable[[int, int], float]:
    return lambda ranks, size: 5000 + law.steps(ranks) * 2000 + law.share(ranks) * size / 10


def of_hosts(simulators: Sequence[str], folder: Path) -> None:
    def launch(ranks: int, hosts: int) -> Run:
        across = 2 * (hosts - 1)
        steps_ns = (2 * (ranks - 1) - across) * 1000 + across * 4000
        rate = (20 if hosts > 1 else 100) / (2 * (ranks - 1) / ranks)
        cases = [measured(round(5000 + steps_ns + n / rate), ranks, size_bytes=n) for n in SIZES]
        return made_run(*cases, ranks=ranks, hosts=[f"node{n}" for n in range(hosts)])

    print("\nhosts: simulated / law, 24 ranks on 3 hosts, 1 and 64 MiB")
    runs = [launch(*place) for place in ((2, 1), (4, 1), (8, 1), (16, 2), (32, 4))]
    row("all_reduce, ring", fit_model(runs).model, launch(24, 3), simulators, folder)


def row(what: str, model: MachineModel, run: Run, simulators: Sequence[str], folder: Path) -> None:
    expected = {result.size_bytes: summarise(result).median_ns for result in run.results}
    ratios = []
    for simulator in simulators:
        times, _ = simulated(model, run, simulator, folder)
        for (_, size, _), ns in times.items():
            if size in SHOWN:
                ratios.append(f"{ns / (expected[size] or 1):.5f}")
    print(f"  {what:34} {'  '.join(ratios)}", flush=True)


def of_runs(files: Sequence[str], simulators: Sequence[str], folder: Path) -> None:
    found = fit_model(files)
    model = found.model
    print("\nruns: the model")
    show_fit(found, sys.stdout)
    for simulator in simulators:
        printed, against_law, against_model = [], [], []
        for file in files:
            times, text = simulated(model, load(file), simulator, folder)
            printed.append(text)
            for (name, size, ranks), ns in times.items():
                entry = model.entry(name)
                own = next(one for one in entry.over_sizes if one.ranks == ranks)
                rate = next(one[0] for one in reversed(own.bandwidths) if one)
                by_hand = own.law.pieces[0].latency_ns + size / rate
                against_law.append(abs(ns / by_hand - 1))
                against_model.append(abs(ns / entry.predict(size, ranks).time_ns - 1))
        log = folder / f"{Path(simulator).name}.log"
        log.write_text("".join(printed))
        print(f"\n{Path(simulator).name}, on {', '.join(Path(f).name for f in files)}")
        tell("against latency + size / bandwidth, what was exported", against_law)
        tell("against the model's predictions, with corrections and ranges", against_model)
        print("  against the run: torchcoll model validate --predicted sim.log RUN ...")
        show_simulated(validate_predicted(str(log), list(files)), file=sys.stdout)
    predicted = [
        abs(model.predict(r.case.collective, r.size_bytes, r.ranks).time_ns / ns - 1)
        for file in files
        for r in load(file).results
        if r.status == "ok" and (ns := summarise(r).median_ns)
    ]
    tell("\n  the model's predictions against the run", predicted)


def tell(what: str, errors: Sequence[float]) -> None:
    if errors:
        own = error_summary(errors)
        print(
            f"  {what}: mean {100 * own.mean:.3f} %, worst {100 * own.worst:.3f} %, "
            f"{own.count} cases"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulators", nargs="+", metavar="SIMULATOR")
    parser.add_argument("--runs", nargs="+", default=[], metavar="RUN")
    asked = parser.parse_args()
    title("ASTRA-sim on what torchcoll model export writes")
    print(f"simulators: {', '.join(Path(one).name for one in asked.simulators)}")
    with tempfile.TemporaryDirectory() as folder:
        of_laws(asked.simulators, Path(folder))
        of_hosts(asked.simulators, Path(folder))
        if asked.runs:
            of_runs(asked.runs, asked.simulators, Path(folder))


if __name__ == "__main__":
    main()
