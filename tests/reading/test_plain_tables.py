"""Tables in Markdown as people publish them: units in brackets, quotes, columns of tests."""

import pytest

from torchcoll.core.summary import summarise


def rows(imported, text, name="results.md", **options):
    imported_file = imported(text, name, **options)
    return imported_file, [
        summarise(result) for run in imported_file.runs for result in run.results
    ]


@pytest.mark.parametrize(
    "heading",
    [
        "| Size | Time (us) | BusBW (GB/s) |",
        "| Size (B) | Time [us] | BusBW [GB/s] |",
        "| Size | Latency (µs) | busbw (GB/s) |",
        "|Size|Time (us)|BusBW (GB/s)|",
        "Size (B) | Time (us) | BusBW (GB/s)",  # Markdown allows a table without outer bars
        "| **Size** | **Time (us)** | **BusBW (GB/s)** |",
        "> | Size | Time (us) | BusBW (GB/s) |",
        "- | Size (B) | Time (us) | BusBW (GB/s) |",
        "[2026-07-20 19:33:49,123] | Size | Time (us) | BusBW (GB/s) |",
    ],
)
def test_heads_with_units_in_brackets(imported, heading):
    """2^20 bytes in 2,169.8 us are 0.4833 GB/s, of 8 ranks 0.8457 GB/s of busbw."""
    before = heading.partition("|")[0] if heading.endswith("|") else ""
    cells = ("1048576", "2,169.8", "0.85")
    row = " | ".join(cells) if heading[0] == "S" else f"{before}| {' | '.join(cells)} |"
    rule = f"{before}|---|---|---|"
    text = f"{before if before == '> ' else ''}### all_reduce\n\n{heading}\n{rule}\n{row}\n"
    result, (first,) = rows(imported, text, ranks=8)
    assert (result.rows, result.refused) == (1, [])
    assert (first.collective, first.size_bytes, first.median_ns) == ("all_reduce", 1 << 20, 2169800)
    assert first.busbw_gbps == pytest.approx(0.84567, rel=1e-4)


def test_a_map_finds_columns_with_units(imported):
    text = "### broadcast\n| Size | Time (us) | BusBW (GB/s) |\n|--|--|--|\n| 1M | 100 | 10.49 |\n"
    columns = {"size": "Size", "time": "Time (us)"}
    (row,) = rows(imported, text, columns=columns)[1]
    assert row.median_ns == 100_000


TESTS = """\
## Results on 8 GPUs

| Test | Size | Time (us) | ranks |
|------|------|-----------|-------|
| AllReduce | 1M | 100 | 8 |
| all_gather_perf | 1M | 200 | 8 |
| p2p write | 1M | 20 | 8 |
"""


def test_a_column_of_tests_names_the_collective(imported):
    result, (first, second) = rows(imported, TESTS, "all_reduce.md")
    assert (first.collective, second.collective) == ("all_reduce", "all_gather")
    assert [(r.line, r.reason) for r in result.refused] == [
        (7, "p2p write is no collective that torchcoll has: give --collective")
    ]


def test_a_column_of_numbered_tests_leaves_the_heading(imported):
    heading = "## all_gather\n| Test | Size | Time (us) |\n|--|--|--|\n"
    _, several = rows(imported, f"{heading}| 1 | 1M | 5 |\n| Run #2 | 1M | 6 |\n")
    assert [row.collective for row in several] == ["all_gather", "all_gather"]


def test_a_table_that_contradicts_itself_shows_what_it_gives(imported):
    """16 GiB in 69.3 us would be 247,906 GB/s, and on 8 ranks 433,835 GB/s of busbw: the time is
    in ms, and its heading does not say so.
    """
    text = "## all_reduce\n| Size | Time | BusBW (GB/s) |\n|--|--|--|\n| 16GB | 69.3 | 330.93 |\n"
    result, (row,) = rows(imported, text, ranks=8)
    assert row.busbw_gbps == 330.93
    assert row.algbw_gbps is None  # the table has none, and what follows from the time cannot be
    (warning,) = result.runs[0].results[0].warnings
    assert warning == "given busbw 330.93 GB/s, but 433835 follows from size, time and ranks"


def test_a_contradiction_survives_the_result_file(imported, tmp_path):
    from torchcoll.core.file import save
    from torchcoll.reading.inputs import load

    text = "## all_reduce\n| Size | Time | BusBW (GB/s) |\n|--|--|--|\n| 16GB | 69.3 | 330.93 |\n"
    save(imported(text, "t.md", ranks=8).runs[0], tmp_path / "run.jsonl")
    (result,) = load(tmp_path / "run.jsonl").results
    assert summarise(result).busbw_gbps == 330.93


BLANKS = """\
Before:
size(B)     count     type      redop     latency(us)       algbw(GB/s)   busbw(GB/s)
1048576     262144    int       sum       58.9              17.803        31.155
After:
size(B)     count     type      redop     latency(us)       algbw(GB/s)   busbw(GB/s)
1048576     262144    int       sum       29.45             35.606        62.310
done
"""
BOX = """\
+---------+-----------+
| size    | all time (us) |
+=========+===========+
| 1M      | 100       |
+---------+-----------+
"""


def test_columns_between_blanks(imported):
    """busbw / algbw is 1.75: an all_reduce of 8 ranks. Two tables of the same cases stay apart."""
    result, shown = rows(imported, BLANKS, "t.txt")
    assert [(row.collective, row.ranks, row.median_ns) for row in shown] == [
        ("all_reduce", 8, 58900),
        ("all_reduce", 8, 29450),
    ]
    assert [run.labels["table"] for run in result.runs] == ["Before", "After"]


@pytest.mark.parametrize("line", ["|", "\u2502"])
def test_a_box(imported, line):
    text = "# all_gather\n" + BOX.replace("|", line).replace("all time", "time")
    result, (row,) = rows(imported, text, "t.txt")
    assert (row.collective, row.size_bytes, row.median_ns) == ("all_gather", 1 << 20, 100_000)
    assert result.refused == []


def test_a_name_of_a_system_above_times(imported):
    text = "# all_reduce\n| Payload Sz | NCCL (us) | p99 |\n|--|--|--|\n| 1M | 100 | 200 |\n"
    assert rows(imported, text)[1][0].median_ns == 100_000


def test_several_systems_need_a_choice(tmp_path):
    import torchcoll
    from torchcoll.core.errors import UnreadableError

    path = tmp_path / "t.md"
    path.write_text("# all_reduce\n| Size | NCCL (us) | Mine (us) |\n|--|--|--|\n| 1M | 1 | 2 |\n")
    with pytest.raises(UnreadableError) as caught:
        torchcoll.load(path)
    assert "several columns of time: 'NCCL (us)', 'Mine (us)': name one by --map" in str(
        caught.value
    )
    assert f"torchcoll convert {path} --map 'size=Size,time=NCCL (us)' -o RUN" in str(caught.value)


def test_a_letter_is_no_unit(imported):
    """Modes S and D of a transfer, in GB/s: no times in seconds."""
    from torchcoll.core.errors import UnreadableError

    with pytest.raises(UnreadableError):
        imported("| Size | Direct S | Other S |\n|--|--|--|\n| 1M | 1 | 2 |\n", "t.md")


def test_cells_with_units(imported):
    text = "# all_reduce\n| Size | Time | BusBW |\n|--|--|--|\n| 1M | 100 us | 391.8 Gb/s |\n"
    (row,) = rows(imported, text)[1]
    assert (row.median_ns, row.busbw_gbps) == (100_000, pytest.approx(48.975))
