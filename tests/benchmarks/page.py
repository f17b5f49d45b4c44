"""The HTML report in headless Chromium: first paint, interactions, sizes.

    python tests/benchmarks/page.py [--only one,runs,ranks,capture,year] [--keep FOLDER]

Pages of one run (8 ranks x 13 cases x 1,000 calls), of 32 such runs with 200 calls, of 4,096 ranks
x 13 cases x 1,000 calls, of a capture of a million calls, and of a store of a year. Samples are
synthetic: log-normal, with a slow mode in some calls and a slow rank. Each page is opened five
times, and each interaction made five times; medians are printed in ms.
``paint``: first contentful paint. ``drawn``: until every chart has been drawn, also
those below the window. An interaction lasts until the frame after it has been painted; in brackets
is the CPU time of the page's main thread, which hardly depends on what else runs on the machine.
--keep: a folder for the pages; those there are not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import plotly
from browser import browser, open_page, resize
from common import title
from nightly import year_store
from sent import STEP_NS, call, traffic

from torchcoll.core.case import Case
from torchcoll.core.file import save
from torchcoll.core.result import CaseResult, Packed, Run, Verification
from torchcoll.core.traffic import TrafficCall
from torchcoll.questions.page.document import page_of
from torchcoll.report.page import html_text

SIZES = [8 * 4**n for n in range(13)]
REPEATS = 5


def synthetic(ranks: int, calls: int, seed: int) -> Run:
    """Calls of 20 us + size at 10 GB/s; one call in ten takes twice as long; rank 3 is 5 % slow."""
    random_calls = np.random.default_rng(seed)
    run = Run(
        header={
            "run_id": f"run-{seed}",
            "start_utc": f"2026-11-{1 + seed % 28:02}T00:00:00Z",
            "ranks": ranks,
            "argv": ["torchcoll", "allreduce"],
        },
        members=[
            {"rank": rank, "host": f"node{rank // 8:03}", "pid": rank, "device": "cpu"}
            for rank in range(ranks)
        ],
    )
    for size in SIZES:
        case = Case("all_reduce", size, "float32", "sum", None, True, "synchronized", "gloo", "cpu")
        shared = (20_000 + size / 10) * random_calls.lognormal(0, 0.03, calls)
        shared[random_calls.random(calls) < 0.1] *= 2
        shared[calls // 2] *= 20
        own = random_calls.lognormal(0, 0.01, (ranks, 1))
        own[3 % ranks] *= 1.05
        samples = (shared * own).astype(np.int64)
        first = int(50 * shared[0])
        run.results.append(
            CaseResult(
                case,
                "ok",
                ranks,
                count=size // 4,
                size_bytes=size,
                bytes_in=size,
                bytes_out=size,
                cold_ns=[[first, first // 20, first // 45]] * ranks,
                time_ns={"host": [Packed("q", row.tobytes()) for row in samples]},
                batches=[calls],
                stop="count",
                verification=Verification(size // 4, 0),
                ordinal=0 if size == SIZES[0] else 100,
            )
        )
    run.end = {"status": "complete", "exit_code": 0}
    return run


def one(folder: Path) -> list[str]:
    path = folder / "run.jsonl"
    save(synthetic(8, 1000, 0), path)
    return [str(path)]


def runs(folder: Path) -> list[str]:
    for number in range(32):
        save(synthetic(8, 200, number), folder / f"run-{number:02}.jsonl")
    return [str(folder)]


def ranks(folder: Path) -> list[str]:
    path = folder / "run.jsonl"
    save(synthetic(4096, 1000, 0), path)
    return [str(path)]


def capture(folder: Path) -> list[str]:
    """A million calls: 8 ranks x 125 steps x 1,000 calls in 20 modules; rank 3 is 5 us late."""

    def calls(rank: int) -> Iterator[TrafficCall]:
        late_ns = 5_000 if rank == 3 else 0
        for step, number in itertools.product(range(125), range(1000)):
            yield call(
                module=f"layers.{number // 50}",
                asynchronous=False,
                sequence=1000 * step + number,
                step=step,
                clock="host",
                start_ns=step * STEP_NS + number * 90_000 + late_ns,
                time_ns=60_000 - late_ns,
            )

    path = folder / "capture.jsonl"
    traffic(calls, ranks=8, steps=125).save(path)
    return [str(path)]


def year(folder: Path) -> list[str]:
    """A store of 365 nights of 1,000 nodes, three of which become slow."""
    path = str(folder / "store.sqlite")
    year_store(path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for node, first, factor in ((5, 200, 1.1), (77, 330, 1.25), (640, 300, 1.15)):
            runs_of_node = (1000 * night + node + 1 for night in range(first, 365))
            connection.executemany(
                f"UPDATE cases SET time_ns = time_ns * {factor} WHERE run = ?",
                ((run,) for run in runs_of_node),
            )
    return [path]


PAGES: dict[str, Callable[[Path], list[str]]] = {
    "one": one,
    "runs": runs,
    "ranks": ranks,
    "capture": capture,
    "year": year,
}

# Makes ``steps``: [name, action, before] of what can be done with the charts and tables of a page.
# before: makes the action one that changes something, because what is drawn already costs nothing.
STEPS = """
const steps = window.steps = [];
for (const figure of document.querySelectorAll('figure.chart')) {
  const plot = figure.querySelector('.plot');
  const named = () => [...figure.querySelectorAll('.controls label')];
  steps.push(['', () => figure.scrollIntoView()]);
  for (const label of named().map(l => l.firstChild.data.trim())) {
    const choose = last => () => {
      const list = named().find(l => l.firstChild.data.trim() === label).querySelector('select');
      list.selectedIndex = last ? list.options.length - 1 : 0;
      list.dispatchEvent(new Event('change'));
    };
    steps.push([`select ${label}`, choose(true), choose(false)]);
    steps.push([`select ${label}`, choose(false), choose(true)]);
  }
  for (const key of ['ArrowRight', 'ArrowDown', 'Enter']) {
    steps.push([`key ${key}`, () =>
      plot.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))]);
  }
  steps.push(['hover', () => {
    const area = plot.querySelector('.nsewdrag').getBoundingClientRect();
    const [x, y] = [area.left + area.width / 3, area.top + area.height / 2];
    (document.elementFromPoint(x, y) ?? plot).dispatchEvent(
      new MouseEvent('mousemove', { clientX: x, clientY: y, bubbles: true, view: window }));
  }]);
  const zoom = () => {
    const [low, high] = plot._fullLayout.xaxis.range;
    return Plotly.relayout(plot, { 'xaxis.range': [low, (low + high) / 2] });
  };
  const reset = () => Plotly.relayout(plot, { 'xaxis.autorange': true });
  steps.push(['zoom', zoom, reset], ['reset', reset, zoom]);
}
for (const button of [...document.querySelectorAll('th button')].slice(0, 3)) {
  steps.push(['sort a table', () => button.click()]);
}
const filter = document.querySelector('.filter');
if (filter) steps.push(['filter a table', () => {
  filter.value = '1';
  filter.dispatchEvent(new Event('input'));
}]);
return steps.map(([name]) => name);
"""
STEP = """
const [number, which, done] = arguments;
const start = performance.now();
(async () => {
  await steps[number][which]?.();
  await new Promise(r => requestAnimationFrame(() => setTimeout(r)));
})().then(() => done(performance.now() - start));
"""


def cpu_ms(driver: Any) -> float:
    """What the page's main thread has computed so far."""
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * next(item["value"] for item in metrics if item["name"] == "TaskDuration")


