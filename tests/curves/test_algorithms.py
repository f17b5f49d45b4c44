"""Forced cells against AUTO: results, ranges, wrong and failed cells, the command and exports."""

import csv
import io
import itertools
import json
import random
from functools import partial

import pytest
from error_form import error_tail, error_text, expecting, got
from made_runs import measured as measured_on
from made_runs import run

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.core.result import Choice, Verification
from torchcoll.parts.curves.algorithms import algorithms
from torchcoll.parts.curves.algorithms_show import show_algorithms
from torchcoll.parts.curves.contest import CellAt, SizeContest
from torchcoll.parts.curves.exports import limits
from torchcoll.parts.curves.forced_cells import Forced, disobeyed, requested
from torchcoll.questions.comparison.results import ONE_AFTER_THE_OTHER
from torchcoll.stats.ratios import Ratio

_NUMBERS = itertools.count()
measured = partial(measured_on, backend="nccl", device="cuda")
K, M = 1 << 10, 1 << 20
NOISE = (0.990, 1.010, 0.995, 1.005, 0.998, 1.002)  # of six runs: 0.7 %
RING, TREE = {"NCCL_ALGO": "allreduce:ring"}, {"NCCL_ALGO": "allreduce:tree"}


_CELLS = itertools.count()


def cell(name, times, variables=None, count=6, choice=None, noise=NOISE):
    """The runs of a cell: size -> ns. ``choice``: what the log says. Run 1 of every cell
    comes first, then run 2 in the opposite order, and so on: no cell is earlier than another.
    """
    place = next(_CELLS) % 30
    starts = [
        f"2026-01-01T00:{k:02}:{59 - place if k % 2 else place:02}.{next(_NUMBERS):06}Z"
        for k in range(count)
    ]
    return [
        run(
            *(
                measured(round(ns * noise[k]), size_bytes=size, choices=[choice] if choice else [])
                for size, ns in times.items()
            ),
            labels={"cell": name, "run": str(k + 1)},
            variables=variables or {},
            environment={"libraries": {"nccl": "nccl 2.27.5"}},
            header={"start_utc": starts[k]},
        )
        for k in range(count)
    ]


def protocol(algorithm, word):
    return {"NCCL_ALGO": f"allreduce:{algorithm}", "NCCL_PROTO": f"allreduce:{word}"}


# Ring takes 100 us at 1M and tree 150 us; at 1K it is the other way round. AUTO: ring at both.
RUNS = [
    *cell("auto", {K: 150_000, M: 100_000}, choice=Choice("RING", "LL", 4)),
    *cell("ring", {K: 150_000, M: 100_000}, RING, choice=Choice("RING", "LL", 4)),
    *cell("tree", {K: 100_000, M: 150_000}, TREE, choice=Choice("TREE", "LL", 8)),
]


def table_of(*runs, **options):
    (table,) = algorithms(list(runs), **options).tables
    return table


def test_auto_is_beaten_at_one_size_and_near_optimal_at_the_other():
    found = algorithms(RUNS)
    (table,) = found.tables
    small, large = table.sizes
    assert found.comparisons == 4
    assert (small.best.cell.name, small.result) == ("tree", "beaten")
    assert small.regret == pytest.approx(1.5, rel=1e-3)
    assert small.low < 1.5 < small.high
    assert small.reason.startswith("by tree, p ")
    assert (large.best.cell.name, large.result) == ("ring", "near-optimal")
    assert large.high < 1.02
    assert [(r.low_bytes, r.high_bytes, r.winner.name) for r in table.ranges] == [
        (K, K, "tree"),
        (M, M, "ring"),
    ]
    assert table.statement(0.02) == (
        "force tree at 1K: 1.50x as fast as AUTO; AUTO is within 2 % of the best at 1M"
    )


def test_near_optimal_is_said_only_if_it_holds_at_every_size():
    times = {K: 100_000, M: 200_000}
    table = table_of(*cell("auto", times), *cell("ring", times, RING))
    assert table.statement(0.02).startswith(
        "AUTO is near-optimal at every size measured: at most 0.9"
    )
    # 1.2 % slower: the estimate is within 2 %, the end of its interval is not.
    table = table_of(*cell("auto", {K: 101_200, M: 200_000}), *cell("ring", times, RING))
    assert [size.result for size in table.sizes] == ["inconclusive", "near-optimal"]
    # Spread 0.71 %: 2 (3.2415 * 0.0071 / (log 1.02 - log 1.012))^2 + 1 = 17.9 + 1.
    assert table.sizes[0].needed == pytest.approx(18, abs=2)
    assert f"inconclusive at 1K ({table.sizes[0].needed} runs" in table.statement(0.02)


