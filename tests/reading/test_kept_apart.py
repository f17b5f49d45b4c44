"""Tables that their author kept apart stay apart, with the line above as their label."""

import pytest

import torchcoll

HEADING = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n"
)
START = "# nThread 1 nGpus 4 minBytes 268435456\n# Collective test starting: all_reduce_perf\n"


def rows(factor=1.0, sizes=(134217728, 268435456)):
    """Rows of 4 ranks at 226 GB/s, divided by factor."""
    return "".join(
        f"  {size}  {size // 4}  float  sum  -1  {size / 226e3 * factor:.2f}  {226 / factor:.2f}  "
        f"{339 / factor:.2f}  0\n"
        for size in sizes
    )


@pytest.fixture
def read(tmp_path):
    def load(text):
        path = tmp_path / "sweep.log"
        path.write_text(text)
        runs = torchcoll.load(tmp_path)
        labels = [run.labels.get("table") for run in runs]
        return labels, [[r.case.size_bytes for r in run.results] for run in runs], runs

    return load


SIZES = [134217728, 268435456]


def test_a_line_above_sizes_that_start_again(read):
    text = START + HEADING
    text += "".join(f"### ALGO={name}\n{rows(n)}" for n, name in ((1, "Ring"), (1.9, "Tree")))
    labels, sizes, runs = read(text + "# Avg bus bandwidth    : 250\n")
    assert labels == ["ALGO=Ring", "ALGO=Tree"]
    assert sizes == [SIZES, SIZES]
    assert [run.ranks for run in runs] == [4, 4]
    assert runs[0].ending == runs[1].ending == ""


def test_before_and_after_with_a_heading_each(read):
    labels, sizes, _ = read(
        f"Before:\n{START}{HEADING}{rows()}\nAfter:\n{HEADING}{rows(1.6)}"
        "# Avg bus bandwidth    : 200\n"
    )
    assert (labels[1], sizes) == ("After", [SIZES, SIZES])


def test_a_footer_ends_a_table(read):
    footer = "# Avg bus bandwidth    : 339\n"
    _, sizes, _ = read(START + HEADING + rows() + footer + rows(1.2) + footer)
    assert sizes == [SIZES, SIZES]


def test_sizes_that_start_again_without_a_word_are_cycles_of_one_test(read):
    """nccl-tests -N 2 prints the table twice below one heading."""
    _, sizes, _ = read(START + HEADING + rows() + rows() + "# Avg bus bandwidth    : 339\n")
    assert sizes == [SIZES + SIZES]