def measure(driver: Any, path: Path) -> tuple[float, float, dict[str, tuple[float, float]]]:
    """Medians of: first paint, and all charts drawn; of each interaction with the slowest chart or
    table that has it, clock and CPU.
    """
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    paints, drawn = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        open_page(driver, path)
        drawn.append(1000 * (time.perf_counter() - start))
        entry = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        paints.append(driver.execute_script(f"return {entry}"))
    slowest: dict[str, tuple[float, float]] = {}
    for number, name in enumerate(driver.execute_script(STEPS)):
        clocks, cpus = [], []
        for _ in range(REPEATS):
            driver.execute_async_script(STEP, number, 2)
            time.sleep(0.05)
            before = cpu_ms(driver)
            clocks.append(driver.execute_async_script(STEP, number, 1))
            cpus.append(cpu_ms(driver) - before)
        clock, cpu = statistics.median(clocks), statistics.median(cpus)
        if name:
            longest = slowest.get(name, (0.0, 0.0))
            slowest[name] = (max(longest[0], clock), max(longest[1], cpu))
    return statistics.median(paints), statistics.median(drawn), slowest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(PAGES))
    parser.add_argument("--keep")
    options = parser.parse_args()
    title("the HTML report in a browser")
    print(f"plotly {plotly.__version__}; load average at the start {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(options.keep or folder)
        for name in options.only.split(","):
            path = kept / f"{name}.html"
            took = ""
            if not path.exists():
                data = Path(folder) / name
                data.mkdir()
                files = PAGES[name](data)
                start = time.perf_counter()
                path.write_text(html_text(page_of(files)), encoding="utf-8")
                took = f", made in {time.perf_counter() - start:.1f} s"
            with browser(Path(tempfile.mkdtemp(dir=folder)), 1400, 900) as driver:
                resize(driver, 1400)
                driver.set_script_timeout(120)
                version = driver.capabilities["browserVersion"]
                paint, drawn, interactions = measure(driver, path)
                size = path.stat().st_size / 1e6
                print(f"{name}: {size:.2f} MB{took}; Chromium {version}")
                print(
                    f"  paint {paint:.0f} ms, drawn {drawn:.0f} ms; load {os.getloadavg()[0]:.1f}"
                )
                slow = sorted(interactions.items(), key=lambda item: -item[1][1])
                texts = [f"{what} {clock:.0f} ({cpu:.0f})" for what, (clock, cpu) in slow]
                print("  " + ", ".join(texts), flush=True)


if __name__ == "__main__":
    main()
