"""A fitted model against a run that it has not seen."""

from __future__ import annotations

import json
import re

import made_models
import pytest
from error_form import error_tail, error_text, got
from made_models import even_buckets, planned_buckets
from made_runs import measured, run

from torchcoll import cli
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.core.result import ConcurrentBlocks
from torchcoll.parts.curves.curves_charts import validation_charts
from torchcoll.parts.curves.model import MachineModel
from torchcoll.parts.curves.model_check import check_model
from torchcoll.parts.curves.model_file import model_text
from torchcoll.parts.curves.model_fit import fit_model, groups_at_once
from torchcoll.report.header import kind_texts
from torchcoll.stats.sides import Reading, side

SIZES = [1 << k for k in range(12, 26, 2)]  # 4K to 16M


def launch(ranks, factor=1.0, sizes=SIZES, name="a", **changed):
    """A run of all_reduce as made_models has its times, so many times as long."""
    results = [
        measured(
            round(factor * made_models.ring_ns("all_reduce", size, ranks)),
            ranks,
            size_bytes=size,
            **changed,
        )
        for size in sizes
    ]
    return run(*results, ranks=ranks, header={"run_id": name})


@pytest.fixture(scope="module")
def model():
    return fit_model([launch(n, name=f"fitted{n}") for n in (2, 4, 8)]).model


