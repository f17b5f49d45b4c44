"""The verdict: its words and its sentence, for shares and sizes chosen by hand."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from error_form import error_tail, error_text, expecting
from judged import GIB, MIB, case_of, launch
from made_runs import COMPLETE

from torchcoll.cli import main
from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.result import CaseResult, Choice, Run, Verification
from torchcoll.questions.check.judging import judge
from torchcoll.questions.show.show import show
from torchcoll.reading.inputs import load, load_all

SXM = {"nvlinks": 18, "to_switch": True}
LINKS = "(18 links x 20.6 GB/s, NCCL topo.h)"
RING = f"of the ring limit of nvswitch-h200 {LINKS}"
# Of 475 GB/s: 365 are 76.8 %, 368.9 are 77.7 %, 350 are 73.7 %, 360 are 75.8 %.
NVLS = "{} % of NVLS (475 GB/s), which apparently was not used"


def line(*results, **how):
    return judge(launch(*results, **(SXM | how))).line


def test_the_sentence():
    # 370.8 GB/s x 99.5 % are 368.946.
    assert (
        line(case_of(368.946))
        == f"WARN 368.9 GB/s busbw at 1G, {NVLS.format(78)}; 99.5 % {RING}; 1 of 1 case correct"
    )


@pytest.mark.parametrize(
    ("share", "word"),
    [
        (1.02, "PASS"),
        (0.901, "PASS"),
        (0.899, "WARN"),
        (0.751, "WARN"),
        (0.749, "FAIL"),
        (0.1, "FAIL"),
    ],
)
def test_thresholds(share, word):
    result = case_of(370.8 * share, "all_gather", op=None)
    verdict = judge(launch(result, **SXM))
    assert verdict.word == word
    assert verdict.line.startswith(
        f"{word} {370.8 * share:.4g} GB/s busbw at 1G, {100 * share:.1f} % "
    )


def test_the_largest_size_counts_and_of_it_the_best():
    results = [
        case_of(370, size_bytes=512 * MIB),
        case_of(340, size_bytes=2 * GIB),
        case_of(350, size_bytes=2 * GIB, in_place=False),
        case_of(9, size_bytes=64 * MIB),
    ]
    assert line(*results).startswith(f"WARN 350 GB/s busbw at 2G, {NVLS.format(74)}; 94.4 % {RING}")


def test_several_collectives():
    gather = case_of(333, "all_gather", op=None)  # 89.8 %
    scatter = case_of(360, "reduce_scatter")  # 97.1 %
    reduce = case_of(365)  # 98.4 %
    nvls = "NVLS apparently was not used in all_reduce: it would allow about 475 GB/s"
    # Where all is well, all_reduce speaks.
    assert line(scatter, reduce) == (
        f"WARN 365 GB/s busbw at 1G of all_reduce, {NVLS.format(77)}; 98.4 % {RING}, "
        "2 collectives at 97.1 % and more; 2 of 2 cases correct"
    )
    assert line(gather, scatter, reduce) == (
        f"WARN 333 GB/s busbw at 1G of all_gather, 89.8 % {RING}, the lowest of 3 collectives; "
        f"{nvls}; 3 of 3 cases correct"
    )
    # What has no limit of this size, or at all, is not judged.
    exotic = case_of(10, "all_to_all", op=None)
    assert line(scatter, exotic).startswith(
        f"PASS 360 GB/s busbw at 1G, 97.1 % {RING}; not judged: all_to_all, without a limit at "
        "these sizes; 2 of 2 cases"
    )


def test_nvls():
    used = case_of(470)
    text = "of the NVLS limit of nvswitch-h200 (measured on eight H200, NVIDIA/nccl-tests#272)"
    assert line(used) == f"PASS 470 GB/s busbw at 1G, 98.9 % {text}; 1 of 1 case correct"
    # The log knows: a slow NVLS is no good ring, and a ring is no NVLS.
    slow = case_of(350, choices=[Choice("NVLS", "SIMPLE")])
    assert line(slow) == f"FAIL 350 GB/s busbw at 1G, 73.7 % {text}; 1 of 1 case correct"
    ring = case_of(350, choices=[Choice("RING", "LL128"), Choice("RING", "SIMPLE")])
    assert line(ring) == (
        "WARN 350 GB/s busbw at 1G, 74 % of NVLS (475 GB/s), which was not used; "
        f"94.4 % {RING}; 1 of 1 case correct"
    )
    for changed in ({"ranks": 4}, {"op": "prod"}, {"size_bytes": 512 * MIB}):
        assert "NVLS" not in line(case_of(350, **changed))


def test_more_than_a_fabric_carries_is_no_pass():
    # 22 GB/s of pcie-gen4: a quarter more is 27.5.
    def of(busbw):
        return judge(launch(case_of(busbw), labels={"fabric": "pcie-gen4"}))

    assert of(27).word == "PASS"
    found = of(28)
    assert found.word == "WARN"
    assert found.line.startswith(
        "WARN 28 GB/s busbw at 1G is more than pcie-gen4 carries, 127.3 % of the ring limit of pcie"
    )
    assert "another fabric or GPU, or fewer ranks" in found.line
    assert "number of ranks" in found.answer.next_step


def test_the_slow_one_beside_the_best_is_named():
    slow = case_of(100, "all_gather", op=None, dtype="float16", in_place=False)
    text = "; WARN 100 GB/s busbw in all_gather 1G dtype float16 in_place False, 360 in the best of"
    assert text in line(case_of(360, "all_gather", op=None), slow)
    # 76 % of the ring: no worse than a WARN of its own would be.
    assert "the best of" not in line(
        case_of(360, "all_gather", op=None), case_of(282, "all_gather", op=None, in_place=False)
    )
    # A type that NVLS does not take is measured by the ring, 370.8.
    assert "the best of" not in line(case_of(470), case_of(350, dtype="int8"))


def test_enqueueing_alone_is_no_bandwidth():
    issued = case_of(45, size_bytes=2 * GIB)
    issued.time_ns = {"issue": issued.time_ns["host"]}
    rest = launch(case_of(40, size_bytes=GIB), issued, labels={"fabric": "pcie-gen5"}, device=None)
    assert judge(rest).line.startswith("PASS 40 GB/s busbw at 1G, 97.6 %")


def test_a_pass_says_what_was_not_checked():
    unchecked = case_of(360, "all_gather", op=None, verification=None)
    assert line(unchecked).endswith("; no values checked")
    small = case_of(9, "all_gather", op=None, size_bytes=MIB)
    assert line(unchecked, small).endswith("; 1 case correct, 1 not checked")


def test_cases_correct_without_a_reference_beside_what_was_not_checked_or_not_run():
    """barrier puts out nothing to check; what a backend cannot do is counted, and no failure."""
    case = Case("barrier", 0, None, None, None, False, "synchronized", "gloo", "cpu")
    barrier = CaseResult(case, "ok", 8, time_ns={"host": [[9000] * 3] * 8})
    lacking = case_of(3, "sendrecv", op=None, status="unsupported", time_ns={}, verification=None)
    sums = case_of(3, backend="gloo", size_bytes=MIB)
    assert line(sums, barrier, lacking).endswith("; 1 of 1 case correct, 1 unsupported")
    assert line(sums, barrier).endswith("; 1 of 1 case correct")
    unchecked = case_of(3, "all_gather", op=None, backend="gloo", verification=None)
    assert line(sums, unchecked).endswith("; 1 case correct, 1 not checked")


def test_a_warning_of_the_machine_judges_nothing():
    busy = {"kind": "machine", "message": "node1: other processes used 1.2 of 2 cores"}
    of_gloo = launch(case_of(3, backend="gloo"), events=[busy])
    assert (judge(of_gloo).word, judge(of_gloo).judged) == ("WARN", False)
    assert judge(launch(case_of(365), **SXM)).judged


def test_what_could_not_be_read_is_no_pass():
    lost = "a.jsonl:7: unusable record"
    found = judge(launch(case_of(360, "all_gather", op=None), problems=[lost], **SXM))
    assert found.word == "WARN"
    assert found.line.startswith("WARN the file is damaged at line 7: 1 case could be read; PASS ")
    assert found.answer.next_step.startswith("copy the file again")
    twice = "a.jsonl.2 is a part of a.jsonl: it is shown once"
    assert "reading" not in judge(launch(case_of(365), problems=[twice], **SXM)).line


def test_nothing_that_meets_is_not_measured_by_a_run_either():
    alone = launch(case_of(1, "broadcast", ranks=1, op=None, root=0))
    assert judge(alone, baseline=alone).line.startswith(
        "NO REFERENCE applies: one rank, no communication"
    )
    fake = launch(case_of(1, backend="fake", device="cpu"))
    assert judge(fake, baseline=fake).word == "NO REFERENCE"
    shared = launch(case_of(1, rehearsal=True))
    assert judge(shared, baseline=shared).word == "NO REFERENCE"
    # A run in which all failed is a FAIL, and no wrong baseline.
    failed = launch(case_of(1, status="failed"))
    assert (
        judge(failed, baseline=launch(case_of(1))).line == "FAIL 1 of 1 case failed: all_reduce 1G"
    )


def test_a_time_of_nothing_is_a_fail():
    at_once = case_of(1)
    at_once.time_ns = {"host": [[0] * 3] * 8}
    assert (
        line(at_once) == "FAIL 1 of 1 case implausible: shorter than launching a kernel (1500 ns)"
    )


def test_an_event_without_a_text():
    found = judge(launch(case_of(365), events=[{"kind": "suspect", "message": None}], **SXM))
    assert found.line.startswith("FAIL suspect event without a text; ")


def test_suspects_of_pairs_that_nobody_told():
    """Rank 3 of 5 at half the speed, in a file that was cut before the events."""

    def pair(a, b):
        ns = 200_000 if 3 in (a, b) else 100_000
        case = Case("sendrecv", MIB, "float32", None, None, False, "synchronized", "gloo", "cpu")
        case = Case.from_json(case.to_json() | {"group": f"pair/{a}-{b}"})
        times = {"host": [[ns] * 3] * 2}
        return CaseResult(case, "ok", 2, size_bytes=MIB, time_ns=times, members=[a, b])

    pairs = [pair(a, b) for b in range(5) for a in range(b)]
    members = [{"rank": rank, "host": f"n{rank}"} for rank in range(5)]
    run = Run({"ranks": 5}, members, results=pairs, end=COMPLETE)
    assert judge(run).line.startswith("FAIL rank 3 (n3) is slow: it has 50 % of the speed")
    run.header["threshold"] = 0.6  # what the run was asked for: 50 % slower is no suspect
    assert judge(run).word != "FAIL"


def test_more_than_the_ring_below_the_size_of_nvls_is_no_less():
    assert line(case_of(420, size_bytes=512 * MIB)).startswith(
        f"PASS 420 GB/s busbw at 512M, 113.3 % {RING}"
    )


def test_sizes_that_no_limit_holds_for():
    held = "all_reduce from 64M and all_gather from 1G"
    small = [case_of(99, size_bytes=MIB), case_of(99, "all_gather", size_bytes=MIB, op=None)]
    assert line(*small) == (
        f"NO REFERENCE of nvswitch-h200 for these cases: it has limits for {held}; "
        "2 of 2 cases correct"
    )
    assert line(case_of(9, "sendrecv", op=None, ranks=2)).startswith(
        "NO REFERENCE of nvswitch-h200 for these cases: it has limits for sendrecv from 1G;"
    )
    hyper = launch(case_of(9, "sendrecv", op=None), labels={"fabric": "pcie-gen4"})
    assert judge(hyper).line.startswith(
        "NO REFERENCE of pcie-gen4 for these cases: it has limits for all_reduce from 1G;"
    )


def test_gloo_beside_nccl_is_no_matter_of_the_links():
    host = case_of(2, device="cpu", backend="gloo")
    staged = case_of(3, device="cuda", backend="gloo")
    assert line(host, staged, case_of(360)).startswith("WARN 360 GB/s busbw at 1G, 76 % of")
    assert line(host, staged).startswith(
        "NO REFERENCE of nvswitch-h200 for these cases: they did not go through it"
    )


def test_several_hosts():
    how = {"hosts": 2, "labels": {"fabric": "ib-ndr:8"}, "nvlinks": None, "to_switch": None}
    whole = case_of(368.76, ranks=16)  # NVIDIA/nccl-tests#309
    assert line(whole, device="NVIDIA H100 80GB HBM3", **how) == (
        "PASS 368.8 GB/s busbw at 1G, 99.4 % of the ring limit of ib-ndr:8 (the NVLinks of a H100, "
        "less than the interfaces of a node); 1 of 1 case correct"
    )
    assert line(whole, device="something", **how) == (
        "PASS 368.8 GB/s busbw at 1G, 92.2 % of the ring limit of ib-ndr:8 (400 Gbit/s a rail); "
        "1 of 1 case correct"
    )
    # All interfaces of two hosts of eight GPUs, 400 GB/s, and a tree between them: 2 x 15/16 of it.
    tree = case_of(675, ranks=16)
    assert line(tree, device="x", **how).startswith(
        "PASS 675 GB/s busbw at 1G, 90 % of what a tree carries between 2 hosts (750 GB/s); above "
        "the ring limit of ib-ndr:8 (400 GB/s); 1 of 1"
    )
    beyond = line(case_of(800, ranks=16), device="x", **how)
    assert "more than ib-ndr:8 carries" in beyond and "switches that reduce" in beyond
    # Sub-groups share the rails: what each gets is no share of all.
    parts = case_of(45, ranks=2, group="mod:8/0", members=[0, 8])
    assert line(whole, parts, device="x", **how).startswith("PASS 368.8 GB/s")
    assert line(parts, device="x", **how).startswith(
        "NO REFERENCE of ib-ndr:8 for these cases: they did not go through it"
    )


def test_without_a_fabric():
    none = {"nvlinks": None, "to_switch": None}
    assert line(case_of(300), **none) == (
        "NO REFERENCE for 8 NVIDIA H200; 1 published run on 8 H200 reaches 467.6 GB/s busbw in "
        "all_reduce 1G; this run's 300 is low: 64 % of it; 1 of 1 case correct"
    )
    assert line(case_of(300), device="AMD Instinct MI308X", **none).startswith(
        "NO REFERENCE for 8 AMD Instinct MI308X: neither a limit nor a published run is known"
    )
    host = case_of(2, device="cpu", backend="gloo")
    assert line(host, device="AMD EPYC", **none) == (
        "NO REFERENCE for gloo on cpu within one host; 1 of 1 case correct"
    )
    of_host = launch(host, device="AMD EPYC", **none)
    assert judge(of_host).answer.next_step == "torchcoll check FILE --baseline EARLIER-RUN"
    over_hosts = line(host, device="AMD EPYC", hosts=2, **none)
    assert over_hosts == "NO REFERENCE for gloo on cpu; 1 of 1 case correct"


def test_more_ranks_than_a_host_has_are_no_pass_of_one_host():
    """An nccl-tests log of two hosts of eight B200, which does not name them."""
    two = Run(
        header={"source": {"tool": "nccl-tests"}, "spec": {"labels": {}}},
        results=[replace(case_of(702.9, size_bytes=2 * GIB, verification=None), ranks=16)],
    )
    verdict = judge(two, fabric="nvswitch-b200")
    assert verdict.word == "CANNOT TELL"
    assert verdict.line.startswith("CANNOT TELL whether 16 ranks were on one host of nvswitch-b200")
    assert "; if they were: " in verdict.line and "PASS" not in verdict.line
    two.header["spec"]["labels"]["hosts"] = "1"  # a rack whose GPUs share one switch
    assert judge(two, fabric="nvswitch-b200").word == "PASS"


def test_labels_of_an_import_name_the_fabric():
    labels = {"gpu": "H200", "hosts": "1"}
    source = {"source": {"tool": "a published table"}, "spec": {"labels": labels}}
    verdict = judge(Run(header=source, results=[replace(case_of(369), ranks=8)]))
    assert (verdict.word, verdict.fabric) == ("WARN", "nvswitch-h200")
    assert "nvswitch-h200 is taken from the labels: 8 H200 on one host" in verdict.line


UNKNOWN_RANKS = "NO REFERENCE where the number of ranks is unknown"


def imported(ranks=8, labels=None, **changed):
    """As read from another tool's output: nothing is known of its ranks but what that tells."""
    result = replace(case_of(300, verification=None, **changed), ranks=ranks)
    source = {"source": {"tool": "a published table"}}
    return judge(Run(header=source | {"spec": {"labels": labels or {}}}, results=[result])).line


