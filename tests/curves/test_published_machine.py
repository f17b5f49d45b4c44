"""Machines that others measured: what is predicted for them, and what a sum of calls is."""

import io
import json
import math

import made_models
import numpy
import pytest
from error_form import error_text

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.plausibility import device_named
from torchcoll.parts.curves import predictor
from torchcoll.parts.curves.named_machines import find_machine
from torchcoll.parts.curves.published_law import (
    QUANTILE,
    PublishedLaw,
    law_point,
    links_of_kind,
    published_points,
)
from torchcoll.parts.curves.published_machine import published_machines
from torchcoll.questions.check.limit_share import MachineLinks
from torchcoll.questions.check.published import publications

GIB = 1 << 30


def made_law(slowdown=1.0, launch_ns=20e3):
    """A law fitted to exact times of six machines: power 1, so that latency and bytes add up."""
    points, times = [], []
    for number in range(6):
        links = MachineLinks("H100", 8, 400.0)
        for hosts in (1, 2, 4, 8):
            for size in (1 << 20, 1 << 24, 1 << 28, 1 << 32):
                point = law_point(links, f"m{number}", "all_reduce", size, 8 * hosts, hosts)
                points.append(point)
                times.append(launch_ns + 90e3 * math.log2(hosts) + slowdown * point.transfer_ns)
    return PublishedLaw(points, numpy.array(times))


def test_the_ceiling_is_what_the_links_let_through():
    links = MachineLinks("H100", 8, 400.0)
    # NVLS on one host: 0.85 x 370.8 x 2 x 7 / 9; a ring of all_gather: 18 links of 20.6 GB/s.
    assert links.ceiling_gbps("all_reduce", 8, 1) == pytest.approx(490.3, abs=0.1)
    assert links.ceiling_gbps("all_gather", 8, 1) == pytest.approx(370.8)
    # all_to_all between hosts: each of 8 ranks has 50 GB/s for 72 of the 79 blocks that it sends.
    assert links.ceiling_gbps("all_to_all", 80, 10) == pytest.approx(50 * 79 / 72)
    # One GPU of each host: the network alone, whatever the links within a host are.
    assert MachineLinks("GB10", 1, 25.0).ceiling_gbps("all_reduce", 2, 2) == 25.0
    assert MachineLinks("Max 1550", 12, 200.0).ceiling_gbps("all_reduce", 24, 2) is None
    # A ring of A100 passes the interfaces once; xGMI has a link for each pair.
    assert MachineLinks("A100", 8, 200.0).ceiling_gbps("all_reduce", 16, 2) == 200.0
    assert MachineLinks("MI300X", 8, 400.0).ceiling_gbps("all_reduce", 2, 1) == 48.0


def test_exact_times_are_found_again():
    law = made_law(slowdown=1.2)
    links = MachineLinks("H100", 8, 400.0)
    point = law_point(links, "", "all_reduce", GIB, 32, 4)
    prediction = law.predict([point])
    expected = 20e3 + 90e3 * 2 + 1.2 * point.transfer_ns
    assert math.exp(prediction.logs[0]) == pytest.approx(expected, rel=0.02)


def test_a_machine_with_runs_starts_from_its_own_curve():
    points, times = published_points(publications())
    slower = [
        t * (3.0 if p.machine == "sophia" else 1.0) for p, t in zip(points, times, strict=True)
    ]
    law, other = PublishedLaw(points, times), PublishedLaw(points, numpy.array(slower))
    of_sophia = next(p for p in points if p.machine == "sophia" and p.size_bytes == GIB)
    new = law_point(MachineLinks("A100", 8, 200.0), "", "all_reduce", GIB, 16, 2)
    own, unknown = (
        math.exp(other.predict([p]).logs[0] - law.predict([p]).logs[0]) for p in (of_sophia, new)
    )
    assert own > 2
    assert 1 <= unknown < 1.15  # one type of 32
    known, doubtful = (law.predict([p]).deviations[0] for p in (of_sophia, new))
    assert known < doubtful