@pytest.fixture(scope="module")
def files(tmp_path_factory, model):
    """machine.json, and runs of it: 10 % slower, on 16 ranks 20 % slower and of larger sizes."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "machine.json").write_text(model_text(model))
    made = {
        "fitted": launch(4, name="fitted4"),
        "slow": launch(4, 1.1),
        "far": launch(16, 1.2, sizes=[1 << 20, 1 << 28], name="b"),
        "nccl": launch(4, backend="nccl", device="cuda"),
        "bfloat16": launch(4, dtype="bfloat16"),
        "moved": launch(4, collective="all_gather", op=None, in_place=False),
    }
    for name, one in made.items():
        save(one, folder / f"{name}.jsonl")
    return folder


def check(folder, *names, words=()):
    paths = [str(folder / f"{name}.jsonl") for name in names]
    return cli.main(
        ["model", "validate", "--predicted", str(folder / "machine.json"), *paths, *words]
    )


def test_a_machine_that_has_become_slower(files, capsys):
    """1 / 1.1 - 1 is -9.09 %; the data had no noise, so that no interval is that wide."""
    assert check(files, "slow", words=["--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "torchcoll-validation/1"
    row, total = found["rows"]
    assert (row["collective"], row["ranks"], row["points"]) == ("all_reduce", 4, 7)
    for one in (row, total):
        assert one["mean"] == pytest.approx(0.0909, abs=5e-4)
        assert one["geomean"] == pytest.approx(0.0909, abs=5e-4)
        assert one["worst"] == pytest.approx(0.0909, abs=5e-4)
        assert one["ratio"] == pytest.approx(1 / 1.1, rel=1e-3)
        assert (one["covered"], one["beyond"]) == (0, 0)
    assert (total["ranks"], total["part"], found["not_predicted"]) == (None, "all", 0)
    assert [point["size_bytes"] for point in found["points"]] == SIZES
    assert check(files, "slow") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "machine.json is off by 9.1 % on average (worst 9.1 %: " in last
    assert last.endswith("on 4 ranks); 0 % of 7 times lie in their 90 % interval")


def test_what_lies_beyond_the_data_is_counted_apart(files, capsys):
    """16 ranks are twice the most, 256M is 16 times the largest size. 1 / 1.2 - 1 is -16.7 %."""
    assert check(files, "slow", "far") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "; 9.1 % within its data, 16.7 % extrapolated (2 times)" in lines[-1]
    rows = [
        re.split("  +", line)
        for line in lines
        if re.match("(within the data|extrapolated)  ", line)
    ]
    assert [row[2] for row in rows] == ["7", "2"]
    far = [line for line in lines if line.startswith("extrapolated: ")]
    assert len(far) == 2 and all("all_reduce on 16 ranks" in line for line in far)
    assert any("16x the largest size (16M); 2x the most ranks (8)" in line for line in far)


def test_a_run_that_it_was_fitted_to_is_no_test(files, capsys):
    check(files, "fitted", "slow")
    text = "1 run of these are among those that the model was fitted to"
    assert text in capsys.readouterr().out
    check(files, "slow")
    assert "fitted to" not in capsys.readouterr().out


def test_cases_that_it_does_not_know_are_said(files, capsys):
    assert check(files, "slow", "bfloat16", "moved") == 0
    out = capsys.readouterr().out
    assert "not predicted: 7 cases of all_reduce: dtype bfloat16; the model has float32" in out
    assert "not predicted: 7 cases of all_gather: not in the model, which has all_reduce" in out
    assert out.splitlines()[-1].endswith("; 14 cases it does not predict")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "nccl",
            error_text(
                "cases",
                "7 cases of all_reduce: backend nccl, device cuda; the model has gloo, cpu",
                "some that ",
            ),
        ),
        (
            "moved",
            error_text(
                "cases", "7 cases of all_gather: not in the model, which has all_reduce", "some"
            ),
        ),
        ("nosuch", error_text("result file", "")),
    ],
)
def test_runs_of_which_it_knows_nothing(files, capsys, name, expected):
    assert check(files, name) in (2, 3)
    error = capsys.readouterr().err
    assert error.startswith(f"torchcoll: error: {expected}") and error.count("\n") == 1


def test_ranks_that_no_law_reaches():
    alone = fit_model([launch(4)]).model
    with pytest.raises(
        UsageError, match=error_text("^ranks", error_tail("8", "4, .*Measure another: torchrun"))
    ):
        check_model(alone, [launch(8)])


def test_a_model_of_another_schema(files, tmp_path, capsys):
    text = (files / "machine.json").read_text()
    (tmp_path / "machine.json").write_text(text.replace("torchcoll-model/1", "torchcoll-model/9"))
    assert check(tmp_path, "slow") == 3
    error = capsys.readouterr().err
    assert (
        got(error_tail("torchcoll-model/9", "torchcoll-model/1")) in error
        and error.count("\n") == 1
    )


def test_a_table_that_tells_less_is_of_the_only_kind_there_is(model, tmp_path):
    path = tmp_path / "run.csv"
    us = made_models.ring_ns("all_reduce", 1 << 20, 4) / 1e3
    path.write_text(f"collective,ranks,size (B),time (us)\nall_reduce,4,{1 << 20},{2 * us}\n")
    found = check_model(model, path)
    assert found.totals[0].errors.mean == pytest.approx(0.5, abs=1e-3)
    both = MachineModel((*model.entries, *fit_model([launch(4, dtype="bfloat16")]).model.entries))
    (note,) = [note for note in check_model(both, path).notes if "not tell" in note]
    # float32 was measured on three numbers of ranks, bfloat16 on one.
    assert note == "all_reduce: the run does not tell dtype: taken for dtype float32"


def split(groups, rule="div:2/{}", hosts=("vm",)):
    """A run of groups of 2 ranks that call at once: 1 ns for each byte and group."""
    results = [
        measured(
            1000 + groups * size,
            size_bytes=size,
            group=rule.format(number),
            members=[2 * number, 2 * number + 1],
        )
        for size in SIZES
        for number in range(groups)
    ]
    return run(*results, ranks=2 * groups, hosts=list(hosts), header={"run_id": f"at{groups}"})


def test_a_case_is_only_checked_against_as_many_groups_at_once():
    model = fit_model([launch(2), split(2)]).model
    checked = check_model(model, [split(2, hosts=("a", "b"))])
    assert checked.totals[0].errors.mean == pytest.approx(0, abs=1e-3)
    assert not any("not tell" in note for note in checked.notes)
    text = "14 cases of all_reduce: groups_at_once {}; the model has {}"
    for of_model, measured_run, number in (
        (split(2), split(4), (4, 2)),
        (launch(2), split(2), (2, 1)),
    ):
        expected = text.format(*number).replace("14", str(7 * number[0]))
        with pytest.raises(UsageError, match=error_text("cases", expected)):
            check_model(fit_model(of_model).model, [measured_run])
    with pytest.raises(UsageError, match="groups_at_once 1; the model has 2"):
        check_model(fit_model(split(2)).model, [launch(2)])


@pytest.mark.parametrize(
    ("group", "number"),
    [
        ("mod:4/0", 4),
        ("div:2/3", 4),
        ("0,1;2,3;4,5;6,7/1", 4),
        ("0,1;2,3,4,5,6,7/0", 2),
        ("pair/0-1", 1),
        ("node/2-3", 1),
        ("world/0", 1),
        ("mod:4", 1),
        (None, 1),
    ],
)
def test_number_of_groups_at_once(group, number):
    files = side("files", [run(measured(1000, group=group, members=[0, 1]), ranks=8)])
    (item,) = files.measured("time", Reading())
    assert groups_at_once(files.parts[item.part], item) == number


def test_halves_of_a_bisection_call_at_once():
    """In the second step of 8 ranks the other half of the ranks is a third group."""
    steps = {1: ([0, 1, 2, 3], [4, 5, 6, 7]), 2: ([0, 1], [2, 3], [4, 5, 6, 7])}
    results = [
        measured(1000, len(members), group=f"bisect {step}/{number}", members=members)
        for step, groups in steps.items()
        for number, members in enumerate(groups)
    ]
    files = side("files", [run(*results, ranks=8)])
    at_once = {
        item.row.group: groups_at_once(files.parts[item.part], item)
        for item in files.measured("time", Reading())
    }
    assert at_once == {
        "bisect 1/0": 2,
        "bisect 1/1": 2,
        "bisect 2/0": 3,
        "bisect 2/1": 3,
        "bisect 2/2": 3,
    }
    halves = split(2, rule="bisect 1/{}")
    checked = check_model(fit_model([split(2)]).model, [halves])
    assert checked.totals[0].errors.mean == pytest.approx(0, abs=1e-3)
    with pytest.raises(UsageError, match="groups_at_once 2; the model has 1"):
        check_model(fit_model([launch(2)]).model, [halves])


def test_its_errors_are_drawn(model):
    times, errors = validation_charts(check_model(model, [launch(4, 1.25)]))
    assert "left-out" not in times.title
    (curve,) = [trace for trace in errors.traces if len(trace["x"]) == len(SIZES)]
    assert curve["y"] == pytest.approx([-20] * len(SIZES), abs=0.1)


def worked(ranks, factor, covered=True):
    """As ``run``, and beside a matrix product so many times as long: two blocks of two calls."""
    made = launch(ranks, name=f"beside{ranks}")
    for one in made.results:
        ns = made_models.ring_ns("all_reduce", one.size_bytes, ranks)
        alone, both = ([[round(2 * f * ns)] * 2] * ranks for f in (1, factor))
        work = [[round((2 if covered else 0.5) * factor * ns)] * 2] * ranks
        one.concurrent = ConcurrentBlocks("matmul:1M", 1, 2, 3, alone, work, both, work, both)
    return made


def test_a_model_of_calls_beside_work():
    found = fit_model([worked(n, 1.5) for n in (2, 4, 8)], concurrent=True).model
    (entry,) = found.entries
    assert entry.concurrent == "matmul:1M"
    alone = made_models.ring_ns("all_reduce", 1 << 20, 4)
    assert found.predict("all_reduce", 1 << 20, 4).time_ns == pytest.approx(1.5 * alone, rel=1e-3)
    # About another run, its calls beside the same work: 1.5 / 2 - 1 is -25 %.
    checked = check_model(found, [worked(4, 2)])
    assert checked.totals[0].errors.mean == pytest.approx(0.25, abs=1e-3)
    with pytest.raises(
        UsageError, match=got("7 cases without concurrent work, .*--concurrent matmul")
    ):
        check_model(found, [launch(4)])
    assert "concurrent matmul:1M" in kind_texts([entry.kind])[0]


def test_work_that_ended_before_the_calls_is_said():
    found = fit_model([worked(4, 1.5, covered=False)], concurrent=True)
    text = "in 7 of 7 cases the work ended before the calls"
    assert any(note.startswith(text) for note in found.notes)
    plan = planned_buckets(found.model, 4_000_000, [4])
    assert any(note.startswith(text) for note in plan.notes)


def test_a_plan_says_with_what_work(tmp_path, capsys):
    path = tmp_path / "machine.json"
    even_buckets(2_000_000, 4).save(tmp_path / "traffic.jsonl")
    for concurrent in (True, False):
        path.write_text(model_text(fit_model([worked(4, 1.5)], concurrent=concurrent).model))
        words = ["plan", str(tmp_path / "traffic.jsonl"), "--machine", str(path)]
        assert cli.main(words) == 0
        lines = capsys.readouterr().out.splitlines()
        assert " 4 ranks (3 MB per rank in 2 calls) takes " in lines[-1]
        note = "calls as measured with matmul:1M"
        assert any(line.startswith(note) for line in lines) == concurrent