def test_what_an_import_lacks_to_be_judged():
    assert imported(ranks=0) == UNKNOWN_RANKS
    assert imported() == "NO REFERENCE for nccl on cuda: the file names no GPUs and no hosts"
    stated = imported(labels={"link_gbps": "450"})
    assert stated.endswith("; label link_gbps not used: which ranks share a host is unknown")
    assert imported(labels={"fabric": "nvswitch-h200"}).startswith("WARN 300 GB/s")


def pasted(name, ranks=8, hosts=1, tool="nccl-tests"):
    """A table of another tool, with the devices and hosts that its header names."""
    members = [
        {"rank": rank, "host": f"n{rank * hosts // ranks}", "device_name": name}
        for rank in range(ranks)
    ]
    result = replace(case_of(349, verification=None), ranks=ranks)
    return judge(Run(header={"source": {"tool": tool}}, members=members, results=[result]))


def test_the_devices_and_hosts_of_a_log_choose_the_fabric_where_they_leave_one():
    # 349 of 370.8.
    found = pasted("NVIDIA H100 80GB HBM3")
    assert (found.line[:5], found.fabric) == ("WARN ", "nvswitch-h100")  # NVLS was not used
    assert (
        "; nvswitch-h100 is taken from the log: 8 NVIDIA H100 80GB HBM3 on one host" in found.line
    )