def test_interfaces_that_nobody_states_widen_the_interval():
    runs = publications()
    h100 = links_of_kind("H100", 8, runs)
    # coreweave-h100 and aws-p5 state 3200 Gbit/s, gcp-a3mega 1800.
    assert h100.nics_gbps == 400.0
    squares = 0.9**2 + math.log(1800 / 3200) ** 2
    assert h100.doubt == pytest.approx(math.sqrt(squares / 4))
    unknown = links_of_kind("H200", 4, runs)
    assert (unknown.nics_gbps, unknown.doubt) == (200.0, 0.9)
    law = PublishedLaw(*published_points(runs))
    known, doubtful = (
        law.predict([law_point(links, "", "all_reduce", GIB, 64, 8)]).deviations[0]
        for links in (MachineLinks("H100", 8, 400.0), h100)
    )
    assert doubtful > known


def test_intervals_hold_types_that_are_left_out():
    """Of ten types left out, one after the other, most figures lie within their interval."""
    runs = [run for run in publications() if run.figures]
    inside = []
    for left in ("aws-p5", "azure-h100", "coreweave-h100", "gcp-a4", "nebius-h100", "oci-mi300x",
                 "perlmutter", "sophia", "superbench-a100", "xxrjun-h100"):  # fmt: skip
        kept = [run for run in runs if run.type != left]
        law = PublishedLaw(*published_points(kept))
        points, times = published_points([run for run in runs if run.type == left], kept)
        prediction = law.predict(points)
        errors = numpy.abs(numpy.log(times) - prediction.logs)
        inside.append((errors <= QUANTILE * prediction.deviations).mean())
    assert numpy.mean(inside) > 0.8


def test_a_sum_has_a_common_and_an_independent_error():
    wide = predictor.Prediction(100.0, 100 / math.e, 100 * math.e, "", 0.0)

    def half(prediction, size=1 << 20):
        """The logarithm of the upper end over the value, of a call of 1 GiB and one of ``size``."""
        calls = [predictor.PlannedCalls("all_gather", n, 1, prediction) for n in (GIB, size)]
        value, low, high = predictor.sum_of(calls)
        assert value == 200 and low * high == pytest.approx(200 * 200)
        return math.log(high / 200)

    # Two sizes, independent: each is half of the sum.
    assert half(wide) == pytest.approx(math.sqrt(0.5))
    # Of one octave, or with a common error, both are wrong together.
    assert half(wide, GIB + 4) == pytest.approx(1)
    assert half(wide._replace(common=1.0)) == pytest.approx(1)
    assert half(wide._replace(common=0.5)) == pytest.approx(math.sqrt(0.5 + 0.5 / 2))
    # Calls of one size have one error, however many there are.
    nine = predictor.sum_of([predictor.PlannedCalls("all_gather", GIB, 9, wide)])
    assert nine == pytest.approx((900, 900 / math.e, 900 * math.e))
    assert predictor.sum_of([]) == (0.0, 0.0, 0.0)


def test_no_time_is_shorter_than_the_links_allow():
    a100 = device_named("NVIDIA A100-SXM4-80GB")
    # 300 GB/s of NVLink in one direction, 2 x 7 / 8 of S for an all_reduce.
    least = predictor.least_ns("all_reduce", GIB, 8, 1, a100)
    assert least == pytest.approx(GIB * 1.75 / 300)
    # All of S leaves each of two hosts once: 25 GB/s take longer than NVLink.
    assert predictor.least_ns("all_reduce", GIB, 16, 2, a100, 25.0) == pytest.approx(GIB / 25)
    assert predictor.least_ns("all_reduce", GIB, 16, 2, None) == 0.0
    assert predictor.bounded(predictor.Prediction(3.0, 1.0, 9.0, ""), 2.0)[:3] == (3.0, 2.0, 9.0)
    assert predictor.bounded(predictor.Prediction(3.0, 1.0, 9.0, ""), 4.0)[:3] == (4.0, 4.0, 9.0)
    assert predictor.bounded(predictor.Prediction(3.0, 1.0, 9.0, ""), 0.5)[:3] == (3.0, 1.0, 9.0)


@pytest.mark.parametrize("name", published_machines())
def test_every_machine_predicts_below_what_its_links_allow(name):
    machine = find_machine(name)
    device = device_named(machine.links.gpu)
    ranks = 4 * machine.links.linked
    for row in predictor.predict_all(machine, [ranks], [1 << 20, GIB]):
        if row.prediction is None:
            continue
        least = predictor.least_ns(row.kind["collective"], row.size_bytes, ranks, 4, device)
        assert least <= row.prediction.low_ns <= row.prediction.time_ns <= row.prediction.high_ns


