"""Sides on different hardware: what may be said of them, and how it is shown."""

import json

from made_runs import given, measured, run

from torchcoll.cli import main
from torchcoll.core.file import save
from torchcoll.core.result import Verification
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.conclusion_show import answer_of
from torchcoll.questions.comparison.show import comparison_grids
from torchcoll.stats.sides import side

K, M = 1 << 10, 1 << 20
GPU = {"device": "cuda", "backend": "nccl"}
CPU = {"device": "cpu", "backend": "ccl"}
# busbw of all_reduce at 2 ranks is S / t: 64K in 20 us 3.28 GB/s, 1M in 45 us 23.3, 16M in 320 us
# 52.4 of nccl; 16M in 8 ms 2.10, 1M in 250 us 4.19 of ccl.
NCCL = {K: 10_000, 64 * K: 20_000, M: 45_000, 16 * M: 320_000}
CCL = {K: 50_000, 64 * K: 60_000, M: 250_000, 16 * M: 8_000_000}


def sides(of_nccl=None, of_ccl=None):
    """Both sides, one run each."""
    return tuple(
        side(
            name,
            run(
                *(measured(ns, size_bytes=n, **where, **(of or {})) for n, ns in times.items()),
                device_name=device,
            ),
        )
        for name, times, where, device, of in (
            ("nccl", NCCL, GPU, "H100", of_nccl),
            ("oneccl", CCL, CPU, "Xeon", of_ccl),
        )
    )


def lines_of(comparison):
    """Every line of the tables, blanks in one."""
    lines = []
    for grid in comparison_grids(comparison):
        rows = [[head.text for head in grid.heads], *grid.rows] if grid.rows else []
        lines += [*grid.above, *(" | ".join(row) for row in rows), *grid.below]
    return lines


def test_one_sentence_says_what_may_be_said():
    base, new = sides(of_nccl={"cold_ns": [[3_000_000, 9]] * 2}, of_ccl={"cold_ns": []})
    # Half of 52.4 lies above 26.2, half of 4.19 above 1.09 (64K in 60 us).
    assert answer_of(compare(base, new)).text == (
        "nccl reaches 52.4 GB/s busbw, oneccl 4.19; no ratio (different hardware: devices cuda and "
        "cpu); half-bandwidth size: nccl 1M to 16M, "
        "oneccl 64K to 1M; latency floor: nccl 10.00 us at 1K, oneccl 50.00 us at 1K; first call: "
        "nccl 3.00 ms, oneccl not known"
    )
    assert answer_of(compare(base, new)).level == "doubt"


def test_it_covers_all_collectives():
    gather = {"collective": "all_gather", "op": None, "in_place": False}
    runs = []
    for where, device, factor in ((GPU, "H100", 1), (CPU, "Xeon", 2)):
        cases = [
            measured(factor * ns, size_bytes=n, **where, **what)
            for what, scale in (({}, 1), (gather, 3))
            for n, ns in ((n, scale * ns) for n, ns in NCCL.items())
        ]
        runs.append(run(*cases, device_name=device))
    text = answer_of(compare(runs[0], runs[1])).text
    assert "latency floor over 2 tables: base 10.00 us to 30.00 us at 1K, new 20.00 us to" in text
    assert "half-bandwidth size over 2 tables: base 1M to 16M, new 1M to 16M" in text


def test_other_numbers_of_ranks_have_a_line_and_a_place_in_the_answer():
    base, new = (
        run(measured(9_000, ranks=8, **GPU), ranks=8, device_name="H100"),
        run(measured(9_000, ranks=2, **CPU), device_name="Xeon"),
    )
    comparison = compare(side("nccl", base), side("oneccl", new))
    assert (
        "ranks: nccl 8, oneccl 2: time and busbw change with the number of ranks, whatever the "
        "library"
    ) in lines_of(comparison)
    # 1K in 9 us, x 1.75 and x 1.
    start = "nccl reaches 0.199 GB/s busbw on 8 ranks, oneccl 0.114 on 2 ranks; no ratio "
    assert answer_of(comparison).text.startswith(start)
    assert "ranks: " not in answer_of(compare(*sides())).text


def test_faults_are_not_hidden_by_the_hardware():
    base, new = sides()
    new.runs[0].results[3].verification = Verification(checked=100, wrong=5)
    answer = answer_of(compare(base, new))
    assert answer.headline == "1 case wrong in new: 5 of 100" and answer.level == "bad"