def test_a_drift_is_no_difference():
    """Slower by 3 % a run of each cell. Welch's t takes the drift for noise, of 5 %: it shows
    neither that ring is 5 % faster at 1K, nor that AUTO loses less than 2 % at 1M.
    """
    drifting = [factor * 1.03**k for k, factor in enumerate(NOISE)]
    table = table_of(
        *cell("auto", {K: 105_000, M: 100_000}, noise=drifting),
        *cell("ring", {K: 100_000, M: 100_000}, RING, noise=drifting),
    )
    assert [size.result for size in table.sizes] == ["beaten", "near-optimal"]
    assert table.sizes[0].regret == pytest.approx(1.05, rel=1e-3)


def test_an_outlying_launch_is_left_out_of_all_sizes():
    """The third run of AUTO took 1.4 times as long, at seven sizes."""
    times = {K << n: 100_000 << n for n in range(7)}
    odd = [factor * (1.4 if k == 2 else 1) for k, factor in enumerate(NOISE)]
    rng = random.Random(1)
    runs = cell("auto", times, noise=odd) + cell("ring", times, RING)
    for one in runs:  # else all sizes of a run were one
        for result in one.results:
            scale = rng.gauss(1, 0.003)
            result.time_ns = {"host": [[round(ns * scale) for ns in own]
                                       for own in result.time_ns["host"]]}  # fmt: skip
    found = algorithms(runs)
    (table,) = found.tables
    assert {len(size.auto.values) for size in table.sizes} == {5}
    (note,) = [text for text in found.notes if text.startswith("left out of all cases: ")]
    factor = float(note.split(", ")[1].split()[0])
    assert factor == pytest.approx(1.4, abs=0.02)
    assert {size.result for size in table.sizes} == {"near-optimal"}


def test_cells_that_were_measured_one_after_the_other():
    """5 % between AUTO and what was measured an hour later: nothing can tell that from a step."""
    runs = cell("auto", {K: 100_000}) + cell("ring", {K: 100_000}, RING)
    said = ONE_AFTER_THE_OTHER
    assert said not in algorithms(runs).notes
    for number, one in enumerate(runs[6:]):
        one.header["start_utc"] = f"2026-01-01T01:00:{number:02}Z"
    assert algorithms(runs).notes.count(said) == 1
    del runs[0].header["start_utc"]
    unknown = "start times are not known of all runs: a drift would look like a difference"
    assert unknown in algorithms(runs).notes


def test_a_size_without_auto_is_not_among_every_size():
    times = {K: 100_000, M: 200_000}
    table = table_of(*cell("auto", {K: 100_000}), *cell("ring", times, RING))
    assert table.statement(0.02) == "AUTO is within 2 % of the best at 1K; not judged at 1M"


def test_show_prints_several(capsys):
    torchcoll.show(algorithms(RUNS), algorithms(RUNS))
    lines = capsys.readouterr().out.splitlines()
    # Both answers stand first.
    assert all(line.startswith("force tree at 1K: 1.50x as fast as AUTO") for line in lines[:2])
    torchcoll.show(algorithms(RUNS), algorithms(RUNS), format="json")
    assert [len(one["tables"]) for one in json.loads(capsys.readouterr().out)] == [1, 1]


@pytest.mark.parametrize(("launches", "reason"), [(1, "1 run a cell"), (2, "2 runs a cell")])
def test_one_launch_is_no_evidence(capsys, launches, reason):
    """Nor are two. A regret without its interval is not shown."""
    auto, ring = (
        cell("auto", {K: 200_000}, count=launches),
        cell("ring", {K: 100_000}, RING, count=launches),
    )
    (size,) = table_of(*auto, *ring).sizes
    assert (size.result, size.reason) == ("inconclusive", reason)
    assert size.regret == pytest.approx(2.0, rel=0.02) and size.low is None
    torchcoll.show(algorithms(auto + ring))
    assert "2.000" not in capsys.readouterr().out
    torchcoll.show(algorithms(auto + ring), format="json")
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["rows"][0].get("regret") is None


def test_equal_launches_have_no_spread_to_judge_by():
    auto, ring = ([run(measured(100_000), variables=v) for _ in range(3)] for v in ({}, RING))
    (size,) = table_of(*auto, *ring).sizes
    assert (size.result, size.reason) == (
        "inconclusive",
        "runs are equal: no spread to judge by",
    )


