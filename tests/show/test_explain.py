"""Where a figure comes from, with the numbers of the row filled in."""

from dataclasses import replace

import pytest
from error_form import error_text
from handmade import MIB, case, result, run

from torchcoll.cli import main
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.file import save
from torchcoll.core.result import Reported, Verification


@pytest.fixture
def folder(in_tmp_path):
    # 64 MiB in 1 ms: 67.108864 GB/s; x 2 x 7 / 8 = 117.440512. 1 MiB in 1 ms: 1.048576.
    small = result(case=case(size_bytes=MIB, collective="broadcast", op=None, root=0))
    save(run(result(), small), "a.jsonl")
    return in_tmp_path


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_a_case(folder, capsys):
    assert main(["show", "a.jsonl", "--explain", "all_reduce", "64M"]) == 0
    out = lines(capsys)
    assert out[2] == "all_reduce 64M float32 sum on gloo, 8 ranks, cpu"
    assert "algbw: 67.109 GB/s = 67108864 B / 1.000 ms" in out
    assert "busbw: 117.441 GB/s = 67.109 x 1.75, which is 2 (n - 1) / n for n = 8 ranks" in out
    assert any(
        line.startswith("busbw: bus factor: each rank sends n - 1 of the n blocks") for line in out
    )
    assert out[-1] == "busbw 117.441 GB/s = 67108864 B / 1.000 ms x 1.75"


def test_figures_of_a_source_and_figures_from_its_time(in_tmp_path, capsys):
    """A source that gives 64 MiB in 1 ms and nothing else: both bandwidths are worked out."""
    told = result(time_ns={}, cold_ns=[], reported=Reported(1e6, "mean", "max", "host"))
    save(run(told), "time.jsonl")
    assert main(["show", "time.jsonl", "--explain", "all_reduce", "64M"]) == 0
    assert "algbw: 67.109 GB/s = 67108864 B / 1.000 ms" in lines(capsys)
    own = Reported(None, "mean", "max", "host", algbw_gbps=60.0, busbw_gbps=105.0)
    save(run(replace(told, reported=own)), "rates.jsonl")
    assert main(["show", "rates.jsonl", "--explain"]) == 0
    out = lines(capsys)
    (busbw,) = (line for line in out if line.startswith("busbw: "))
    assert busbw.startswith("busbw: 105.000 GB/s as the source has it; bus factor 2 (n - 1) / n:")
    assert out[-1] == "busbw 105.000 GB/s, as the source has it; no time"
    assert "algbw: 60.000 GB/s as the source has it" in out


def test_the_largest_case_unless_one_is_named(folder, capsys):
    assert main(["show", "a.jsonl", "--explain"]) == 0
    out = lines(capsys)
    assert "(1 further row: name a collective or a size for another)" in out
    assert out[-1] == "busbw 117.441 GB/s = 67108864 B / 1.000 ms x 1.75"


def test_both_placements_of_one_size_are_explained(in_tmp_path, capsys):
    """1 MiB in 100 us and in 200 us on 8 ranks: 10.48576 and 5.24288, x 1.75."""
    rows = [(False, 1e5), (True, 2e5)]
    results = [
        result(
            case=case(size_bytes=MIB, in_place=in_place),
            time_ns={},
            cold_ns=[],
            reported=Reported(ns, "mean", "max", "host"),
        )
        for in_place, ns in rows
    ]
    save(run(*results), "both.jsonl")
    assert main(["show", "both.jsonl", "--explain", "1M"]) == 0
    out = "\n".join(lines(capsys)).replace("\n  ", " ")
    assert out.startswith(
        "out of place: busbw 18.350 GB/s = 1048576 B / 100.0 us x 1.75; "
        "in place: busbw 9.175 GB/s = 1048576 B / 200.0 us x 1.75\n"
    )
    assert "float32 sum on gloo, out of place, 8 ranks" in out
    assert "float32 sum on gloo, in place, 8 ranks" in out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("a.jsonl --explain busbv", 2,
            error_text("explain", "busbv", "a size, or one of all_reduce, ")),
        ("a.jsonl --explain all_gather", 2, error_text("case", "all_gather",
            "one of the file's: all_reduce 64M, broadcast 1M")),
        ("a.jsonl --format json --explain", 2,
            error_text("format", "json", "table with --explain")),
        ("b.jsonl --explain", 3, "file: got b.jsonl, expected a file that exists"),
    ],
)  # fmt: skip
def test_errors(folder, capsys, words, code, text):
    assert main(["show", *words.split()]) == code
    assert capsys.readouterr().err.startswith(f"torchcoll: error: {text}")


def test_a_wrong_result_is_in_the_sentence(in_tmp_path, capsys):
    save(run(result(verification=Verification(checked=100, wrong=7))), "wrong.jsonl")
    assert main(["show", "wrong.jsonl", "--explain", "64M"]) == 0
    assert lines(capsys)[0] == (
        "wrong results, so no figure counts: busbw 117.441 GB/s = 67108864 B / 1.000 ms x 1.75"
    )


def test_the_formulas_are_the_factors():
    """Each formula in words, worked out by hand for 8 ranks."""
    by_hand = {"2 (n - 1) / n": 1.75, "(n - 1) / n": 0.875, "1": 1.0}
    for entry in COLLECTIVES.values():
        if entry.has_data:
            assert entry.bus_factor(8) == by_hand[entry.factor[0]], entry.name


def test_uneven_blocks_of_coalesced_calls(in_tmp_path, capsys):
    """4 x 30,000,000 B of the busiest rank in 1 ms: 120 GB/s."""
    wanted = case(collective="all_to_all_v", op=None, in_place=False, coalesce=4)
    save(run(result(case=wanted, busiest_bytes=30_000_000)), "a.jsonl")
    assert main(["show", "a.jsonl", "--explain"]) == 0
    out = lines(capsys)
    assert out[-1] == "busbw 120.000 GB/s = 4 x 30000000 B of the busiest rank / 1.000 ms"
    (busbw,) = (line for line in out if line.startswith("busbw: "))
    assert busbw.startswith("busbw: 120.000 GB/s = 4 x 30000000 B / 1.000 ms: what the busiest")


@pytest.mark.parametrize(
    ("collective", "reported", "last"),
    [
        # 64 MiB in 1 ms. The factor of broadcast is 1 whatever the number of ranks.
        ("broadcast", {}, "busbw 67.109 GB/s = 67108864 B / 1.000 ms x 1"),
        ("all_reduce", {"busbw_gbps": 105.0}, "busbw 105.000 GB/s, as the source has it"),
        ("all_reduce", {}, "time 1.000 ms: no busbw; the number of ranks is not known"),
        ("hypercube", {"algbw_gbps": 5.0}, "time 1.000 ms: no busbw; the number of ranks is not"),
    ],
)
def test_a_table_without_ranks(in_tmp_path, capsys, collective, reported, last):
    op, root = ("sum" if collective == "all_reduce" else None), None
    wanted = case(collective=collective, op=op, root=root)
    figures = Reported(1e6, "mean", "max", "host", **reported)
    save(run(result(0, case=wanted, time_ns={}, cold_ns=[], reported=figures)), "a.jsonl")
    assert main(["show", "a.jsonl", "--explain"]) == 0
    assert lines(capsys)[-1].startswith(last)


def test_a_name_with_blanks(in_tmp_path, capsys):
    save(run(result()), "my run.jsonl")
    assert main(["show", "my run.jsonl", "--explain", "all_reduce 64M"]) == 0
    assert lines(capsys)[2].startswith("all_reduce 64M")