@pytest.mark.parametrize(
    ("name", "ranks", "hosts"),
    [
        # A card may have no switch, four of a board have none; on two hosts it is the network.
        ("NVIDIA H100 PCIe", 8, 1),
        ("NVIDIA H100 80GB HBM3", 4, 1),
        ("NVIDIA H100 80GB HBM3", 8, 2),
        ("AMD Instinct MI308X", 8, 1),
    ],
)
def test_else_there_is_no_reference(name, ranks, hosts):
    found = pasted(name, ranks, hosts)
    assert (found.word, found.fabric) == ("NO REFERENCE", None)


def test_the_figures_that_are_a_copy_of_one_device():
    """The published A100 curve as it is, as a table without ranks, and as it was imported."""
    folder = Path(__file__).parents[2] / "results" / "a100-8gpu-baseline"
    (plain,) = load_all([str(folder / "curve.csv")])
    assert judge(plain).line.startswith(UNKNOWN_RANKS)
    assert judge(plain, "nvswitch-a100").line.startswith(UNKNOWN_RANKS)
    assert judge(load(folder / "curve.jsonl")).word == "FAIL"


def failed(status):
    return CaseResult(case_of(1, size_bytes=8).case, status, 8, "why")


def test_nothing_that_was_communicated():
    one = case_of(1, "broadcast", ranks=1, op=None, root=0)
    assert line(one) == (
        "NO REFERENCE applies: one rank, no communication: times, but no bandwidth; "
        "1 of 1 case correct"
    )
    fake = case_of(1, backend="fake", device="cpu", verification=None)
    assert line(fake) == (
        "NO REFERENCE applies: fake backend, nothing was communicated: times, but no bandwidth"
    )
    assert line(case_of(1, rehearsal=True)) == (
        "NO REFERENCE applies: a rehearsal on one GPU: its bandwidth means nothing; "
        "1 of 1 case correct"
    )
    assert line(failed("skipped")) == "NO REFERENCE applies: no case has a result"


