"""nccl-tests with -I 1: what its own analyze_perf_json.py says of a file, and what torchcoll does.

The figures of analyze_perf_json.py are those that the script of nccl-tests 2.19.6 printed of the
file ``made_json(PROCESSES)``; each can be computed by hand from PROCESSES.
"""

import json
from statistics import mean

import pytest
from made_nccl_tests import made_json

import torchcoll
from torchcoll.cli import main
from torchcoll.questions.startup.cold import cold

# us by process and iteration: process 2 is slow in most iterations, process 1 in iteration 2.
PROCESSES = [
    [400.0, 100.0, 100.0, 100.0, 100.0],
    [400.0, 101.0, 351.0, 101.0, 101.0],
    [900.0, 120.0, 120.0, 120.0, 120.0],
    [400.0, 103.0, 103.0, 103.0, 103.0],
]


@pytest.fixture
def load(tmp_path):
    def load(**options):
        path = tmp_path / "all_reduce.json"
        path.write_text(json.dumps(made_json(PROCESSES, **options)))
        return torchcoll.load(path)

    return load


def notes(run):
    return [event["message"] for event in run.events if event["kind"] == "import"]


def test_stragglers(load):
    """analyze: fastest=process 0 (160.0us) slowest=process 2 (276.0us) spread=116.0us (72.5%);
    worst i_max: process 2 (900.0us).
    """
    first, _ = load().results
    averages = [mean(times) / 1000 for times in first.time_ns["device"]]
    assert averages == pytest.approx([160.0, 210.8, 276.0, 162.4])
    assert max(map(max, first.time_ns["device"])) == 900_000
    assert not first.cold_ns


def test_iteration_0_without_warm_up(load):
    """analyze: iter0 900.0, iter1+ avg 177.8: the mean of the maxima over processes (120, 351, 120,
    120). A steady call of the slowest rank is 654 us / 4: maxima would count the stall of another
    rank as well.
    """
    run = load(warmup=0)
    first = run.results[0]
    assert first.cold_ns == [[400_000], [400_000], [900_000], [400_000]]
    assert [len(times) for times in first.time_ns["device"]] == [4, 4, 4, 4]
    (row,) = cold([run]).rows
    assert (row.first_ns, row.steady_ns) == (900_000, 163_500)  # process 1: 101 + 351 + 2 x 101
    assert (row.first.rank, row.first.host) == (2, "node1")
    assert not row.fresh  # nccl-tests had called it once before, untimed
    assert any("-w 0" in text and "that call connects" in text for text in notes(run))


def test_with_warm_up_there_is_no_first_call(load):
    with pytest.raises(torchcoll.TorchcollError, match="first calls"):
        cold([load(warmup=1)])


@pytest.mark.parametrize(
    ("args", "changes", "remarks"),
    [
        ((), {}, []),
        (("-M", "1"), {}, []),
        (("-V", "32"), {}, []),  # without -D it is not used
        (("-D", "0"), {}, []),
        (("-R", "2"), {"buffers": "symmetric"}, []),
        (
            ("-D", "2", "-R", "2"),
            {"implementation": "nccl-tests-device-2-16-ctas", "buffers": "symmetric"},
            ["-D 2: "],
        ),
        (
            ("--device_implementation=4", "--device_cta_count=32", "-R2"),
            {"implementation": "nccl-tests-device-4-32-ctas", "buffers": "symmetric"},
            ["-D 4: "],
        ),
        # Elements of float32.
        (("-u", "1"), {"misalign_bytes": 4}, ["-u 1: "]),
        (
            ("--unalign", "3", "-R", "1"),
            {"misalign_bytes": 12, "buffers": "registered"},
            ["-u 3: "],
        ),
        (("-z", "0"), {}, []),
        (("-z", "1"), {"mode": "blocking, barrier"}, ["-z 1: the time includes a barrier"]),
        (("-z2",), {"mode": "blocking"}, []),
        (("--blocking", "3"), {"mode": "synchronized"}, []),
    ],
)
def test_options_that_change_what_is_measured(load, args, changes, remarks):
    expected = {
        "implementation": "own",
        "buffers": "default",
        "misalign_bytes": 0,
        "mode": "back-to-back",
        **changes,
    }
    (first, second) = load(args=args).results
    for result in (first, second):
        assert {name: getattr(result.case, name) for name in expected} == expected
        assert [
            text[: len(start)] for text, start in zip(result.warnings, remarks, strict=True)
        ] == (remarks)