def test_auto_may_be_faster_than_every_cell():
    table = table_of(*cell("auto", {K: 80_000}), *cell("ring", {K: 100_000}, RING))
    assert table.sizes[0].result == "near-optimal"
    assert table.statement(0.02) == "AUTO is faster than every forced cell at 1K"


def test_a_range_names_only_sizes_at_which_its_cell_wins():
    """Tree is the best forced cell at 1M too, but AUTO is faster there."""
    table = table_of(
        *cell("auto", {K: 150_000, 4 * K: 150_000, M: 80_000, 4 * M: 400_000}),
        *cell("tree", {K: 100_000, 4 * K: 100_000, M: 100_000, 4 * M: 500_000}, TREE),
        *cell("ring", {K: 200_000, 4 * K: 200_000, M: 200_000, 4 * M: 320_000}, RING),
    )
    assert [(r.low_bytes, r.high_bytes, r.winner.name) for r in table.ranges] == [
        (K, 4 * K, "tree"),
        (M, M, "AUTO"),
        (4 * M, 4 * M, "ring"),
    ]
    assert table.statement(0.02) == (
        "force tree up to 4K: 1.50x as fast as AUTO; force ring at 4M: 1.25x as fast as AUTO; "
        "AUTO is faster than every forced cell at 1M"
    )


def test_a_cell_that_was_wrong_once_wins_nowhere():
    wrong = [*RUNS]
    tree = cell("tree", {K: 100_000, M: 150_000}, TREE)
    tree[2].results[1].verification = Verification(checked=100, wrong=1)
    table = table_of(*wrong[:12], *tree)
    assert table.wrong == {"tree": [M]}
    assert [size.best.cell.name for size in table.sizes] == ["ring", "ring"]
    assert [size.result for size in table.sizes] == ["near-optimal"] * 2
    assert table.sizes[1].cells[1].values == ()


def test_ties_keep_the_setting_of_the_neighbour():
    ring = cell("ring", {K: 100_000, 4 * K: 100_000, M: 100_000}, RING)
    tree = cell("tree", {K: 100_100, 4 * K: 99_900, M: 200_000}, TREE)
    table = table_of(*ring, *tree)
    assert [size.tied for size in table.sizes] == [["ring", "tree"], ["ring", "tree"], ["ring"]]
    assert [(r.winner.name, r.ties) for r in table.ranges] == [("ring", ())]
    assert "nothing is said of AUTO" in " ".join(algorithms([*ring, *tree]).notes)


def test_a_launch_that_tells_no_variables_is_not_pooled_with_auto():
    # AUTO takes 150 us at 1K and 1M as ring does; what the untold one did, nobody knows.
    def unstated(name):
        own = [measured(ns, size_bytes=size) for size, ns in ((K, 900_000), (M, 900_000))]
        return run(*own, source={"tool": "nccl-tests", "file": name})

    said = "(NCCL_DEBUG=INFO shows it, import --label NCCL_ALGO=auto states it)"
    found = algorithms([*RUNS, unstated("old.out")])
    assert [s.regret for s in found.tables[0].sizes] == [s.regret for s in table_of(*RUNS).sizes]
    assert (
        "left out: no variable of the library is known, and other runs tell of AUTO: old.out "
        + said
    ) in found.notes
    forced = [one for one in RUNS if one.labels["cell"] != "auto"]
    found = algorithms([*forced, unstated("old.out")])
    assert found.tables[0].sizes[0].auto.values == (900_000,)
    assert (
        f"taken for AUTO, though no variable of the library is known: old.out {said}" in found.notes
    )


def test_dtypes_and_axes_are_tables_of_their_own():
    other = [*cell("a-nproc4", {K: 100}, RING), *cell("b-nproc4", {K: 100}, TREE)]
    for each in other:
        each.results[0].ranks = 4
    assert len(algorithms([*RUNS, *other]).tables) == 2


def test_cells_without_labels_are_named_by_what_they_force():
    variables = ({}, protocol("ring", "ll128"))
    runs = [run(measured(ns), variables=v) for v in variables for ns in (100_000, 101_000)]
    assert [c.name for c in table_of(*runs).cells] == ["ring-ll128"]