def test_what_failed_is_a_fail_whatever_the_bandwidth():
    wrong = case_of(365, status="wrong", verification=Verification(8, 3))
    assert line(case_of(365), wrong) == (
        f"FAIL 1 of 2 cases wrong: all_reduce 1G (3 of 8 elements); WARN 365 GB/s busbw at 1G, "
        f"{NVLS.format(77)}; 98.4 % {RING}"
    )
    assert line(case_of(365), failed("oom"), failed("timeout")).startswith(
        "FAIL 2 of 3 cases failed: the first all_reduce 8: why; WARN 365 GB/s"
    )
    # Nobody needs to hear that there is no reference for a run that failed.
    assert line(failed("failed")) == "FAIL 1 of 1 case failed: all_reduce 8: why"
    asked = replace(case_of(1).case, collective="barrier", size_bytes=0)
    assert line(CaseResult(asked, "failed", 8, "why")) == "FAIL 1 of 1 case failed: barrier: why"
    # What was never to run is no failure.
    assert judge(launch(case_of(365), failed("unsupported"), **SXM)).word == "WARN"


def test_what_is_not_possible_is_a_fail():
    # 450 GB/s and 5 % over one direction.
    gather = case_of(480, "all_gather", op=None)
    assert line(gather) == (
        "FAIL 1 of 1 case implausible: busbw up to 480 GB/s, 1.29 times the 371 GB/s limit of the "
        "links of one H200"
    )
    short = case_of(0.001, size_bytes=8)
    short.time_ns = {"host": [[1400] * 3] * 8}
    assert line(short).startswith("FAIL 1 of 1 case implausible: busbw up to ")


