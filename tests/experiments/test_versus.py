"""torchcoll versus: what is launched next, what a folder amounts to, and how it is told.

Most tests write the result files that runs would have left; the last ones run
tests/fake_launch.py, which takes 30 ms.
"""

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from error_form import error_line, error_tail, error_text, got
from made_runs import measured, run
from ranks import past

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.core.units import format_duration
from torchcoll.machine import processes
from torchcoll.parts.experiments.axes import Cell
from torchcoll.parts.experiments.blocks import RunPlan
from torchcoll.parts.experiments.launch_command import command_of
from torchcoll.parts.experiments.versus import Versus
from torchcoll.parts.experiments.versus_show import answer, repeat_text, round_text

FAKE = Path(__file__).parents[1] / "fake_launch.py"
K, M = 1 << 10, 1 << 20


@pytest.fixture(autouse=True)
def _here(in_tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    monkeypatch.setattr(processes, "_TICK_S", 0.05)
    for name in ("NCCL_ALGO", "NCCL_PROTO"):
        monkeypatch.delenv(name, raising=False)


def begun(cells="ab", most=30, threshold=0.02):
    plan = RunPlan(command_of([sys.executable, str(FAKE)]), [Cell(n) for n in cells], most)
    return Versus(plan, Path(), threshold, most, most)


def there(job):
    return Path(f"{job.stem}.jsonl").exists()


def played(state, times, limit=200, **changed):
    """Writes what is asked for, a minute apart, until the end; the runs in their order.

    times: (cell, run) -> size -> ns.
    """
    started = []
    while len(started) < limit and (job := state.next(there)) is not None:
        minute = len(list(Path().glob("*.jsonl")))
        at = f"2026-03-01T{minute // 60:02}:{minute % 60:02}:00Z"
        cases = [
            measured(ns, size_bytes=size, cold_ns=[[30_000_000, 10_000_000]] * 2)
            for size, ns in times(job.cell.name, job.run).items()
        ]
        one = run(*cases, labels={"cell": job.cell.name}, header={"start_utc": at}, **changed)
        save(one, f"{job.stem}.jsonl")
        started.append(job.stem)
    return started


def noisy(ratios, noise=0.005, seed=0):
    """Times with noise of every case of every run; ratios: cell -> size -> factor."""

    def times(cell, launch):
        rng = random.Random(f"{seed}/{cell}/{launch}")
        return {
            size: round(1e7 * factor * rng.lognormvariate(0, noise))
            for size, factor in ratios[cell].items()
        }

    return times


def told(state):
    return answer(state, state.comparisons(), "runs/a b").text


def without_bounds(text):
    """Each bound of a difference as B; it is a little below its estimate where noise is small."""
    for estimate, bound in re.findall(r"([\d.]+)x \(at least ([\d.]+)x\)", text):
        assert 0.9 * float(estimate) < float(bound) <= 1.005 * float(estimate)
    return re.sub(r"at least [\d.]+x", "at least B", text)


def test_a_b_b_a_until_every_case_is_settled():
    state = begun()
    started = played(state, noisy({"a": {K: 1, M: 1}, "b": {K: 1, M: 1.3}}, noise=0.002))
    assert started[:6] == ["a-1", "b-1", "b-2", "a-2", "a-3", "b-3"]
    assert len(started) == 2 * state.round and 3 <= state.round < 8
    assert state.stopped == "every case is decided" and not state.failed
    assert without_bounds(told(state)).startswith(
        f"b is 1.30x slower than a at 1M (at least B, {state.round} runs each); 1K is the same"
    )


def test_the_same_folder_gives_the_same_answer():
    times = noisy({"a": {K: 1, M: 1}, "b": {K: 1.01, M: 1.06}}, noise=0.01)
    first = begun()
    started = played(first, times)
    again = begun()
    assert played(again, times) == [] and len(started) >= 6
    assert (again.round, again.stopped, told(again)) == (first.round, first.stopped, told(first))


def test_a_part_of_a_folder_goes_on_where_it_was():
    times = noisy({"a": {K: 1}, "b": {K: 1.05}}, noise=0.01)
    whole = played(begun(), times)
    for path in Path().glob("*.jsonl"):
        path.unlink()
    part = played(begun(), times, limit=5)
    assert len(part) == 5 and part + played(begun(), times) == whole


def test_an_outlier_is_launched_again_kept_and_named():
    calm = noisy({"a": {K: 1, M: 1}, "b": {K: 1.03, M: 1.03}}, noise=0.008)

    def times(cell, launch):
        factor = 1.4 if (cell, launch) == ("b", 4) else 1
        return {size: round(factor * ns) for size, ns in calm(cell, launch).items()}

    state = begun()
    started = played(state, times)
    assert state.runs["b"] == state.runs["a"] + 1 == state.round + 1
    repeats = [one for one in state.news() if one is not None]
    assert [one.job.stem for one in repeats] == ["b-4"]
    assert repeat_text(repeats[0]).startswith("b, run 4 is an outlier, 1.3")
    assert Path("b-4.jsonl").exists() and started.count("b-4") == 1
    (found,) = state.comparisons()
    assert found.left_out == ["b-4.jsonl"] and "left out of all cases: b-4.jsonl" in found.notes[0]
    # 3 % at 0.8 % noise, just shown: a bound is stated where there is one.
    assert re.match(
        r"b is 1.0\dx to 1.0\dx slower than a in both cases \(",
        told(state),
    )


def test_no_launch_without_a_chance():
    state = begun()
    played(state, noisy({"a": {K: 1, M: 1}, "b": {K: 1, M: 1}}, noise=0.2))
    assert state.round < 8
    assert re.match(r"no open case has a chance of 20 % .* by 30 runs a side: 1?\d % at best",
                    state.stopped)  # fmt: skip
    reasons = [row.reason for row in state.comparisons()[0].rows]
    assert all(
        re.fullmatch(r"p .*, 1?\d % to decide, 30 runs per side would show .* %", reason)
        for reason in reasons
    )


def test_the_most_launches_are_the_end():
    state = begun(most=4)
    played(state, noisy({"a": {K: 1}, "b": {K: 1.02}}, noise=0.008, seed=2))
    assert state.stopped == "4 runs a side are the most that were asked for"
    ((row,),) = (one.rows for one in state.comparisons())
    # Four runs a side share the error of 'same': with more, --resume finds what differs. This
    # ratio lies within 2 %, so that it may be the same.
    assert row.ratio < 1.02
    (number,) = re.findall(r" with --runs (\d+) \(", told(state))
    assert 4 < int(number) <= 100
    assert told(state) == (
        "no difference was found between a and b (a difference of 5.0 % would have been "
        f"found). Next: start again in a new folder with --runs {number} ({number} rounds, about "
        f"{format_duration(2 * int(number))})"  # each of two runs takes 1 s
    )


def test_what_may_differ_is_resumed():
    """A ratio far beyond 2 %: the runs that are there count. 80 % of truths like it would be shown
    by so many runs, simulated in tests/stats/test_needed.py.
    """
    state = begun(most=3)
    played(state, noisy({"a": {K: 1}, "b": {K: 1.2}}, noise=0.1, seed=1))
    ((row,),) = (one.rows for one in state.comparisons())
    assert row.ratio > 1.1
    assert re.fullmatch(
        r"Cannot tell whether b is slower than a: 1K 1.\d\dx slower, but 3 runs of each vary too "
        r"much\. Next: torchcoll versus --resume 'runs/a b' --runs \d+ \(\d+ rounds, about .* s\)",
        told(state),
    )


def test_launches_behind_the_end_are_taken_too():
    """Four were asked for, later more: who reads the folder for four has them."""
    times = noisy({"a": {K: 1}, "b": {K: 1.02}}, noise=0.008, seed=2)
    assert len(played(begun(most=4), times)) == 8
    more = len(played(begun(most=20), times)) // 2
    state = begun(most=4)
    assert state.next(there) is None and state.round == 4 + more > 4


def test_where_launches_may_never_be_enough_none_are_proposed():
    """A ratio of 1.0201 at a threshold of 2 %: no sensible number of runs decides it."""
    state = begun(most=30)
    played(state, noisy({"a": {K: 1}, "b": {K: 1.0201}}, noise=0.001))
    assert state.futile
    assert told(state).endswith(
        " % would have been found). Next: start again with a larger --threshold: the difference is "
        "too near the threshold of 2 % to decide"
    )


def test_three_sides_are_compared_with_the_first():
    state = begun("abc")
    started = played(state, noisy({"a": {K: 1}, "b": {K: 1.2}, "c": {K: 0.5}}, noise=0.002))
    assert started[:6] == ["a-1", "b-1", "c-1", "c-2", "b-2", "a-2"]
    text = without_bounds(told(state))
    assert text.startswith(
        f"b is 1.20x slower than a at 1K (at least B, {state.round} runs each). c is 2.0x faster "
        "than a at 1K (at least B, "
    )
    assert round_text(state).startswith(f"round {state.round}: b: 1 of 1 decided: 1K slower. c: 1")


def test_after_every_round_it_says_what_is_settled():
    state = begun()
    sizes = {K << n: 1.0 for n in range(8)}
    played(state, noisy({"a": {**sizes, M: 1}, "b": {**sizes, M: 1.3}}, noise=0.002))
    text = round_text(state)
    assert re.match(
        r"round \d: 9 of 9 decided: 1K 2K 4K 8K \.\.\. 128K \(8\) same, 1M slower$", text
    )


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"ranks": 4}, "none of b that can be compared with a: .*4"),
        ({"size_bytes": M}, "nothing in common in size"),
    ],
)
def test_nothing_comparable_ends_after_one_launch_of_each(changed, why):
    for name, case in (("a", {}), ("b", changed)):
        save(run(measured(1000, **case), ranks=case.get("ranks", 2)), f"{name}-1.jsonl")
    with pytest.raises(UsageError, match=error_text("^cases", why)):
        begun().next(there)