def test_cells_of_two_matrices_with_one_name_stay_apart():
    # Ring takes 100 us, as AUTO; under the same label tree takes 200 us.
    table = table_of(
        *cell("auto", {K: 100_000}),
        *cell("mine", {K: 100_000}, RING),
        *cell("mine", {K: 200_000}, TREE),
    )
    ring, tree = (f"mine (NCCL_ALGO=allreduce:{word})" for word in ("ring", "tree"))
    assert [one.name for one in table.cells] == [ring, tree]
    (size,) = table.sizes
    assert (size.best.cell.name, size.tied) == (ring, [ring])
    assert size.regret == pytest.approx(1, abs=0.01)
    assert size.low < 1 < size.high


def test_a_forced_cell_is_not_named_auto():
    # What the shell exports is forced in every cell, also in that which forces nothing itself.
    table = table_of(*cell("auto", {K: 100_000}, RING), *cell("auto-nproc2", {K: 90_000}, TREE))
    assert [one.name for one in table.cells] == ["ring", "tree"]


def test_launches_that_disagree_in_their_sizes():
    rings = cell("ring", {K: 100_000}, RING, count=3) + cell("ring", {M: 200_000}, RING, count=1)
    found = algorithms([*cell("auto", {K: 100_000, M: 200_000, 2 * M: 300_000}), *rings])
    assert found.tables[0].uneven == ["ring"]
    assert [[len(at.values) for at in size.cells] for size in found.tables[0].sizes] == [
        [3],
        [1],
        [],
    ]
    assert (
        "the runs of a cell disagree in their sizes: ring; a size has the runs that measured it"
    ) in found.notes
    text = io.StringIO()
    show_algorithms([found], file=text)
    (line,) = (line for line in text.getvalue().splitlines() if "none was" in line)
    assert line.split()[:4] == ["2M", "none", "was", "run"]


def test_an_axis_that_every_launch_sets_is_no_forcing():
    runs = [
        each
        for word in ("1", "2")
        for name, own in (("auto", {}), ("ring", RING))
        for each in cell(f"{name}-{word}", {K: 100_000}, {**own, "NCCL_MIN_CTAS": word})
    ]
    found = algorithms(runs)
    assert [table.common["NCCL_MIN_CTAS"] for table in found.tables] == ["1", "2"]
    assert all(table.sizes[0].result == "near-optimal" for table in found.tables)


def test_what_was_not_verified_is_said():
    runs = cell("ring", {K: 100_000}, RING)
    for each in runs:
        each.results[0].verification = None
    assert "not verified: ring" in algorithms([*cell("auto", {K: 1}), *runs]).notes[0]


def test_nothing_forced():
    """Only for logs, which record no variables, can names of files say what was forced."""
    step = r"reads them\. torchcoll matrix --preset nccl-algorithms makes such runs"
    with pytest.raises(UsageError, match=f"none that forces an algorithm on nccl.*{step}"):
        algorithms(cell("auto", {K: 100}))
    logs = [run(measured(100, backend="ccl"), source={"tool": "other"}) for _ in "ab"]
    with pytest.raises(UsageError, match=r"auto=PATH Ring=PATH.* --preset oneccl-algorithms"):
        algorithms(logs)


def test_a_collective_that_no_cell_forces_is_left_out():
    auto = cell("auto", {K: 100_000})
    for each in auto:
        each.results.append(measured(1000, collective="gather", root=0, op=None))
    found = algorithms([*auto, *cell("ring", {K: 100_000}, RING)])
    assert [table.common["collective"] for table in found.tables] == ["all_reduce"]
    assert found.notes[0] == "forced in no cell, left out: gather"


def test_no_right_result():
    runs = cell("ring", {K: 100}, RING)
    for each in runs:
        each.results[0].status = "oom"
    with pytest.raises(UsageError, match="no forced one with a right result"):
        algorithms(runs)


def test_gloo_does_not_read_what_forces_nccl():
    runs = [run(measured_on(100), variables=v) for v in ({}, RING) for _ in range(2)]
    with pytest.raises(
        UsageError, match=error_tail("none that forces an algorithm on gloo", "runs")
    ):
        algorithms(runs)


def test_a_filter_that_nothing_fulfils():
    with pytest.raises(UsageError, match=error_text("filter", "size>=1G", "conditions")):
        algorithms(RUNS, filter="size>=1G")