def test_how_the_run_ended():
    def of(**how):
        return judge(launch(**how)).line

    assert of(end={"status": "interrupted", "reason": "SIGINT"}) == "FAIL interrupted by SIGINT"
    assert of(end=None) == "FAIL the run did not end"
    damaged = ["a.jsonl:9: unusable record: no check sum"]
    text = "FAIL the file is damaged at line 9: 0 cases could be read"
    assert of(end=None, problems=damaged).startswith(text)
    ends = ["a.jsonl:9: unusable record (cut off): no check sum"]
    assert of(end=None, problems=ends).startswith("FAIL the file is cut off in line 9: 0 cases")
    cut = "truncated: the file has no end record"
    assert of(end=None, problems=["line 3: broken", cut]) == f"FAIL {cut}"
    source = {"source": {"tool": "OSU"}}
    assert of(end=None, header=source) == "NO REFERENCE applies: no case has a result"


def test_what_others_told():
    hot = {"kind": "machine", "message": "GPU 3 of node7: throttled by power"}
    slow = {"kind": "suspect", "message": "node7 is slow:\x1b 4 of 5 pairs", "host": "node7"}
    other = {"kind": "warning", "message": "2 ranks share 1 core"}
    run = launch(case_of(365), events=[hot, hot, other], **SXM)
    verdict = judge(run)
    assert verdict.word == "WARN"
    assert f"; WARN {hot['message']}; 1 of 1 case correct" in verdict.line
    assert "core" not in verdict.line
    run.events.append(slow)
    verdict = judge(run)
    assert verdict.word == "FAIL"
    assert verdict.line.startswith("FAIL node7 is slow:  4 of 5 pairs; WARN 365 GB/s")


