"""Models of groups that call at once, and of calls that run together with other work."""

import made_models
import pytest
from error_form import got
from made_models import even_buckets, planned_buckets
from made_runs import measured, run

from torchcoll import cli
from torchcoll.core.errors import UsageError
from torchcoll.core.result import ConcurrentBlocks
from torchcoll.parts.curves.model_file import model_text
from torchcoll.parts.curves.model_fit import fit_model, groups_at_once
from torchcoll.report.header import kind_texts
from torchcoll.stats.sides import Reading, side

SIZES = [1 << k for k in range(12, 26, 2)]  # 4K to 16M


def launch(ranks, name="a"):
    """A run of all_reduce as made_models has its times."""
    results = [
        measured(round(made_models.ring_ns("all_reduce", size, ranks)), ranks, size_bytes=size)
        for size in SIZES
    ]
    return run(*results, ranks=ranks, header={"run_id": name})


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
    with pytest.raises(
        UsageError, match=got("7 cases without concurrent work, .*--concurrent matmul")
    ):
        fit_model([launch(4)], concurrent=True)
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
        assert (" concurrent with matmul:1M" in lines[-1]) == concurrent
        assert any(line.startswith("real steps took") for line in lines) != concurrent
