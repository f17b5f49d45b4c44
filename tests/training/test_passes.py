"""Steps that hold several backward passes, or may: split where it is sure, refused where not."""

from __future__ import annotations

import dataclasses
import json

import pytest
from error_form import error_line, error_text
from made_curves import MIB, MS, SIZES, curve, timed, traffic

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UsageError

SAY = (
    "Say how many a step has, 1 if it is one: --accumulate N (accumulate of torchcoll.advise). Of "
    "several models capture one at a time"
)


def sent(*step, steps=2, **changed):
    """A step is made of (MiB, ms of issue, ms that it takes); None: nobody knows how long."""
    recorded = traffic([[call[:2] for call in step]] * steps, **changed)
    return timed(recorded, *(call[2] for call in step))


def advised(result, **choices):
    return torchcoll.advise(result, curve(), caps_mb=[1], **choices)


def refused(result):
    with pytest.raises(UsageError) as raised:
        advised(result)
    return str(raised.value)


# Two passes of 3 MiB: the second bucket is issued while the first is in flight; 40 ms in between.
PAIR = ((2, 10, 6), (1, 14, 4), (2, 60, 6), (1, 64, 4))


def test_equal_passes_with_a_pause_are_told_apart():
    recorded = advised(sent(*PAIR))
    assert recorded.size_bytes == 3 * MIB
    # The last of 3 MiB comes 4 ms after the first, 1 of 3 MiB took them: 12 ms in all. As one pass
    # it would be 6 MiB: 54 ms for 4 of them, 81 ms.
    assert recorded.backward_ns == pytest.approx(12 * MS)
    assert (recorded.what, recorded.accumulate) == ("2 all_reduce a backward pass (capture)", 1)
    assert (
        "each step makes the same 2 all_reduce calls 2 times, with nothing in flight in between: "
        "all figures are of one of these backward passes"
    ) in recorded.notes


@pytest.mark.parametrize(("late", "passes"), [(1, 2), (3, 2), (4, 1)])
def test_ends_that_are_heard_late(late, passes):
    """Of 4 steps: two, on two ranks. Where there is always something in flight it is one pass."""
    recorded = sent(*PAIR)
    ends = [(0, 1), (0, 5), (1, 1), (1, 5)][:late]  # the second call of a step on a rank
    for rank, index in ends:
        call = recorded.calls[rank][index]
        recorded.calls[rank][index] = dataclasses.replace(call, time_ns=47 * MS)  # to 61, next: 60
    assert advised(recorded).size_bytes == 6 * MIB // passes


def test_a_pause_in_some_steps_alone_tells_nothing():
    # In 1 of 4 the second call too begins when the first is over: not a third of the borders' 2.
    recorded = sent(*PAIR)
    for rank, index, ms in ((0, 1, 47), (0, 5, 47), (1, 0, 4)):
        call = recorded.calls[rank][index]
        recorded.calls[rank][index] = dataclasses.replace(call, time_ns=ms * MS)
    assert "whose sizes repeat 2 times" in refused(recorded)


def test_sizes_that_repeat_while_calls_are_in_flight_are_one_pass():
    recorded = advised(sent((2, 10, 6), (1, 14, 10), (2, 20, 6), (1, 24, 4)))
    assert recorded.size_bytes == 6 * MIB
    assert recorded.what == "4 all_reduce a step, taken for one backward pass (capture)"


@pytest.mark.parametrize(
    ("step", "count", "times"),
    [
        # Each bucket ends before the next is ready: one pass of a slow model, or several.
        (((2, 10, 1), (1, 12, 1), (2, 14, 1), (1, 16, 1)), 4, 2),
        (((1, 10, 1), (1, 12, 1), (1, 14, 1)), 3, 3),
        (((1, 10, None), (1, 12, None), (1, 14, None)), 3, 3),
    ],
)
def test_what_may_be_either_is_refused(step, count, times):
    assert refused(sent(*step)) == (
        error_text(
            "backward passes",
            f"{count} all_reduce a step, whose sizes repeat {times} times",
            f"calls that tell how many they are. {SAY}",
        )
    )
    size_bytes = sum(call[0] for call in step) * MIB
    assert advised(sent(*step), accumulate=1).size_bytes == size_bytes
    assert advised(sent(*step), accumulate=times).size_bytes == size_bytes // times


def test_what_was_exposed_is_measured():
    # Two passes a step, two ranks: 4 ms from the last issue to the end of all, where the first of
    # the pass ends first, else as long as that takes: 10 + 14 - 14. The median of 4, 4, 10, 4 ...
    recorded = sent(*PAIR)
    for call, ms in ((0, 14), (4, 12)):
        recorded.calls[1][call] = dataclasses.replace(recorded.calls[1][call], time_ns=ms * MS)
    advice = advised(recorded)
    assert advice.measured_ns == 4 * MS  # of 4 x 6, 10 and 8
    assert advice.measured_as == (
        "from the issue of the last all_reduce of a pass to the end of all; the ends are recorded "
        "up to 5 ms late"
    )
    assert advised(sent(*PAIR, source="kineto")).measured_as.endswith(" to the end of all")
    assert advised(sent((2, 10, 6), (1, 14, None))).measured_ns is None
    assert torchcoll.advise(8 * MIB, curve(), backward_ms=8).measured_ns is None


def test_an_end_after_the_mark_is_not_measured():
    # Issued 2 ms before the mark, heard of 3 ms after it.
    recorded = advised(sent((2, 10, 6), (1, 14, 5), steps=1, spans=[(0, 16)]))
    assert recorded.measured_ns == 2 * MS