def test_many_events_are_counted_and_none_is_said_twice():
    events = [{"kind": "machine", "message": f"GPU {n}: hot"} for n in range(5)]
    run = launch(case_of(365), events=events, **SXM)
    end = "WARN GPU 0: hot; GPU 1: hot; GPU 2: hot; 2 more of the machine events above"
    assert f"; {end}; 1 of 1 case correct" in judge(run).line
    out = io.StringIO()
    show(run, file=out)
    assert {f"GPU {n}: hot" in out.getvalue() for n in range(5)} == {True}
    assert out.getvalue().startswith("WARN 365 GB/s ")
    assert "\nmachine: GPU 3: hot\nmachine: GPU 4: hot\n" in out.getvalue()


def test_a_rank_with_fewer_links():
    run = launch(case_of(365), **SXM)
    run.members[2]["nvlinks"] = 16
    assert "; WARN 16 NVLinks on rank 2, 18 on the others; " in judge(run).line


def test_a_wrong_label_is_said_and_the_file_is_shown():
    verdict = judge(launch(case_of(365), labels={"fabric": "nowhere"}, **SXM))
    assert verdict.word == "WARN" and verdict.fabric is None
    assert error_text("; WARN label fabric", "nowhere", "one of ") in verdict.line
    verdict = judge(launch(case_of(365), labels={"link_gbps": "fast"}, **SXM))
    assert error_text("; WARN label link_gbps", "'fast'", "GB/s above 0; ") in verdict.line
    assert verdict.line.startswith("WARN 365 GB/s")


def test_first_result():
    cold = case_of(365, cold_ns=[[5_000_000]] * 8)
    header = {"connects": "first call"}
    assert line(cold, header=header, phases={"init_process_group": [9_000_000]}).endswith(
        "; time to first result 5.00 ms"
    )
    header = {"connects": "init_process_group"}
    assert line(cold, header=header, phases={"init_process_group": [9_000_000]}).endswith(
        "; time to first result 14.0 ms"
    )
    assert "first result" not in line(cold, header={"connects": "before"})
    firsts = (("nccl", 5), ("ccl", 900))
    both = [case_of(365, cold_ns=[[ms * 1_000_000]] * 8, backend=b) for b, ms in firsts]
    header = {"connects": "first call", "connects_of": {"nccl": "first call", "ccl": "first call"}}
    assert "; time to first result 5.00 ms on nccl and 900 ms on ccl" in line(*both, header=header)
    # All sub-groups make their first call together.
    other = case_of(365, cold_ns=[[7_000_000]] * 8, group="mod:2/1", members=[1, 3])
    assert line(cold, other).endswith("; time to first result 7.00 ms")


def test_as_json():
    verdict = judge(launch(case_of(365), **SXM))
    document = json.loads(json.dumps(verdict.to_json()))
    assert document == {
        "word": "WARN",
        "line": verdict.line,
        "fabric": "nvswitch-h200",
        "phrases": [
            {
                "word": "WARN",
                "text": f"365 GB/s busbw at 1G, {NVLS.format(77)}",
            },
            {"word": "", "text": f"98.4 % {RING}"},
            {"word": "", "text": "1 of 1 case correct"},
        ],
    }


def times(*milliseconds, **how):
    results = []
    for number, ms in enumerate(milliseconds):
        result = case_of(1, size_bytes=1024 << number)
        result.time_ns = {"host": [[round(ms * 1e6)] * 3] * 8}
        results.append(result)
    return launch(*results, **how)