# Two sizes in 6 runs of each side (ns), as somebody measured them on two shared cores.
MALLOC = {
    "a": {
        M: (1278980, 1469538, 721186, 1372624, 776714, 778586),
        4 * M: (4938831, 3255695, 4249597, 4495988, 3182046, 4967869),
    },
    "b": {
        M: (1532836, 1394246, 1881029, 1086133, 1438782, 2131111),
        4 * M: (5980588, 5757502, 6969406, 6040787, 8025515, 6400582),
    },
}


def test_a_case_that_is_open_is_named_once():
    state = begun()
    played(state, lambda cell, launch: {s: t[launch - 1] for s, t in MALLOC[cell].items()}, 12)
    state.next(there)
    assert round_text(state) == (
        "round 6: 1 of 2 decided: 4M slower; open, so far: 1M 1.51x slower"
    )
    assert (
        "b is 1.58x slower than a at 4M (too noisy for a lower bound, 6 runs each); not decided: "
        "1M 1.51x slower; not ended: 6 rounds so far. Next: torchcoll versus --resume 'runs/a b' ("
        in told(state)
    )


def test_a_wrong_case_leaves_the_others():
    times = noisy({"a": {K: 1, M: 1}, "b": {K: 1.3, M: 1.3}}, noise=0.002)
    state = begun()
    played(state, times, limit=4)
    path = Path("a-2.jsonl")
    path.unlink()
    save(run(measured(10**7, size_bytes=K), measured(10**7, size_bytes=M, status="failed"),
             labels={"cell": "a"}, header={"start_utc": "2026-03-01T00:03:00Z"}), path)  # fmt: skip
    played(state, times)
    (found,) = state.comparisons()
    assert [row.result for row in found.rows] == ["slower", "not comparable"]
    assert found.rows[1].reason == f"failed in 1 of {state.round} runs of base"
    assert told(state).endswith(f"; 1 of {state.round} runs of a failed (1M)")


