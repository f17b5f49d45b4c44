"""More files, or more ranks, than anybody reads: in short, and everything with ``every``."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from handmade import MIB, Terminal, case, not_run, result, run

from torchcoll.cli import main
from torchcoll.core.file import save
from torchcoll.core.plausibility import summarise_run
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import NO_REFERENCE, Phrase
from torchcoll.questions.check.measured_show import over_all, runs_answer
from torchcoll.questions.show.show import show
from torchcoll.report.many import same_cases

NONE = (
    "NO REFERENCE for gloo on cpu within one host\n"
    "Next: torchcoll check FILE --baseline EARLIER-RUN"
)


def timed(ns: int, host: str, name: str, ranks: int = 2, **changed):
    """One run on one host, of two sizes: ns, and twice that."""
    cases = [
        result(ranks, case=case(size_bytes=size), time_ns={"host": [[time] * 21] * ranks})
        for size, time in ((MIB, ns), (4 * MIB, 2 * ns))
    ]
    members = [{"rank": rank, "host": host, "device": "cpu"} for rank in range(ranks)]
    return run(*cases, ranks=ranks, members=members, path=Path(name), **changed)


def printed(*runs, **choices) -> str:
    out = io.StringIO()
    show(*runs, file=out, **choices)
    return out.getvalue()


def fleet(count: int):
    """100 us on each but the last, which is on n3 and takes 150; hosts n0 to n3 in turn."""
    times = [100_000] * (count - 1) + [150_000]
    hosts = [f"n{number % 4}" for number in range(count - 1)] + ["n3"]
    return [timed(ns, host, f"{n}.jsonl") for n, (ns, host) in enumerate(zip(times, hosts))]  # noqa: B905


def test_more_than_twenty_runs_are_a_summary():
    text = printed(*fleet(25))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    # 4M in 200 us on 2 ranks: 4194304 B / 200 us x 2 x 1/2.
    measured = (
        "all_reduce on 2 gloo ranks takes 100 us at 1M and reaches 21.0 GB/s of busbw at 4M, "
        "medians of 25 runs"
    )
    of_lines = " ".join(
        f"{measured} between runs a case varies by 1.50x (median), at most 1.50x "
        f"(all_reduce 1M) 50 of 50 results correct {NONE} 25 runs".split()
    )
    assert " ".join(text.replace(";", "").split()).startswith(of_lines)
    assert lines[-1] == measured
    assert any("all_reduce, float32, sum, in place" in line for line in lines)
    assert "backend: gloo; device: cpu; ranks: 2; 4 hosts" in lines
    # Median 100, least 100, most 150, on the last run; 4M takes twice as long.
    assert [line for line in lines if line.endswith("24.jsonl")] == [
        "all_reduce 1M 25 100.0 us 100.0 us 150.0 us 1.500 10.486 24.jsonl",
        "all_reduce 4M 25 200.0 us 200.0 us 300.0 us 1.500 20.972 24.jsonl",
    ]
    assert len(lines) < 40
    whole = printed(*fleet(25), every=True)
    assert sum(line.split()[:1] == ["call"] for line in whole.splitlines()) == 25
    assert "medians of" not in whole  # of tables of one run each


def test_runs_of_the_same_cases_are_one_table_and_with_all_a_table_each():
    lines = [" ".join(line.split()) for line in printed(*fleet(6)).splitlines()]
    # Five runs of 100 us and one of 150; 1M in 100 us is 10.486 GB/s.
    assert "all_reduce 1M 6 100.0 us 100.0 us 150.0 us 1.500 10.486 5.jsonl" in lines
    assert len([line for line in lines if line.startswith("all_reduce 4M")]) == 1
    assert printed(*fleet(6), every=True).count(" correct\n") == 12


def test_a_warning_of_one_of_six_runs_follows_what_was_measured():
    runs = fleet(6)
    runs[1].events = [{"kind": "machine", "message": "n1: throttled"}]
    text = printed(*runs)
    assert text.startswith("all_reduce on 2 gloo ranks takes 100 us at 1M ")
    assert "1 WARN: 1.jsonl: n1: throttled" in text
    first = text.partition("\n\n")[0]
    assert first.count("NO REFERENCE") == 1 and "throttled" not in text[len(first) : -len(first)]


@pytest.mark.parametrize("field", ["dtype", "mode", "backend"])
def test_runs_of_other_cases_or_settings_have_their_own_tables(field):
    values = {"dtype": "float16", "mode": "blocking", "backend": "nccl"}
    other = run(result(2, case=case(**{field: values[field]})), ranks=2, path=Path("other.jsonl"))
    text = printed(*fleet(2), other)
    assert text.count(" correct\n") == 1 and "\n2 runs: 0.jsonl, 1.jsonl\n" in text
    assert "\nother.jsonl\n" in text


def test_runs_with_another_label_or_library_are_not_one_table():
    one, two, three = fleet(3)
    one.header |= {"spec": {"labels": {"run": "1"}}}
    two.header |= {"spec": {"labels": {"run": "2"}}}
    three.header |= {"spec": {"labels": {"cell": "ring"}}}
    assert same_cases([one, two, three], [summarise_run(r) for r in (one, two, three)]) == [
        [0, 1],
        [2],
    ]
    two.header |= {"environment": {**two.environment, "torch": "2.14.0"}}
    assert len(same_cases([one, two], [summarise_run(r) for r in (one, two)])) == 2


def test_labels_of_a_place_are_one_setting_and_others_a_table_each():
    runs = fleet(24)
    for number, each in enumerate(runs):
        each.header |= {"spec": {"labels": {"node": f"n{number % 4}", "rack": "r1"}}}
    assert "reaches 21.0 GB/s of busbw at 4M, medians of 24 runs" in " ".join(
        printed(*runs).split()
    )
    for number, each in enumerate(runs):
        each.header |= {"spec": {"labels": {"cell": ("ring", "tree")[number % 2]}}}
    text = printed(*runs)
    assert text.startswith("24 runs: ") and text.count("\n12 runs: ") == 2


def test_a_matrix_of_several_runs_has_medians_and_the_range():
    runs = [
        run(
            *(
                result(
                    2,
                    case=case(collective=name, op=op, size_bytes=size),
                    size_bytes=size,
                    time_ns={"host": [[ns] * 21] * 2},
                )
                for name, op in (("all_reduce", "sum"), ("all_gather", None))
                for size in (1024, 1 << 20, 4 << 20)
            ),
            ranks=2,
            path=Path(f"{ns}.jsonl"),
        )
        for ns in (1_000_000, 2_000_000, 4_000_000)
    ]
    lines = [" ".join(line.split()) for line in printed(*runs).splitlines()]
    # 1K in a millisecond is 0.001 GB/s: its times. 4M in 1, 2, 4 ms: 4.194, 2.097, 1.049 GB/s of
    # all_reduce on 2 ranks; all_gather's busbw is half of its algbw.
    assert "1K 2.00 ms (1.00 to 4.00 ms) 2.00 ms (1.00 to 4.00 ms)" in lines
    assert "4M 2.097 (1.049 to 4.194) 1.049 (0.524 to 2.097)" in lines
    assert sum("median of 3 runs (low to high)" in line for line in lines) == 1


def test_what_failed_among_many_is_named():
    bad = run(not_run("timeout", "no word from rank 1"), path=Path("bad.jsonl"))
    text = printed(*fleet(24), bad)
    assert " ".join(text.replace(";", "").split()).startswith(
        "25 runs: 1 FAIL: bad.jsonl: 1 of 1 case failed: all_reduce 64M: no word from rank 1 "
        "all_reduce on 2 gloo ranks takes 100 us at 1M and reaches 21.0 GB/s of busbw at 4M, "
        "medians of 24 runs between runs a case varies by 1.50x (median), at most 1.50x "
        "(all_reduce 1M) 48 of 48 "
    )
    assert "\n1 case without a result: bad.jsonl (timeout)\n" in text


def test_a_verdict_above_the_programs_of_one_file():
    """Ten programs, one file: which is worst, by its collective."""
    names = ("all_gather", "broadcast", "reduce")
    runs = [
        run(result(case=case(collective=name)), path=Path("job.out")) for name in names[:-1]
    ] + [run(not_run("failed", "x", collective="reduce"), path=Path("job.out"))]
    out = io.StringIO()
    show(*runs, file=out)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith(
        "3 runs: 1 FAIL: run 3 (reduce): 1 of 1 case failed: reduce 64M: x; 2 cases"
    )
    assert lines.count("run 1 (all_gather)") == lines.count("run 2 (broadcast)") == 1


@pytest.mark.parametrize(
    ("words", "text", "level"),
    [
        (["PASS", "PASS"], "2 runs: 2 PASS", "good"),
        (["PASS", "NO REFERENCE"], "2 runs: 1 PASS, 1 NO REFERENCE", ""),
        (
            ["PASS", "WARN", "NO REFERENCE"],
            "3 runs: 1 WARN, 1 PASS, 1 NO REFERENCE: b: why-b",
            "doubt",
        ),
        (["FAIL", "FAIL", "PASS"], "3 runs: 2 FAIL, 1 PASS: a: why-a; b: why-b", "bad"),
        (["WARN", "CANNOT TELL"], "2 runs: 1 CANNOT TELL, 1 WARN: b: why-b", "doubt"),
        (
            ["NO REFERENCE", "NO REFERENCE"],
            "2 runs, none judged: a: NO REFERENCE why-a; b: NO REFERENCE why-b",
            "",
        ),
    ],
)
def test_one_verdict_of_several(words, text, level):
    named = [
        (name, Verdict((Phrase(word, f"why-{name}"), Phrase("", "more"))))
        for name, word in zip("abc", words, strict=False)
    ]
    answer = over_all(named)
    assert (answer.text, answer.level) == (text, level)
    every = ("FAIL", "CANNOT TELL", "WARN", "PASS", "NO REFERENCE")
    assert answer.counts == {word: words.count(word) for word in every}
    worst = next(word for word in every if word in words)
    named_worst = [name for name, word in zip("abc", words, strict=False) if word == worst]
    assert answer.worst == (() if worst == "PASS" else tuple(named_worst))


def test_runs_that_nothing_judged_are_not_green():
    named = [(name, Verdict((Phrase(word, "x"),))) for name, word in
             (("a", "PASS"), ("b", NO_REFERENCE), ("c", NO_REFERENCE))]  # fmt: skip
    rows = [summarise_run(run(result())) for _ in named]
    verdicts = [verdict for _, verdict in named]
    answer = runs_answer(["a", "b", "c"], verdicts, rows, [[0, 1, 2]])
    assert answer.level == ""
    assert "1 of 3 judged: 1 PASS" in answer.text


def test_the_reason_is_that_of_the_word_and_which_runs_have_it():
    """A WARN may begin with what is well; runs of one reason share it."""
    facts = Phrase("PASS", "369 GB/s"), Phrase("WARN", "NVLS not in use"), Phrase("", "no values")
    well = Verdict(facts)
    late = Verdict((Phrase("WARN", "throttled"), Phrase("PASS", "x")))
    named = [(f"{n}.jsonl", verdict) for n, verdict in enumerate([well, well])]
    assert over_all(named).text == "2 runs: 2 WARN: NVLS not in use"
    named = [(f"{n}.jsonl", verdict) for n, verdict in enumerate([well, late, well])]
    assert over_all(named).text == (
        "3 runs: 3 WARN: 0.jsonl and 1 more: NVLS not in use; 1.jsonl: throttled"
    )
    # Runs with the same cases and settings and one remedy: the figures of the first stand for all.
    few = [Verdict((Phrase("WARN", f"{n} GB/s", next_step="log"),)) for n in (65, 64, 60)]
    named = [(f"{n}.jsonl", verdict) for n, verdict in enumerate([*few, late])]
    assert over_all(named, groups=[[0, 1], [2], [3]]).text.startswith(
        "4 runs: 4 WARN: 0.jsonl and 1 more: 65 GB/s; 2.jsonl: 60 GB/s; 3.jsonl: throttled"
    )
    failed = [Verdict((Phrase("FAIL", str(n)),)) for n in range(5)]
    named = [(f"{n}.jsonl", verdict) for n, verdict in enumerate(failed)]
    assert over_all(named).text == (
        "5 runs: 5 FAIL: 0.jsonl: 0; 1.jsonl: 1; 2.jsonl: 2; and 2 more"
    )


def many_ranks(ranks: int):
    """Each rank 100 us but rank 7, 130, and rank 9, 80; eight ranks a host."""
    own = [100_000] * ranks
    own[7], own[9] = 130_000, 80_000
    times = [[ns] * 21 for ns in own]
    members = [{"rank": r, "host": f"n{r // 8}", "device": "cpu"} for r in range(ranks)]
    return run(result(ranks, time_ns={"host": times}), ranks=ranks, members=members)


def test_of_more_than_64_ranks_the_extremes_are_shown():
    text = printed(many_ranks(80), view="ranks")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "9 n1 cpu 80.00 us 0 ns 0" in lines
    assert "7 n0 cpu 130.0 us 50.00 us 100" in lines
    assert "the 8 ranks at each end, of 80 (--all shows every rank)" in lines
    assert sum("cpu" in line.split() for line in lines) < 20
    whole = printed(many_ranks(80), view="ranks", every=True)
    assert sum(line.split()[1:3] == ["n9", "cpu"] for line in whole.splitlines()) == 8
    assert len(whole.splitlines()) > 85


def test_all_is_an_option(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for one in fleet(21):
        save(one, one.path)
    assert main(["show", "*.jsonl"]) == 0
    short = capsys.readouterr().out
    assert main(["show", "*.jsonl", "--all"]) == 0
    long = capsys.readouterr().out
    assert len(short.splitlines()) < 40 < 21 * 10 < len(long.splitlines())


def test_on_a_terminal_the_verdict_comes_first_and_last(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    show(run(result()), file=out)
    lines = out.text().splitlines()
    # 64M in 1 ms, times 2 x 7/8.
    measured = "all_reduce on 8 gloo ranks takes 1.00 ms and reaches 117 GB/s of busbw at 64M"
    text = "\n".join(lines[:2])
    assert text == f"{measured}; 1 of 1 case correct; time to first result 5.00 ms; {NONE}"
    assert out.getvalue().startswith(f"\x1b[1m{measured}\x1b[0m; 1 of 1")  # no colour, no verdict
    assert lines[-1] == measured