@pytest.mark.parametrize(
    ("new", "word", "middle", "large", "worst"),
    [
        ((1, 1, 1), "PASS", "100.0", "100.0", "100.0 % in all_reduce 1K (1.000 ms to 1.000 ms)"),
        ((1.1, 1.1, 1), "PASS", "90.9", "100.0", "90.9 % in all_reduce 1K (1.000 ms to 1.100 ms)"),
        (
            (1.1, 1.5, 1),
            "WARN",
            "90.9",
            "100.0",
            "66.7 % in all_reduce 2K (1.000 ms to 1.500 ms)",
        ),
        # The largest size decides too: there it is bandwidth that is lost.
        ((1.1, 1.1, 1.2), "WARN", "90.9", "83.3", "83.3 % in all_reduce 4K (1.000 ms to 1.200 ms)"),
        ((1, 1, 4), "FAIL", "100.0", "25.0", "25.0 % in all_reduce 4K (1.000 ms to 4.000 ms)"),
        (
            (1.25, 1.25, 1),
            "WARN",
            "80.0",
            "100.0",
            "80.0 % in all_reduce 1K (1.000 ms to 1.250 ms)",
        ),
        ((2, 2, 1), "FAIL", "50.0", "100.0", "50.0 % in all_reduce 1K (1.000 ms to 2.000 ms)"),
    ],
)
def test_against_another_run(tmp_path, new, word, middle, large, worst):
    base = times(1, 1, 1)
    base.path = tmp_path / "base.jsonl"
    verdict = judge(times(*new), baseline=base)
    # What decides comes first.
    of_median, of_largest = "in the median of 3 cases in common", "in all_reduce 4K"
    figures = [f"{middle} % FIRST{of_median}", f"{large} % {of_largest}", f"at worst {worst}"]
    if new == (1.1, 1.5, 1):  # a case below 75 %
        figures = [worst.replace("% ", "% FIRST", 1), f"{middle} % {of_median}"]
    elif word != "PASS" and float(large) < float(middle):
        figures = [f"{large} % FIRST{of_largest}", f"{middle} % {of_median}", f"at worst {worst}"]
    text = "; ".join(figures).replace("FIRST", "of the speed of base.jsonl ")
    assert verdict.line == f"{word} {text}; one run each; 3 of 3 cases correct"
    assert verdict.word == word


def test_a_case_of_two_backends_is_named_with_its_backend():
    """The slowest of all is all_reduce 2K on xccl; gloo has that case too."""

    def both(slow):
        of_gloo, of_xccl = times(1, 1, 1), times(1, slow, 1)
        of_gloo.results += [
            replace(result, case=replace(result.case, backend="xccl")) for result in of_xccl.results
        ]
        return of_gloo

    line_of_both = judge(both(1.5), baseline=both(1)).line
    assert line_of_both.startswith("WARN 66.7 % of the speed of the baseline in all_reduce 2K on x")


# Rows of published tables: RCCL on 2 nodes and NCCL on 2 nodes, with other figures.
@pytest.mark.parametrize(
    ("rows", "odd"),
    [
        (
            "131072 32768 float sum -1 70.2 1.867 3.5006 0 136.2 0.9623 1.8043 0\n"
            "262144 65536 float sum -1 89.1 2.9421 5.5164 0 90.3 2.903 5.4431 0\n",
            ["odd: all_reduce 128K in place takes 136 us, 1.51x the 90.3 us of 256K"],
        ),
        (
            "131072 32768 float sum -1 70.2 1.867 3.5006 0 136.2 0.9623 1.8043 0\n"
            "262144 65536 float sum -1 139.8 1.8751 3.5158 0 150.3 1.744 3.27 0\n",
            ["odd: all_reduce 128K takes 136 us in place, 1.94x the 70.2 us that it takes out of "],
        ),
        (
            "536870912 134217728 float sum -1 3020.1 177.77 333.32 0 3021.4 177.69 333.17 0\n"
            "1073741824 268435456 float sum -1 6410.4 167.5 314.06 0 6409.2 167.53 314.12 0\n",
            ["odd: busbw of all_reduce falls from 333 GB/s at 512M to 314 GB/s at 1G (6 %)"],
        ),
        (
            "131072 32768 float sum -1 70.2 1.867 3.5006 0 99.1 1.3226 2.4799 0\n"
            "262144 65536 float sum -1 139.8 1.8751 3.5158 0 150.3 1.744 3.27 0\n",
            [],
        ),
    ],
)
def test_what_is_odd_in_a_run_without_a_reference(rows, odd, tmp_path):
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text(
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     "
        f"time   algbw   busbw #wrong\n{rows}# Out of bounds values : 0 OK\n"
    )
    (run,) = load_all([str(path)])
    texts = [str(phrase) for phrase in judge(run).phrases if str(phrase).startswith("odd: ")]
    assert [text[: len(wanted)] for text, wanted in zip(texts, odd, strict=True)] == odd