@pytest.mark.parametrize(
    ("ratios", "start"),
    [
        ((1, 1, 1), "b is as fast as a: all 3 cases are the same within 2 %"),
        (
            (1.3, 1.12, 1.2),
            "b is 1.12x to 1.30x slower than a at all sizes (at least B, {} runs each)",
        ),
        (
            (1, 1.5, 1),
            "b is 1.50x slower than a at 64K (at least B, {} runs each); the other 2 cases are the "
            "same within 2 %",
        ),
        (
            (4.5, 1, 0.8),
            # In 0.8 of the time it is 1 / 0.8 times as fast.
            "b is 4.5x slower than a at 1K (at least B, {} runs each); 1.25x faster at 4M (at "
            "least B); 64K is the same within 2 %",
        ),
    ],
)  # fmt: skip
def test_the_answer_in_one_sentence(ratios, start):
    sizes = (K, 64 * K, 4 * M)
    state = begun()
    new = dict(zip(sizes, ratios, strict=True))
    played(state, noisy({"a": dict.fromkeys(sizes, 1), "b": new}, noise=0.0005))
    assert without_bounds(told(state)) == start.format(state.round)


class Files:
    """A folder whose runs end at once; ``unavailable``: what its cells lack."""

    def __init__(self, lacking=()):
        self.lacking = lacking

    def done(self, job):
        return there(job)

    def unavailable(self, job):
        return job.cell.name in self.lacking

    def last(self, job):
        return {"reason": "out of memory"}