@pytest.mark.parametrize(
    ("settings", "collective", "expected"),
    [
        (protocol("tree", "ll"), "all_reduce", ("TREE", "LL")),
        ({"NCCL_ALGO": "NVLSTree"}, "all_reduce", ("NVLS_TREE", None)),
        ({"NCCL_ALGO": "ring;allreduce:tree"}, "all_gather", ("RING", None)),
        ({"NCCL_ALGO": "allreduce:tree"}, "all_gather", (None, None)),
        ({"NCCL_ALGO": "^tree"}, "all_reduce", (None, None)),
        ({"NCCL_ALGO": "ring,tree"}, "all_reduce", (None, None)),
        ({"CCL_ALLREDUCE": "direct"}, "all_reduce", ("direct", None)),
        ({"CCL_ALLREDUCE": "ring:0-8;2d:9-max"}, "all_reduce", (None, None)),
        ({"CCL_ALLREDUCE": "ring"}, "broadcast", (None, None)),
    ],
)
def test_what_a_setting_asks_of_a_collective(settings, collective, expected):
    assert requested(settings, collective) == expected


def test_requested_and_effective():
    # NCCL 2.23 and before: Tree does not exist for all-gather, and Ring runs without a word.
    ring = Choice("RING", "LL", 2)
    assert disobeyed({"NCCL_ALGO": "Tree"}, "all_gather", [ring]) == [ring]
    assert disobeyed({"NCCL_ALGO": "Ring"}, "all_gather", [ring]) == []
    # oneCCL over OFI (samples: requested=direct, algo recursive_doubling).
    other = Choice("recursive_doubling")
    assert disobeyed({"CCL_ALLREDUCE": "direct"}, "all_reduce", [other]) == [other]
    # The name of a kernel is only a hint.
    hint = Choice("RING", "LL", source="kernel name")
    assert disobeyed({"NCCL_ALGO": "Tree"}, "all_reduce", [hint]) == []


@pytest.fixture
def folder(in_tmp_path):
    path = in_tmp_path / "dir"
    for each in RUNS:
        save(each, path / f"{each.labels['cell']}-{each.labels['run']}.jsonl")
    spec = {
        "command": ["torchrun", "--nproc-per-node", "{nproc}", "-m", "torchcoll.allreduce"],
        "cells": [{"name": "auto", "axes": {"nproc": "2"}}],
        "runs": 6,
    }
    bad = {"record": "run", "cell": "nvls", "run": 1, "status": "unavailable"}
    lines = [
        json.dumps({"record": "matrix", "schema": "torchcoll-matrix/1", "spec": spec}),
        json.dumps({**bad, "reason": "NCCL has not got it on this machine", "file": None}),
        json.dumps({"record": "run", "cell": "ring", "run": 1, "file": "ring-1.jsonl"}),
        '{"record": "run", "cell": "tr',
    ]
    text = "\n".join(lines).replace('{"record": "matrix"', '{"record":"matrix"', 1)
    (path / "manifest.jsonl").write_text(text)
    return in_tmp_path


def test_the_table(folder, capsys):
    assert main(["algorithms", "dir"]) == 0
    text = capsys.readouterr().out
    small = next(line for line in text.splitlines() if line.startswith("  1K  tree"))
    assert small.split()[1:7] == ["tree", "100.0", "us", "150.0", "us", "1.500"]
    assert "beaten (by tree, p < 0.0001)" in small
    assert small.endswith("RING/LL 4ch")
    assert "1K: tree\n1M: ring\n" in text
    assert text.splitlines()[-1].startswith("force tree at 1K: 1.50x as fast as AUTO")
    assert "  1K  ~1.00  0.67\n  1M  ~1.00  1.50\n" in text
    assert "no result: nvls (unavailable: NCCL has not got it on this machine)" in text
    assert "Holm over 4 comparisons" in text


def test_wrong_and_disobedient_cells_in_the_table(in_tmp_path, capsys):
    tree = cell("tree", {K: 100_000, M: 150_000}, TREE, choice=Choice("RING", "LL", 4))
    tree[0].results[1].verification = Verification(checked=100, wrong=1)
    for number, each in enumerate([*RUNS[:12], *tree]):
        save(each, in_tmp_path / f"{number}.jsonl")
    assert main(["algorithms", "."]) == 0
    text = capsys.readouterr().out
    assert "WRONG RESULTS: tree at 1M; it wins at no size" in text
    assert "tree ran RING/LL, not what was asked, at 1K, 1M" in text
    assert "  1K  ~1.00  !0.67\n  1M  ~1.00  wrong\n" in text