def test_a_trace_tells_what_was_exposed():
    recorded = timed(traffic([[(2, 10), (1, 14)]] * 2), 6, 5, clock="device", exposed_ns=MS)
    recorded.source = "kineto"
    advice = advised(recorded)
    assert advice.measured_ns == 2 * MS
    assert advice.measured_as == "all_reduce of a pass under which nothing else ran"


@pytest.mark.parametrize(
    ("second_ms", "separate"),
    # Of 3 MiB at 12 ms, in two buckets: 2 MiB are ready at 8, 1 MiB at 12 and takes 2 ms.
    [(0.9, True), (1, False), (4, False), (4.1, True)],
)
def test_measured_stands_beside_the_model(second_ms, separate, capsys):
    recorded = sent((2, 10, second_ms), (1, 14, second_ms))
    torchcoll.show(torchcoll.advise(recorded, curve(), caps_mb=[3]))
    out = capsys.readouterr().out
    measured = f"{second_ms:.3f} ms" if second_ms >= 1 else "900.0 us"
    assert f"; exposed 2.000 ms (measured {measured}, with waits)\n" in out
    message = (
        f"model and measurement of what was sent are more than 2x apart: 2.000 ms and {measured}. "
        "What the model leaves out counts here: let try_buckets decide\n"
    )
    assert (message in out) == separate
    assert ("more than 2x apart" in out) == separate


def test_measured_where_the_model_has_no_number(capsys):
    # 8 MiB in one bucket were sent: beyond a curve to 4 MiB. Of a cap of 4 nobody knows.
    recorded = sent((8, 10, 2), steps=1, spans=[(0, 12)])
    torchcoll.show(torchcoll.advise(recorded, curve(sizes=SIZES[:3]), caps_mb=[4]))
    out = capsys.readouterr().out
    assert out.startswith(
        "no proposal: there are no two settings whose buckets are known, of measured sizes, and "
        "differ; exposed now (measured 2.000 ms, with waits)\n"
    )
    assert "2x apart" not in out
    torchcoll.show(torchcoll.advise(recorded, curve(sizes=SIZES[:3]), caps_mb=[4]), format="json")
    assert json.loads(capsys.readouterr().out)["measured_ns"] == 2 * MS


def test_ends_on_the_device_tell_nothing_of_the_host():
    recorded = sent(*PAIR)
    for rank, calls in recorded.calls.items():
        recorded.calls[rank] = [dataclasses.replace(call, clock="device") for call in calls]
    assert "whose sizes repeat 2 times" in refused(recorded)


def test_two_unlike_models_are_refused():
    # From the first issue to the last 50.5 ms, 50 of them with nothing in flight.
    step = ((2, 10, 6), (1, 10.25, 6), (4, 60.25, 6), (3, 60.5, 6))
    assert refused(sent(*step)) == (
        error_text(
            "backward passes",
            "4 all_reduce a step, 2 of them 50.00 ms before the others",
            f"the calls of one. {SAY}",
        )
    )
    assert advised(sent(*step), accumulate=1).size_bytes == 10 * MIB


def test_what_may_be_another_model_is_said():
    # Both passes without a pause: only before the third call is nothing in flight.
    step = ((2, 10, 6), (1, 12, 5), (4, 18, 6), (3, 20, 6))
    message = (
        "nothing was in flight when all_reduce 3 of 4 began, and there alone: if another model's "
        "backward pass begins there, capture one at a time; if not, --accumulate 1 (accumulate of "
        "torchcoll.advise)"
    )
    assert message in advised(sent(*step)).notes
    assert message not in advised(sent(*step), accumulate=1).notes
    for second in (
        ((2, 10, 1), *step[1:]),  # a slow model: nothing in flight before the second either
        (step[0], step[1], step[2], (3, 25, 6)),  # nor before the fourth
        step[1:],  # one bucket, then two
    ):
        assert not any(n.startswith("nothing was in") for n in advised(sent(*second)).notes)


def test_a_bucket_that_takes_most_of_the_pass_is_no_other_pass():
    # 40 of 50 ms for the last of three buckets, as in a CNN; and two buckets, 1 and 25 MiB.
    assert advised(sent((2, 10, 3), (25, 20, 10), (17, 60, 9))).size_bytes == 44 * MIB
    assert advised(sent((1, 10, 3), (25, 90, 10))).size_bytes == 26 * MIB


def test_a_plan_is_one_pass():
    planned = dataclasses.replace(sent((1, 0, None), (1, 0, None)), source="plan")
    assert advised(planned, backward_ms=8).size_bytes == 2 * MIB


@pytest.mark.parametrize(
    ("source", "action"),
    [
        ("capture", "Call traffic.step() after each step."),
        ("kineto", "Call step() of the profiler after each step."),
        ("flight recorder", "Call traffic.step() after each step of a torchcoll.capture."),
    ],
)
def test_traffic_without_marks_is_refused(source, action, in_tmp_path, capsys):
    recorded = sent(*PAIR)
    for rank, calls in recorded.calls.items():
        recorded.calls[rank] = [dataclasses.replace(call, step=None) for call in calls]
    recorded.source = source
    recorded.save("sent.jsonl")
    torchcoll.save(curve(), "curve.jsonl")
    assert main(["gradients", "sent.jsonl", "--curve", "curve.jsonl"]) == 2
    assert capsys.readouterr().err == (
        error_line(
            "traffic",
            "calls that may be of many steps: no step is marked",
            f"marked steps. {action}\n",
        )
    )