def test_a_launch_without_a_result_is_tried_once_more():
    state = begun()
    assert [job.stem for job in state.jobs(Files())] == ["a-1", "a-1"]
    assert state.failed and state.stopped == "a, run 1 has no result: out of memory"
    lacking = begun()
    assert list(lacking.jobs(Files(("a",)))) == [] and lacking.failed


def versus(*options, words=("slow=NCCL_ALGO",)):
    command = [sys.executable, "-S", str(FAKE), *words]
    return main(["versus", "--env", "NCCL_ALGO=,Ring", *options, "--", *command])


def spec():
    return json.loads(Path("D/manifest.jsonl").read_text().splitlines()[0])["spec"]


RING = "NCCL_ALGO=Ring is 2.0x slower than NCCL_ALGO unset at 8 B (at least B, "


def test_a_folder_that_others_read(capsys):
    assert versus("-o", "D") == 0
    out, err = capsys.readouterr()
    rounds = int(re.search(r"ended after (\d+) rounds", out)[1])
    assert without_bounds(out.splitlines()[0]) == f"{RING}{rounds} runs each)"
    assert err.splitlines()[-1] == f"round {rounds}: 1 of 1 decided: 8 slower"
    assert spec()["versus"] == {"threshold": 0.02, "runs": 30}
    before = Path("D/manifest.jsonl").read_bytes()
    assert main(["versus", "--resume", "D"]) == 0
    assert capsys.readouterr() == (out, "")
    assert versus("-o", "D") == 0
    assert capsys.readouterr() == (out, "")
    assert Path("D/manifest.jsonl").read_bytes() == before
    sides = [f"{name}=D/{name}-[0-9]*.jsonl" for name in ("auto", "Ring")]
    assert main(["compare", *sides, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["result"], row["base_runs"]) == ("slower", rounds)


def test_a_side_that_is_wrong_in_every_launch_ends_with_1(capsys):
    words = ("slow=NCCL_ALGO", "second=NCCL_ALGO")
    assert versus("-o", "D", "--runs", "3", words=words) == 1
    out = capsys.readouterr().out.replace("\n  ", " ")
    assert without_bounds(out.splitlines()[0]) == (
        "wrong results in 3 of 3 runs of NCCL_ALGO=Ring (16); the other case: NCCL_ALGO=Ring is "
        "2.0x slower than NCCL_ALGO unset at 8 B (at least B, 3 runs each)"
    )
    assert ": every case that can be compared is decided" in out
    assert main(["compare", "D", "--fail-on", "slower:90%"]) == 1
    out, err = capsys.readouterr()
    assert err == "torchcoll: --fail-on slower:90%: 1 wrong, 1 slower\n"
    assert main(["versus", "--resume", "D", "--format", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["answer"]["level"] == "bad"


def test_a_side_that_is_wrong_in_every_case_ends_after_a_round(capsys):
    command = [sys.executable, "-S", str(FAKE), "{x}"]
    assert main(["versus", "--axis", "x=right,wrong", "-o", "D", "--", *command]) == 1
    err = capsys.readouterr().err
    reason = "wrong in new: 3 elements differ"
    assert f"nothing is judged: no case of x=wrong can be compared: {reason}" in err
    assert len(list(Path("D").glob("*.jsonl"))) == 3  # of two runs, and the manifest


def test_compare_reads_the_folder(capsys):
    """Both of its sides at once, judged as versus judged them."""
    assert versus("-o", "D") == 0
    out = capsys.readouterr().out
    assert main(["compare", "D"]) == 0
    assert capsys.readouterr() == (out, "")
    assert main(["compare", "D", "--fail-on", "slower"]) == 1
    assert capsys.readouterr() == (out, "torchcoll: --fail-on slower: 1 slower\n")
    assert main(["compare", "D", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "torchcoll-versus/1"
    assert main(["compare", "D", "--metric", "busbw"]) == 2
    assert capsys.readouterr().err == (
        error_line(
            "metric",
            "busbw with the folder of a versus",
            "its two sides by name, to be taken as they are. Such as: torchcoll compare "
            "'auto=D/auto-[0-9]*.jsonl' 'Ring=D/Ring-[0-9]*.jsonl'.\n",
        )
    )


def test_compare_of_a_folder_that_has_not_judged_yet(capsys):
    assert versus("-o", "D", words=["slow=NCCL_ALGO", "once=stop"]) == 130
    capsys.readouterr()
    assert main(["compare", "D"]) == 2
    assert capsys.readouterr().err == (
        error_line(
            "compare",
            "D, without 3 runs of each side",
            "the folder of a versus that has judged. torchcoll versus --resume D goes on.\n",
        )
    )


def test_algorithms_reads_the_folder(capsys):
    assert versus("-o", "D", words=["slow=NCCL_ALGO", "backend=nccl"]) == 0
    capsys.readouterr()
    assert main(["algorithms", "D", "--format", "json"]) == 0
    assert '"Ring"' in capsys.readouterr().out


def test_launches_that_are_all_equal_settle_nothing(capsys):
    assert versus("-o", "D", words=()) == 0
    assert "no case can be judged, however many runs there are: the runs of each side" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("format", ["json", "csv", "markdown"])
def test_formats(format, capsys):
    assert versus("-o", "D", "--quiet", "--format", format) == 0
    out, err = capsys.readouterr()
    assert err == ""
    if format == "json":
        found = json.loads(out)
        assert found["schema"] == "torchcoll-versus/1" and found["answer"]["headline"].startswith(
            "NCCL_ALGO=Ring is 2.0x slower than NCCL_ALGO unset at 8 B ("
        )
        assert found["ended"] == "every case is decided"
        assert found["runs"] == {"auto": found["rounds"], "Ring": found["rounds"]}
        assert found["comparisons"][0]["rows"][0]["result"] == "slower"
    elif format == "csv":
        head, row = out.splitlines()
        cells = dict(zip(head.split(","), row.split(","), strict=True))
        assert (cells["base_name"], cells["new_name"], cells["result"]) == (
            "NCCL_ALGO unset",
            "NCCL_ALGO=Ring",
            "slower",
        )
    else:
        assert "| slower " in out and without_bounds(out).startswith(f"- {RING}")


def test_the_first_calls_of_two_backends_are_in_the_answer(capsys):
    """Of all calls they differ most, and no case shows them. gloo connects for 10 ms before."""
    plan = RunPlan(command_of([sys.executable, str(FAKE)]), [Cell("gloo"), Cell("ccl")], 3)
    state = Versus(plan, Path(), 0.02, 3, 3)
    first_ns = {"gloo": 500_000, "ccl": 652_000_000}
    while (job := state.next(there)) is not None:
        backend = job.cell.name
        minute = len(list(Path().glob("*.jsonl")))
        case = measured(
            100_000 + 100 * minute, backend=backend, cold_ns=[[first_ns[backend], 100_000]] * 2
        )
        where = {"gloo": "init_process_group", "ccl": "first call"}[backend]
        launch = run(
            case,
            labels={"cell": backend},
            header={"start_utc": f"2026-03-01T00:0{minute}:00Z", "connects_of": {backend: where}},
            phases={"init_process_group": [10_000_000] * 2},
        )
        save(launch, f"{job.stem}.jsonl")
    comparisons = state.comparisons()
    times = "gloo 10.5 ms, ccl 652 ms"
    assert answer(state, comparisons, "D").text.endswith(
        f"; time to first result (connecting and first call): {times}"
    )


def test_interrupted_it_says_how_to_go_on(capsys):
    assert versus("-o", "D", words=["slow=NCCL_ALGO", "once=stop"]) == 130
    err = capsys.readouterr().err
    assert "nothing is judged before 3 runs a side: interrupted by SIGINT; " in err
    assert err.endswith("torchcoll versus --resume D goes on\n")
    assert main(["versus", "--resume", "D"]) == 0
    assert without_bounds(capsys.readouterr().out).startswith(RING)


def test_killed_it_goes_on(capfd):
    command = [sys.executable, "-S", str(FAKE), "slow=NCCL_ALGO", "once=hang"]
    words = ["versus", "--env", "NCCL_ALGO=,Ring", "-o", "D", "--", *command]
    script = "import sys; from torchcoll.cli import main; sys.exit(main(sys.argv[1:]))"
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words], env={**os.environ, "PYTHONPATH": root}
    )
    began = time.monotonic()
    while not Path("D/auto-1.jsonl").exists():
        assert not past(began, 20)
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert main(["versus", "--resume", "D"]) == 0
    out, err = capfd.readouterr()
    assert "ended 1 processes of a run whose matrix was killed" in err
    assert (
        "NCCL_ALGO unset, run 1: its matrix was killed; what it wrote is aside/auto-1.1.jsonl"
        in err
    )
    assert without_bounds(out).startswith(RING)


def test_a_launch_that_fails_twice_ends_it(capsys):
    assert versus("-o", "D", words=["refuse"]) == 1
    err = capsys.readouterr().err.splitlines()
    reason = error_text("exit code 2: sizes", "1KB", "a number")
    assert err[0] == "NCCL_ALGO unset and NCCL_ALGO=Ring in turn, at most 30 runs of each, into D"
    assert all(
        re.fullmatch(rf"\[./60\] NCCL_ALGO unset, run 1: failed, .* s: {reason}", line)
        for line in err[1:3]
    )
    assert err[3] == (
        f"torchcoll: nothing is judged: NCCL_ALGO unset, run 1 has no result: {reason}"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--"], error_text("command", "none",
            "a run of torchcoll behind --. Such as: -- torch")),
        (["--", sys.executable, str(FAKE)], error_text("versus", "one side, auto",
            "two at least.")),
        (["--env", "NCCL_ALGO=Ring", "--", sys.executable, str(FAKE)],
         error_text("versus", "one side, Ring", "two at least. Give two values: --env NCCL_AL")),
        (["--runs", "2", "--"], error_text("runs", "2", "a whole number from 3 on")),
        (["--threshold", "200%", "--"], error_text("threshold", "200%", "a share above 0 and")),
        (["--resume", "D", "-o", "E"], error_text("resume", "D and --output",
            "the folder alone: it")),
        (["--resume", "D"], error_text("resume", "D", "the folder of a torchcoll versus")),
    ],
)  # fmt: skip
def test_refused(words, line, capsys):
    assert main(["versus", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"torchcoll: error: {line}") and err.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_folder_begun_otherwise(capsys):
    assert versus("-o", "D", "--runs", "3") == 0
    for words, line in (
        (
            ["-o", "D", "--threshold", "5%"],
            error_text("threshold of D", "5 %", "2 %, as it was begun"),
        ),
        (["-o", "D", "--env", "A=1,2"], error_text("cells of D", "")),
    ):
        capsys.readouterr()
        assert versus(*words) == 2
        assert capsys.readouterr().err.startswith(f"torchcoll: error: {line}")
    command = [sys.executable, "-S", str(FAKE)]
    capsys.readouterr()
    assert main(["matrix", "-o", "D", "--env", "NCCL_ALGO=,Ring", "--", *command]) == 2
    assert got(error_tail("those of a matrix", "those of a versus")) in capsys.readouterr().err
    assert main(["matrix", "-o", "E", "--runs", "1", "--", *command]) == 0
    capsys.readouterr()
    assert main(["versus", "--resume", "E"]) == 2
    assert "expected the folder of a torchcoll versus" in capsys.readouterr().err


def test_a_command_with_a_secret_is_given_again(capsys):
    words = ["slow=NCCL_ALGO", "token=abc"]
    assert versus("-o", "D", "--runs", "3", words=words) == 0
    capsys.readouterr()
    assert main(["versus", "--resume", "D"]) == 2
    assert error_tail(
        "secrets that are not kept", "the command again. Give it with -o D in place"
    ) in (capsys.readouterr().err)
    assert versus("-o", "D", words=words) == 0


def test_a_dry_run_starts_nothing(capsys):
    assert versus("-o", "D", "--dry-run") == 0
    out, err = capsys.readouterr()
    assert err == (
        "at most 30 rounds of 2 runs, until every case is decided; nothing was started; the first "
        "2 runs:\n"
    )
    assert len(out.splitlines()) == 2
    assert not Path("D").exists()


def test_a_dry_run_takes_torchcoll_run_and_needs_no_program(capsys):
    words = ["versus", "--env", "OMP_NUM_THREADS=1,2", "-o", "D", "--dry-run", "--"]
    program = "/nowhere/torchcoll"
    assert main([*words, program, "run", "-n", "2", "allreduce"]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .startswith(
            f"OMP_NUM_THREADS=2 {program} run -n 2 allreduce --output D/OMP_NUM_THREADS2-1.jsonl "
        )
    )


def test_more_launches_later(capsys):
    """'same' keeps the number over which its error is spent."""
    assert versus("-o", "D", "--runs", "3") == 0
    assert main(["versus", "--resume", "D", "--runs", "40"]) == 0
    assert spec()["versus"]["runs"] == 3


def test_a_broken_manifest(capsys):
    assert versus("-o", "D", "--runs", "3") == 0
    path = Path("D/manifest.jsonl")
    header = json.loads(path.read_text().splitlines()[0])
    for broken in (
        {"versus": {"runs": "x"}},
        {"versus": 3},
        {"cells": [{"name": "a", "axes": 5}]},
    ):
        capsys.readouterr()
        path.write_text(json.dumps({**header, "spec": {**header["spec"], **broken}}) + "\n")
        assert main(["versus", "--resume", "D"]) == 3
        err = capsys.readouterr().err
        assert error_tail("D/manifest.jsonl", "one that torchcoll versus wrote") in err