def test_machines_read_it(folder, capsys):
    assert main(["algorithms", "dir", "--format", "json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert [one["winner"] for one in table["ranges"]] == ["tree", "ring"]
    assert [c["of_auto"] for c in table["rows"][0]["cells"]] == pytest.approx([1, 0.667], abs=1e-3)
    assert main(["algorithms", "dir", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["best"], row["result"]) for row in rows] == [
        ("tree", "beaten"),
        ("ring", "near-optimal"),
    ]
    assert main(["algorithms", "dir", "--format", "markdown"]) == 0
    assert "| 1K | tree |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--export-env", "--export-oneccl"],
            got(error_tail("--export-env and --export-oneccl", "one")),
        ),
        (["--export-tuner", "no/t.csv"], expecting("a file that can be written")),
        (["--export-tuner", "dir/auto-1.jsonl"], expecting("a file that does not exist")),
        (
            ["--export-env"],
            got(error_tail("tree at 1K, ring at 1M", "one winner at all sizes. By size")),
        ),
        (["--export-oneccl"], error_text("export-oneccl", "tree", "cells that set CCL_ALLREDUCE")),
        (["--format", "xml"], error_text("format", "xml")),
        (["--over-ranks", "best"], error_text("over-ranks", "best")),
    ],
)
def test_one_line_for_each_mistake(folder, capsys, options, message):
    assert main(["algorithms", "dir", *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_settings_change_at_the_geometric_middle():
    # sqrt(4096 * 16384) = 8192, as in oneCCL's own example
    assert limits([(1024, 4096), (16384, M)]) == [(0, 8192), (8193, None)]
    assert limits([(1024, M)]) == [(0, None)]


def test_export_env(folder, capsys):
    assert main(["algorithms", "dir", "--export-env", "--filter", "size>=1M"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("\nexport NCCL_ALGO=allreduce:ring\n")
    assert "# lost by it: the library's own choice" in text


def saved(folder, *runs):
    for number, each in enumerate(runs):
        save(each, folder / f"{number}.jsonl")


def test_export_env_names_the_function_only_where_nccl_knows_it(in_tmp_path, capsys):
    old = {"NCCL_ALGO": "Ring"}
    runs = cell("ring", {K: 100_000}, old)
    for each, version in zip(runs, ["2.21.5"] * 6, strict=True):
        each.environment["libraries"]["nccl"] = f"nccl {version}"
    saved(in_tmp_path, *runs)
    assert main(["algorithms", ".", "--export-env"]) == 0
    assert "export NCCL_ALGO=Ring\n" in capsys.readouterr().out
    for each in runs:
        each.environment["libraries"]["nccl"] = "nccl 2.24.3"
    for path in in_tmp_path.glob("*.jsonl"):
        path.unlink()
    saved(in_tmp_path, *runs)
    assert main(["algorithms", ".", "--export-env"]) == 0
    assert "export NCCL_ALGO=allreduce:ring\n" in capsys.readouterr().out


def test_export_oneccl(in_tmp_path, capsys):
    fast, slow = {1024: 10, 4096: 10, 16384: 30}, {1024: 20, 4096: 20, 16384: 15}
    saved(
        in_tmp_path,
        *cell(
            "rd", {s: 1000 * ns for s, ns in fast.items()}, {"CCL_ALLREDUCE": "recursive_doubling"}
        ),
        *cell("ring", {s: 1000 * ns for s, ns in slow.items()}, {"CCL_ALLREDUCE": "ring"}),
    )
    assert main(["algorithms", ".", "--export-oneccl"]) == 0
    text = capsys.readouterr().out
    assert "\nexport CCL_ALLREDUCE='recursive_doubling:0-8192;ring:8193-max'\n" in text
    assert "changed at their geometric middle" in text


def test_a_size_that_oneccl_does_not_document_is_not_exported(in_tmp_path, capsys):
    runs = [
        *cell("flat", {K: 1000, M: 2000}, {"CCL_ALLGATHERV": "flat", "CCL_ALLGATHER": "flat"}),
        *cell("ring", {K: 2000, M: 1000}, {"CCL_ALLGATHERV": "ring", "CCL_ALLGATHER": "ring"}),
    ]
    for each in runs:
        each.results = [
            measured(
                r.time_ns["host"][0][0], size_bytes=r.size_bytes, collective="all_gather", op=None
            )
            for r in each.results
        ]
    saved(in_tmp_path, *runs)
    assert main(["algorithms", ".", "--export-oneccl"]) == 2
    assert "Which size oneCCL goes by there is not documented." in capsys.readouterr().err


def test_export_tuner(folder, capsys):
    assert main(["algorithms", "dir", "--export-tuner", "t.csv"]) == 0
    lines = (folder / "t.csv").read_text().splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    # sqrt(1024 * 1048576) = 32768; channels from the log; one host, two ranks
    assert rules[:2] == [
        "allreduce,0,32768,tree,ll,8,1,2",
        "allreduce,32769,9223372036854775807,ring,ll,4,1,2",
    ]
    assert len(rules) == 7
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"torchcoll: wrote {folder}/t.csv\n"


def test_a_tuner_file_needs_protocol_and_channels(in_tmp_path, capsys):
    saved(in_tmp_path, *cell("ring", {K: 100_000}, RING))
    assert main(["algorithms", ".", "--export-tuner", "t.csv"]) == 2
    assert error_text("ring at 1K", "no known protocol", "both") in capsys.readouterr().err
    saved(in_tmp_path / "b", *cell("ring", {K: 100_000}, protocol("ring", "simple")))
    assert main(["algorithms", "b", "--export-tuner", "t.csv"]) == 2
    assert got("no known number of channels") in capsys.readouterr().err


def test_an_export_says_what_was_not_verified_and_not_obeyed(in_tmp_path, capsys):
    runs = cell("tree", {K: 100_000}, protocol("tree", "ll"), choice=Choice("RING", "LL", 4))
    for each in runs:
        each.results[0].verification = None
    saved(in_tmp_path, *runs)
    assert main(["algorithms", ".", "--export-tuner", "t.csv"]) == 0
    text = (in_tmp_path / "t.csv").read_text()
    assert "# NOT VERIFIED: tree\n" in text
    assert "# NOT AS ASKED: tree ran RING/LL\n" in text
    assert "allreduce,0,9223372036854775807,ring,ll,4,1,2\n" in text  # what was timed


def test_two_dtypes_are_too_many_for_one_setting(in_tmp_path, capsys):
    other = cell("ring", {K: 100_000}, RING)
    for each in other:
        each.results = [measured(100_000, size_bytes=K, dtype="bfloat16")]
    saved(in_tmp_path, *cell("ring", {K: 100_000}, RING), *other)
    assert main(["algorithms", ".", "--export-env"]) == 2
    assert (
        got(error_tail("2 tables that differ in dtype (float32, bfloat16)", "one"))
        in capsys.readouterr().err
    )


def test_auto_is_ahead_only_where_every_right_cell_is_shown_to_be_slower():
    def at(ratio, p, values=(100.0, 101.0)):
        return CellAt(Forced("ring"), values, "ok", (), (), Ratio(ratio, 0.9, 0.99), p)

    def ahead(*cells):
        return SizeContest(1024, None, list(cells)).auto_wins(0.02)

    assert ahead(at(0.95, 0.001), at(0.9, 0.01))
    assert not ahead(at(0.95, 0.2))  # the interval lies below 1, Holm's p does not show it
    assert not ahead(at(0.95, 0.001), at(1.05, 0.001))
    assert ahead(at(0.95, 0.001), at(1.05, 0.9, values=()))  # it has no time: no contest
    assert not ahead()


def test_of_one_run_of_each_the_fastest_is_named_and_none_is_called_the_best(capsys):
    runs = [
        *cell("Ring", {K: 100_000, M: 100_000}, RING, count=1),
        *cell("Tree", {K: 90_000, M: 150_000}, TREE, count=1),
    ]
    result = algorithms(runs)
    show_algorithms([result])
    out = capsys.readouterr().out
    assert out.replace("\n  ", " ").startswith(
        "Cannot tell which is fastest: one run of each, and at least 3 are needed; Tree looks "
        "fastest at 1K, Ring at 1M; at 1M Ring is 1.50x as fast as Tree\nNext: make 3 runs of "
        "each, as torchcoll matrix --preset nccl-algorithms --runs 3 does\n"
    )
    assert "best" not in out
    assert "1K 99.00 us 89.10 us" in " ".join(out.split())


def test_a_winner_that_changes_often_is_counted(capsys):
    sizes = [K << number for number in range(6)]
    runs = [
        *cell("Ring", {size: 100_000 + 10_000 * (n % 2) for n, size in enumerate(sizes)}, RING, 1),
        *cell("Tree", dict.fromkeys(sizes, 105_000), TREE, count=1),
    ]
    show_algorithms([algorithms(runs)])
    out = " ".join(capsys.readouterr().out.split())
    assert "; Ring looks fastest at 3 of 6 sizes, Tree at 3; at 32K Tree is 1.05x as fast" in out


def test_sides_without_a_common_case_are_not_compared(capsys):
    show_algorithms(
        [algorithms([*cell("Ring", {K: 100_000}, RING, 1), *cell("Tree", {M: 90_000}, TREE, 1)])]
    )
    out = capsys.readouterr().out
    assert out.startswith(
        "nothing to compare: no case was run with two of the algorithms (Ring, Tree)\nNext: give "
    )


def test_titles_of_pasted_tables_say_what_was_forced(tmp_path, capsys):
    """Tables of a thread, with a title each and without the last lines of nccl-tests."""
    heading = "# Collective test starting: all_reduce_perf\n"
    heading += "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"
    row = "  {}  {}  float  sum  -1  {}  {:.2f}  {:.2f}  0\n"

    def table(title, *times_us):
        sizes = zip((M, 4 * M, 16 * M), times_us, strict=True)
        bandwidths = ((size, us, size / us / 1000) for size, us in sizes)
        rows = [row.format(s, s // 4, us, b, b * 1.75) for s, us, b in bandwidths]
        return f"### {title}\n{''.join(rows)}"

    path = tmp_path / "issue.txt"
    ring = table("ALGO=Ring", 40.0, 50.0, 120.0)
    path.write_text(heading + ring + table("NCCL_ALGO: Tree", 30.0, 60.0, 180.0))
    assert main(["algorithms", str(path)]) == 0
    assert capsys.readouterr().out.startswith(
        "Cannot tell which is fastest: one run of each, and at least 3 are needed; tree looks "
        "fastest at 1M, ring from 4M on; at 16M ring is 1.50x as fast as tree\n"
    )
    assert main(["show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out and "the last table may be cut off" in out


def test_the_side_auto_of_logs_is_a_column_beside_forced_protocols(tmp_path, capsys):
    """Its label is of another variable (NCCL_ALGO) than those of the forced ones (NCCL_PROTO)."""
    words = []
    for name, times_us in (("auto", (20, 80)), ("Simple", (30, 90)), ("LL", (25, 120))):
        path = tmp_path / f"{name}.csv"
        rows = [f"broadcast,2,nccl,{n},{us}" for n, us in zip((K, M), times_us, strict=True)]
        path.write_text("\n".join(["collective,ranks,backend,size,time_us", *rows, ""]))
        words.append(f"{name}={path}")
    assert main(["algorithms", *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "AUTO looks fastest from 1K on; at 1M AUTO is 1.12x as fast as Simple" in out
    assert "size AUTO Simple LL 1K 20.00 us 30.00 us 25.00 us 1M 80.00 us" in out
    assert "left out" not in out and "hidden" not in out


@pytest.mark.parametrize(
    ("auto_us", "says"),
    [
        ((10, 20, 40, 51, 100), "Ring from 2K to 4K (at 4K 40.00 us, Ring 22.00 us); at other"),
        ((10, 15, 40, 80, 160), "1.60x to 1.82x slower than Ring from 4K to 16K (at"),
        ((10, 15, 21, 60, 100), "AUTO looks 1.20x slower than Ring at 8K ("),
        ((10, 15, 23, 52, 101), ""),  # 4 % is no more than noise
    ],
)
def test_the_sizes_at_which_auto_of_one_run_is_slow_come_first(auto_us, says, tmp_path, capsys):
    forced = {"Ring": (12, 15, 22, 50, 100), "Tree": (10, 30, 60, 90, 180), "auto": auto_us}
    words = []
    for name, times_us in forced.items():
        path = tmp_path / f"{name}.csv"
        rows = [f"all_gather,8,nccl,{K << n},{us}" for n, us in enumerate(times_us)]
        path.write_text("\n".join(["collective,ranks,backend,size,time_us", *rows, ""]))
        words.append(f"{name}={path}")
    assert main(["algorithms", *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("AUTO looks" if says else "Cannot tell which is fastest: one run")
    assert says in out
    assert ("Not proven: one run of each Next: make 3 runs" in out) == bool(says)


def test_three_runs_of_each_are_judged(capsys):
    runs = [
        *cell("Ring", {K: 100_000, M: 100_000}, RING, count=3),
        *cell("Tree", {K: 50_000, M: 150_000}, TREE, count=3),
    ]
    show_algorithms([algorithms(runs)])
    assert capsys.readouterr().out.startswith("best: 1K Tree, 1M Ring\n")
