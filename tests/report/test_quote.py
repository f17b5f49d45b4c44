"""``show --quote``: a run as a block of Markdown."""

from handmade import case, result, run

from torchcoll.cli import main
from torchcoll.core.file import save


def test_a_block_for_an_issue(tmp_path, capsys):
    sizes = [result(case=case(size_bytes=8 << n), size_bytes=8 << n) for n in (20, 0, 10)]
    launch = run(
        *sizes, header={"argv": ["-b", "8", "--label", "site=a b"], "run_id": "80f257f7d1a8"}
    )
    save(launch, tmp_path / "a run.jsonl")
    assert main(["show", str(tmp_path / "a run.jsonl"), "--quote"]) == 0
    answer, table, facts = capsys.readouterr().out.strip().split("\n\n")
    assert answer.startswith("**all_reduce on 8 gloo ranks takes 1.00 ms at 8 B and reaches ")
    # The smallest and the largest size: 8 M in 1 ms are 8.39 GB/s, times 2 x 7/8.
    assert table.splitlines()[2:] == [
        "| all_reduce 8 | 1.000 ms | 910 us to 1.09 ms | 21 | \\<0.001 |",
        "| all_reduce 8M | 1.000 ms | 910 us to 1.09 ms | 21 | 14.680 |",
    ]
    lines = facts.splitlines()
    assert "- backend: gloo of torch 2.13.0; 8 ranks on vm, cpu" in lines
    assert "- mode: synchronized (a barrier before every call, outside the stamps)" in lines
    assert "- time = max over ranks, the slowest rank" in lines
    assert "- 1 more case in the file" in lines
    assert lines[-1] == (
        "- run 80f257f7d1a8, measured with -b 8 --label 'site=a b', again with torchcoll again "
        "80f257f7d1a8"
    )


def test_the_bandwidth_of_the_answer_has_a_row(tmp_path, capsys):
    times = {8: 100_000, 1 << 20: 500_000, 8 << 20: 9_000_000}
    sizes = [
        result(case=case(size_bytes=size), size_bytes=size, time_ns={"host": [[ns] * 21] * 8})
        for size, ns in times.items()
    ]
    save(run(*sizes), tmp_path / "run.jsonl")
    assert main(["show", str(tmp_path / "run.jsonl"), "--quote"]) == 0
    answer, table, _ = capsys.readouterr().out.strip().split("\n\n")
    # 1 MiB in 500 us are 2.097 GB/s, times 2 x 7/8; 8 MiB in 9 ms are less.
    assert "reaches 3.67 GB/s of busbw at 1M" in answer
    assert [row.split(" | ")[-1] for row in table.splitlines()[2:]] == [
        "\\<0.001 |",
        "3.670 |",
        "1.631 |",
    ]


def test_an_imported_run_cannot_be_measured_again(tmp_path, capsys):
    save(run(result(), header={"source": {"tool": "osu"}}), tmp_path / "run.jsonl")
    assert main(["show", str(tmp_path / "run.jsonl"), "--quote"]) == 0
    assert "again" not in capsys.readouterr().out
