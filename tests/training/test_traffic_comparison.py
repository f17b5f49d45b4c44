"""Two captures side by side: figures that can be computed in the head."""

import json
from pathlib import Path

import pytest
from error_form import error_text
from handmade import result, run
from sent import MIB, MS, call, traffic

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import TorchcollError
from torchcoll.parts.training.traffic_comparison_show import compare_traffic

STEPS = 8


def captured(calls_a_step, late_ms=0, size_bytes=MIB, step_ms=100):
    """Steps of 100 ms with calls of 3 ms, to which rank 1 comes so much later."""
    made = traffic(
        lambda rank: [
            call(
                size_bytes=size_bytes,
                sequence=calls_a_step * step + number,
                step=step,
                asynchronous=False,
                start_ns=(step_ms * step + 10 * number + late_ms * rank) * MS,
                time_ns=(3 + late_ms * (1 - rank)) * MS,
            )
            for step in range(STEPS)
            for number in range(calls_a_step)
        ],
        steps=STEPS,
    )
    for rank in made.steps:
        made.steps[rank] = [(step_ms * n * MS, step_ms * (n + 1) * MS) for n in range(STEPS)]
    return made


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "a step takes as long in new as in base (100 ms and 100 ms)"),
        (
            {"late_ms": 40, "step_ms": 140},
            "a step takes 40.0 ms longer in new than in base (140 ms and 100 ms, 1.4x), mostly "
            "because the ranks wait on average 20.0 ms longer for rank 1",
        ),
        (
            {"step_ms": 50},
            "a step takes 50.0 ms longer in base than in new (100 ms and 50.0 ms, 2x)",
        ),  # neither the calls nor waiting changed
    ],
)
def test_the_first_sentence_says_which_step_is_longer_and_why(changed, expected):
    assert compare_traffic(captured(1), captured(1, **changed)).answer.headline == expected


def test_calls_bytes_time_and_waiting():
    """One call of 3 ms a step, then two to which rank 1 comes 5 ms late: 2 x 8 ms, 10 of it waited
    for.
    """
    comparison = compare_traffic(captured(1), captured(2, late_ms=5))
    (row,) = comparison.rows
    assert (row["base_calls_per_step"], row["new_calls_per_step"]) == (1, 2)
    assert (row["base_bytes_per_step"], row["new_bytes_per_step"]) == (MIB, 2 * MIB)
    assert (row["base_time_per_step_ns"], row["new_time_per_step_ns"]) == (3 * MS, 16 * MS)
    assert (row["base_wait_per_step_ns"], row["new_wait_per_step_ns"]) == (0, 10 * MS)
    assert row["ratio"] == pytest.approx(16 / 3)
    assert not comparison.sent_alike
    assert comparison.answer.details[:2] == (
        "new sends 2 MiB in 2 calls a step, base 1 MiB in 1 call (1 of 1 rows differ)",
        "in new rank 1 is late: the other rank waits 10.0 ms in a step of 100 ms for it "
        "(100 % of all waiting, last in 16 of 16 calls, 50 % by chance)",
    )


def test_calls_of_one_side_alone():
    comparison = compare_traffic(captured(1), captured(1, size_bytes=2 * MIB))
    assert [(row["base_calls_per_step"], row["new_calls_per_step"]) for row in comparison.rows] == [
        (1, None),
        (None, 1),
    ]
    assert compare_traffic(captured(2), captured(2, late_ms=5)).sent_alike


def test_python_gives_what_the_command_gives(tmp_path):
    """Also in a notebook, and a Traffic on one side alone is refused, as is an option."""
    before, after = captured(1), captured(1, late_ms=5)
    comparison = torchcoll.compare(before, after)
    assert isinstance(comparison, torchcoll.TrafficComparison)
    assert comparison.rows[0]["ratio"] == pytest.approx(8 / 3)
    assert comparison.new.arrivals.late[0].rank == 1
    assert "all_reduce" in comparison._repr_html_()
    with pytest.raises(TorchcollError) as error:
        torchcoll.compare(before, tmp_path)
    assert "Traffic.load" in str(error.value)
    with pytest.raises(TorchcollError, match=r"options, expected none with captures"):
        torchcoll.compare(before, after, metric="busbw")


def test_the_command(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    captured(1).save(paths[0])
    captured(1, late_ms=5).save(paths[1])
    assert main(["compare", f"before={paths[0]}", f"after={paths[1]}"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("a step takes as long in after as in before (100 ms and 100 ms); ")
    assert "both send the same, 1 MiB in 1 call a step\nin after rank 1 is late: " in text
    assert main(["compare", *paths, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert (row["base_wait_per_step_ns"], row["new_wait_per_step_ns"]) == (0, 5 * MS)
    assert document["new"]["arrivals"]["ranks"][0]["rank"] == 1

    assert main(["compare", *paths, "--threshold", "5%"]) == 2
    expected = error_text("threshold", "5%", "none with captures of a training")
    assert expected in capsys.readouterr().err
    assert main(["compare", *paths, paths[0]]) == 2
    expected = "two captures, or results of measurements"
    assert error_text("compare", "3 captures", expected) in capsys.readouterr().err


def test_a_capture_and_something_else(in_tmp_path, capsys):
    captured(1).save("a.jsonl")
    torchcoll.save(run(result()), "run.jsonl")
    Path("empty").mkdir()
    expected = "a capture of a training, as a.jsonl is"
    for sides, name, what in (
        (["a.jsonl", "empty"], "new", "empty, an empty folder"),
        (["a.jsonl", "nothing.jsonl"], "new", "nothing.jsonl, which does not exist"),
        (["a.jsonl", "run.jsonl"], "new", "run.jsonl, which is no capture"),
        (["run.jsonl", "a.jsonl"], "base", "run.jsonl, which is no capture"),
    ):
        assert main(["compare", *sides]) == 3
        assert error_text(name, what, expected) in capsys.readouterr().err