def test_the_policy_of_ctas_is_a_variable(load):
    assert load(args=("-x", "2")).environment["variables"] == {"NCCL_CTA_POLICY": "ZERO (-x)"}
    assert "variables" not in load(args=("-x", "7")).environment


@pytest.mark.parametrize(
    ("args", "over_ranks"), [((), "mean"), (("-a", "0"), "rank0"), (("-a", "3"), "max")]
)
def test_how_processes_are_combined(load, args, over_ranks):
    assert load(args=args).results[0].reported.over_ranks == over_ranks


def test_compare_lists_what_options_change(tmp_path, capsys):
    """-D, and -x against a file whose environment has no policy: -x has no variable there."""
    paths = []
    for name, args in (("plain", ()), ("changed", ("-D", "1", "-R", "2", "-x", "2"))):
        data = made_json(PROCESSES, args=args) | {"env": ["PATH=\\/usr\\/bin"]}
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(data))
    main(["compare", *map(str, paths)])
    shown = capsys.readouterr().out.splitlines()
    assert "  implementation: own -> nccl-tests-device-1-16-ctas" in shown
    assert "  NCCL_CTA_POLICY: unset -> ZERO (-x)" in shown


TEXT = """# nccl-tests version 2.19.6 nccl-headers=22902 nccl-library=22902
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: {unalign}
#
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     1048576        262144     float     sum      -1    24.31   43.13   43.13       0    24.07   43.57   43.57       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 43.35
"""  # noqa: E501


@pytest.mark.parametrize(("unalign", "misalign_bytes"), [(0, 0), (2, 8)])
def test_the_heading_of_a_text_says_how_buffers_are_aligned(tmp_path, unalign, misalign_bytes):
    path = tmp_path / "log.txt"
    path.write_text(TEXT.format(unalign=unalign))
    run = torchcoll.load(path, ranks=2)
    assert {result.case.misalign_bytes for result in run.results} == {misalign_bytes}


@pytest.mark.parametrize(
    ("heading", "mode"),
    [
        # src/util.cu of 2.18.0 and of 2.19.6.
        ("wait for completion and barrier after each collective ", "blocking, barrier"),
        ("wait for completion after each collective (no barrier) ", "blocking"),
        ("wait and barrier after each inner iteration (-m) ", "blocking, barrier"),
        ("wait after each inner iteration (-m), no barrier ", "blocking"),
        (
            "wait and barrier after each outer iteration (-n); time excludes barrier ",
            "synchronized",
        ),
    ],
)
def test_the_heading_of_a_text_says_what_calls_wait_for(tmp_path, heading, mode):
    path = tmp_path / "log.txt"
    text = TEXT.format(unalign=0)
    path.write_text(text.replace("\n#\n", f"\n# Blocking Enabled: {heading}\n#\n", 1))
    run = torchcoll.load(path, ranks=2)
    assert {result.case.mode for result in run.results} == {mode}


def test_the_command_above_a_text_has_the_options(tmp_path):
    path = tmp_path / "log.txt"
    command = "$ mpirun -np 2 ./all_reduce_perf -b 1M -e 1M -D 1 -R 2 -x 1\n"
    path.write_text(command + TEXT.format(unalign=0))
    run = torchcoll.load(path, ranks=2)
    assert {result.case.implementation for result in run.results} == {"nccl-tests-device-1-16-ctas"}
    assert run.environment["variables"] == {"NCCL_CTA_POLICY": "EFFICIENCY (-x)"}