def test_names():
    assert find_machine("8xh100") is find_machine("8xH100") is find_machine("8 x H100")
    assert {"aws-p5", "polaris", "8xA100", "72xGB200"} <= set(published_machines())
    assert find_machine("aws-p5-eks") is find_machine("aws-p5")  # an entry, and its machine
    assert "aurora" not in published_machines()  # what its links carry is not known here


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            "8xH10 --ranks 64 --sizes 1M",
            ("machine", "8xH10", "a file that", "Did you mean 8xH100, "),
        ),
        ("coreweave --ranks 64 --sizes 1M", ("mean coreweave-h100 or coreweave-gb200?",)),
        ("8xH100 --ranks 64 --hosts 3 --sizes 1M", ("ranks", "64", "a multiple of 3")),
        ("8xH100 --ranks 64 --hosts 0 --sizes 1M", ("ranks", "64", "--hosts above 0")),
        ("8xH100 --ranks 64 --hosts 4 --sizes 1M", ("hosts", "4 for 64 ranks", "8 to 64")),
        ("8xH100 --ranks 64 --sizes 1M --collective broadcast", ("collective", "broadcast", "one")),
        ("nix.json --ranks 64 --sizes 1M", ("model", "nix.json")),
    ],
)
def test_what_cannot_be_said_is_one_line(words, error, capsys):
    assert main(["model", "predict", *words.split()]) in (2, 3)
    out = capsys.readouterr()
    assert out.out == "" and out.err.count("\n") == 1
    assert all(part in out.err for part in error)


def test_hosts_of_the_ranks():
    machine = find_machine("aws-p5")
    packed, spread = (machine.predict("all_gather", GIB, 16, hosts) for hosts in (2, 16))
    # One rank a host has the interfaces of the host for itself: no NVLink limits it.
    assert spread.time_ns != packed.time_ns
    with pytest.raises(UsageError, match=error_text("hosts", "1 for 16 ranks", "2 to 16")):
        machine.predict("all_gather", GIB, 16, 1)


def test_the_list(capsys):
    assert main(["model", "predict", "list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    rows = {row["machine"]: row for row in listed["rows"]}
    assert rows["aws-p5"]["network_gbit"] == 3200 and not rows["aws-p5"]["network_assumed"]
    assert rows["8xH100"]["network_assumed"] and rows["8xH100"]["type"] is None
    assert main(["plan", "--machine", "list"]) == 0
    assert "polaris" in capsys.readouterr().out


def test_from_python():
    fitted = torchcoll.fit_model(made_models.runs())
    # 5 us + 14 steps of 2 us / 8, and 1.75 x 16 MiB at 10 GB/s.
    found = torchcoll.predict(fitted, "all_reduce", "16M", 8)
    assert found.time_ns == pytest.approx(made_models.ring_ns("all_reduce", 1 << 24, 8), rel=0.01)
    assert isinstance(found, torchcoll.Prediction)
    assert found == torchcoll.predict(fitted.model, "allreduce", 1 << 24, 8)
    published = torchcoll.predict("aws-p5", "all_gather", GIB, 16, hosts=2)
    assert published.low_ns < published.time_ns < published.high_ns
    shown = io.StringIO()
    torchcoll.show(fitted, file=shown)
    assert "the model predicts all_reduce on 2, 4, 8 ranks, " in shown.getvalue()


@pytest.mark.parametrize(
    ("arguments", "what", "value"),
    [
        ((3, "all_reduce", 8, 8), "machine", "int"),
        ((None, "all_reduce", 8, 8), "machine", "NoneType"),
        (("8xH100", 3, 8, 8), "collective", "int"),
        (("8xH100", "all_reduce", 2.5, 8), "size", "float"),
        (("8xH100", "all_reduce", "1KB", 8), "size", "1KB"),
        (("8xH100", "all_reduce", 8, "8"), "ranks", "str"),
        (("8xH100", "all_reduce", 8, 8, 1.0), "hosts", "float"),
        (("8xH100", "all_reduce", 8, 10, 4), "ranks", "10"),
        (("8xH100", "all_reduce", 8, 1), "prediction", "8 B on 1 ranks"),
    ],
)
def test_wrong_types_are_torchcolls_errors(arguments, what, value):
    with pytest.raises(torchcoll.TorchcollError, match=f"^{error_text(what, value)}"):
        torchcoll.predict(*arguments)