def test_the_best_at_the_largest_size_may_not_be_the_limit():
    lines = lines_of(compare(*sides()))
    assert "best busbw (GB/s) | 52.429 | 4.194" in lines
    assert "best busbw at | 16M | 1M" in lines
    assert "nccl: the best is that of its largest size, 16M; larger sizes may reach more" in lines
    assert not any(line.startswith("oneccl: the best is") for line in lines)


def test_settings_of_both_sides_are_one_table():
    base = run(measured(9_000, **GPU), variables={"NCCL_ALGO": "Ring"}, device_name="H100")
    new = run(
        given(9_000, **CPU, clock="host"), source={"tool": "oneCCL benchmark"}, labels={"site": "a"}
    )
    comparison = compare(side("nccl", base), side("oneccl", new))
    lines = lines_of(comparison)
    start = lines.index("settings that differ | nccl | oneccl")
    table = lines[start:]
    for row in (
        "backend | nccl | ccl",
        "device | cuda | cpu",
        "label=site | none | a",
        "source | torchcoll | oneCCL benchmark",
    ):
        assert row in table
    (alone,) = (line for line in table if line.startswith("recorded for nccl only: "))
    assert "NCCL_ALGO Ring" in alone and "kernel 6.1" in alone
    assert not any("does not tell" in line or "differences:" in line for line in lines)
    assert not any(line.startswith("side by side") for line in lines)


def test_settings_are_in_json(in_tmp_path, capsys):
    for name, one in zip("ab", sides(), strict=True):
        save(one.runs[0], f"{name}.jsonl")
    assert main(["compare", "nccl=a.jsonl", "oneccl=b.jsonl", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name": "backend", "base": ["nccl"], "new": ["ccl"], "where": ""} in found["settings"]
    (profile,) = found["profiles"]
    assert profile["base"]["best_bytes"] == 16 * M and profile["new"]["ranks"] == [2]


def test_settings_stand_beside_csv(in_tmp_path, capsys):
    save(sides()[0].runs[0], "a.jsonl")
    save(run(given(9_000, **CPU), source={"tool": "oneCCL benchmark"}), "b.jsonl")
    assert main(["compare", "nccl=a.jsonl", "oneccl=b.jsonl", "--format", "csv"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "torchcoll: differs: backend: nccl -> ccl" in lines
    assert "torchcoll: differs: kernel: 6.1 -> not known" in lines


def test_cases_of_one_side_are_a_line_a_side():
    names = ("all_gather", "all_to_all", "reduce_scatter")
    more = [measured(9, size_bytes=K, collective=n, op=None, **GPU) for n in names[:2]]
    base, new = sides()
    base.runs[0].results += more
    new.runs[0].results.append(measured(9, size_bytes=K, collective=names[2], **CPU))
    comparison = compare(base, new)
    alone = [line for line in lines_of(comparison) if " only" in line]
    assert alone == [
        "2 cases only in nccl: all_gather, all_to_all",
        "1 case only in oneccl: 1K",
    ]


def test_a_library_called_from_cpp_is_not_one_called_through_torch():
    direct = run(given(5_000, clock="host"), source={"tool": "oneCCL benchmark"})
    for base, new in (
        (side("bench", direct), side("torchcoll", run(measured(9_000)))),
        (side("torchcoll", run(measured(9_000))), side("bench", direct)),
    ):
        assert answer_of(compare(base, new)).details[-1] == (
            "bench calls oneCCL from C++, torchcoll goes through torch.distributed, which added "
            "about 9 us a call to ccl on 2 cores"
        )
    other = run(given(6_000, clock="host"), source={"tool": "oneCCL benchmark"})
    assert "C++" not in answer_of(compare(direct, other)).text


def test_nccl_and_rccl_run_on_gpus_of_two_vendors():
    base, new = (
        run(
            *(given(9_000 * n, size_bytes=1024 * n) for n in (1, 2)),
            source={"tool": "nccl-tests"},
            header={"environment": {"libraries": {"nccl": library}}},
        )
        for library in ("NCCL 2.26.2", "RCCL 2.27.7")
    )
    answer = answer_of(compare(base, new))
    assert "no ratio (different hardware: GPUs of NVIDIA and AMD)" in answer.text
