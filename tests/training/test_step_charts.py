"""Where the step goes: a bar for each rank and their mean, by hand."""

from sent import MS, call, traffic

from torchcoll.parts.training.traffic_charts import traffic_charts


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
    assert rows[0] == "mean of the ranks" and {*rows[1:]} == {"rank 0", "rank 1"}
    # Each rank: two calls of 10 ms; rank 0 waits 20 ms too; the step takes 100 ms.
    assert {name: [round(x, 6) for x in values] for name, values in of.items()} == {
        "calls of layers.0 10 %": [10, 10, 10],
        "calls of head 10 %": [10, 10, 10],
        "waiting for another rank 10 %": [10, 20, 0],
        "outside of calls 70 %": [70, 60, 80],
    }
