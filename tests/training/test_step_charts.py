"""Where the step goes: a bar for each rank and their mean, by hand."""

from dataclasses import replace

import pytest
from sent import MS, call, traffic

from torchcoll.parts.training.traffic_charts import traffic_charts
from torchcoll.parts.training.traffic_show import TRAFFIC


def waited_for(module: str, at_ms: int, rank: int, late_ms: int, sequence: int, step: int):
    """A call of 10 ms that the program waits for, and which rank 1 enters late."""
    return call(
        module=module,
        asynchronous=False,
        sequence=sequence,
        step=step,
        clock="host",
        start_ns=step * 100 * MS + (at_ms + late_ms * rank) * MS,
        time_ns=(10 + late_ms * (1 - rank)) * MS,
    )


def lengths(calls_of, **more):
    (chart,) = traffic_charts(traffic(calls_of, steps=3, **more))
    seconds = {trace["name"]: trace["x"] for trace in chart.traces}
    return chart.traces[0]["y"], {name: [1000 * x for x in of] for name, of in seconds.items()}


def test_the_step_is_split_into_modules_waiting_and_the_rest():
    def calls(rank):
        for step in range(3):
            yield waited_for("layers.0", 0, rank, 20, 2 * step, step)
            yield waited_for("head", 50, rank, 0, 2 * step + 1, step)

    rows, of = lengths(calls)
    assert rows == ["mean of the ranks", "rank 0", "rank 1"]
    # Each rank: two calls of 10 ms; rank 0 waits 20 ms too; the step takes 100 ms.
    assert {name: [round(x, 6) for x in values] for name, values in of.items()} == {
        "calls of layers.0 10 %": [10, 10, 10],
        "calls of head 10 %": [10, 10, 10],
        "waiting for another rank 10 %": [10, 20, 0],
        "outside of calls 70 %": [70, 60, 80],
    }


def test_the_sentence_has_the_figures_of_the_chart():
    """Of four ranks rank 1 is 60 ms late in each of 5 steps: 1 in 256 by chance, for any rank."""

    def calls(rank):
        for step in range(5):
            yield waited_for("layers.2 to embedding", 0, rank == 1, 60, step, step)

    recorded = traffic(calls, steps=5, ranks=4)
    (chart,) = traffic_charts(recorded)
    assert chart.traces[0]["y"][:3] == ["mean of the ranks", "rank 1, probably late", "rank 0"]
    assert [trace["name"] for trace in chart.traces][:2] == [
        "calls of layers.2 to embedding 10 %",
        "waiting for another rank 45 %",
    ]
    answer = TRAFFIC.answer(recorded)
    assert answer.headline.startswith(
        "Probably rank 1 is late: the other ranks wait 60.0 ms in a step of 100 ms for it ("
    )
    assert answer.details[0] == "it is outside of calls 90.0 ms in a step, the others 30.0 ms"
    assert (
        "spends 55.0 ms on communication (55 %: 45 % waiting for other ranks, 10 % in calls"
        in answer.text
    )


def test_many_modules_are_the_largest_and_all_others():
    def calls(rank):
        for step in range(3):
            for n in range(5):
                yield waited_for(f"layers.{n}", 15 * n, rank, 0, 5 * step + n, step)

    _, of = lengths(calls)
    assert [name for name in of if "other" in name] == ["other communication 20 %"]
    assert sum(map(sum, of.values())) == pytest.approx(300)  # three rows of 100 ms


def test_without_marks_the_calls_of_each_rank_are_added_up():
    """Rank 0 waits 20 ms in each of three calls, which then take 10 ms."""

    def calls(rank):
        for number in range(3):
            yield replace(waited_for("", 0, rank, 20, number, number), step=None)

    (chart,) = traffic_charts(traffic(calls))
    assert chart.traces[0]["y"] == ["rank 0", "rank 1"]
    seconds = {trace["name"]: trace["x"] for trace in chart.traces}
    assert seconds == {"transfer": [0.03, 0.03], "waiting for another rank": [0.06, 0.0]}