@pytest.mark.parametrize(
    ("factor", "sentence"),
    [
        (
            4,
            "CANNOT TELL whether this run is slower: 9 % slower in the median of 3 cases in "
            "common, and all_reduce 2K takes 4.0x as long as in the baseline (1.000 ms to 4.000 "
            "ms); 100.0 % of the speed in all_reduce 4K; one run each; ",
        ),
        (10, "FAIL all_reduce 2K takes 10x as long as in the baseline; 90.9 % of the speed"),
    ],
)
def test_one_case_that_takes_twice_as_long_never_passes(factor, sentence):
    verdict = judge(times(1.1, factor, 1), baseline=times(1, 1, 1))
    assert verdict.line.startswith(sentence)


def test_a_case_that_the_run_lacks_is_not_silent(tmp_path):
    base = times(1, 1, 1)
    base.path = tmp_path / "base.jsonl"
    line = judge(times(1, 1), baseline=base).line
    assert "one run each; 1 case of base.jsonl without a time in this run; " in line


@pytest.mark.parametrize(
    ("base", "new", "message"),
    [
        ({}, {"device": "NVIDIA H100"}, error_tail("devices NVIDIA H200", "NVIDIA H100")),
        ({"hosts": 2}, {}, error_tail("hosts 2", "1")),
        (SXM, {**SXM, "nvlinks": 16}, error_tail("NVLinks 18", "16")),
        (
            {"labels": {"fabric": "ib-hdr:4"}},
            {"labels": {"fabric": "ib-ndr:4"}},
            error_tail("fabric ib-hdr:4", "ib-ndr:4"),
        ),
    ],
)
def test_against_a_run_of_another_fabric(base, new, message):
    with pytest.raises(UsageError) as caught:
        judge(times(1, **new), baseline=times(1, **base))
    assert str(caught.value) == error_text("baseline", f"{message}, as this run has")


def reusing(how, *milliseconds):
    """``times`` of a source that reuses its buffers in this way."""
    made = times(*milliseconds)
    for result in made.results:
        result.case = replace(result.case, buffer_reuse=how)
    return made


def test_against_buffers_that_are_reused_in_another_way():
    with pytest.raises(UsageError, match="a case in common"):
        judge(reusing("same", 1), baseline=reusing("rotate", 1))


def test_against_a_run_with_nothing_in_common():
    other = launch(case_of(1, "broadcast", op=None, root=0))
    with pytest.raises(UsageError) as caught:
        judge(times(1), baseline=other)
    words = expecting("a run that has a case in common with this one")
    assert str(caught.value) == error_text("baseline", f"the baseline, {words}")
    # A figure that is not possible is no baseline.
    fast = launch(case_of(480, "all_gather", op=None))
    with pytest.raises(UsageError, match="a case in common"):
        judge(launch(case_of(300, "all_gather", op=None)), baseline=fast)


def test_one_reference_at_a_time(tmp_path):
    with pytest.raises(UsageError) as caught:
        judge(times(1), "nvswitch-h200", baseline=times(1))
    assert str(caught.value) == (error_text("baseline", "a run with a fabric", "one of them"))


def test_a_run_of_python_is_complete():
    assert judge(Run(results=[case_of(365)], end=COMPLETE)).word == "NO REFERENCE"


def test_no_pass_follows_a_fail():
    good = case_of(365, "all_gather", op=None)
    wrong = case_of(365, "all_gather", op=None, size_bytes=MIB)
    wrong.verification = Verification(8, 1)
    assert judge(launch(good, **SXM)).word == "PASS"
    found = judge(launch(good, wrong, **SXM))
    assert found.line.startswith(
        "FAIL 1 of 2 cases wrong: all_gather 1M (1 of 8 elements); 365 GB/s "
    )
    assert "PASS" not in found.line


def test_one_run_of_a_disturbed_machine_is_no_failure():
    slow, busy = times(1, 1, 1.5), "vm: other processes used 0.94 of 2 cores"
    assert judge(slow, baseline=times(1, 1, 1)).word == "FAIL"
    slow.events.append({"kind": "machine", "message": busy})
    verdict = judge(slow, baseline=times(1, 1, 1))
    assert verdict.line.startswith("CANNOT TELL whether this run is slower: 66.7 % of the speed")
    far = times(1, 1, 6.5)
    far.events.append({"kind": "machine", "message": busy})
    assert judge(far, baseline=times(1, 1, 1)).word == "FAIL"


def test_a_file_that_is_cut_off_says_so_once(tmp_path, capsys):
    whole = Path(__file__).parents[2] / "results" / "gloo-2ranks" / "run.jsonl"
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole.read_bytes()[:25_000])
    assert main(["show", str(cut)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("FAIL the file is cut off in line ")
    assert "truncated" not in text and "check sum" not in text
