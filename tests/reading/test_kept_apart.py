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
    assert [run.labels["NCCL_ALGO"] for run in runs] == ["Ring", "Tree"]
    assert labels == [None, None]
    assert sizes == [SIZES, SIZES]
    assert [run.ranks for run in runs] == [4, 4]
    assert runs[0].ending == runs[1].ending == ""


def test_before_and_after_with_a_heading_each(read):
    labels, sizes, _ = read(
        f"Before:\n{START}{HEADING}{rows()}\nAfter:\n{HEADING}{rows(1.6)}"
        "# Avg bus bandwidth    : 200\n"
    )
    assert (labels[1], sizes) == ("After", [SIZES, SIZES])


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("**Before** (torch 2.4.1)", "Before (torch 2.4.1)"),
        ("### `NCCL_NVLS_ENABLE=0`, _driver 535_:", "NCCL_NVLS_ENABLE=0, driver 535"),
        ("<summary><b>old_kernel</b> vs. none</summary>", "old_kernel vs. none"),
        ("- ***good*** node [gpu-17](https://wiki.example.org/gpu_17)", "good node gpu-17"),
    ],
)
def test_the_name_of_a_table_is_without_its_markdown(read, line, title):
    text = f"Good:\n\n```\n{START}{HEADING}{rows()}```\n\n{line}\n\n```\n{HEADING}{rows(1.6)}```\n"
    labels, _, _ = read(text)
    assert labels[1] == title


def test_a_footer_ends_a_table(read):
    footer = "# Avg bus bandwidth    : 339\n"
    _, sizes, _ = read(START + HEADING + rows() + footer + rows(1.2) + footer)
    assert sizes == [SIZES, SIZES]


def test_sizes_that_start_again_without_a_word_are_cycles_of_one_test(read):
    """nccl-tests -N 2 prints the table twice below one heading."""
    _, sizes, _ = read(START + HEADING + rows() + rows() + "# Avg bus bandwidth    : 339\n")
    assert sizes == [SIZES + SIZES]


# What launchers put in front of the lines of three nodes' own tests.
LAUNCHERS = {
    "pdsh": "node{n}: ",
    "srun -l": "{n}: ",
    "kubectl": "[pod/nccl-{n}/worker] ",
    "compose": "nccl-{n}  | ",
    "mpirun": "[1,{n}]<stdout>:",
    "torchrun": "[default{n}]:",
    "time and pod": "2026-07-20T19:33:4{n}.123Z [pod/nccl-{n}/worker] ",
    "ray": "(NcclTest pid=70{n}, ip=10.0.0.{n}) ",
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_tests_that_several_writers_print_line_by_line(read, launcher):
    """Node 2 is half as fast."""
    texts = [f"{START}{HEADING}{rows(factor)}" for factor in (1, 2, 1)]
    lines = zip(*(text.splitlines() for text in texts), strict=True)
    prefix = LAUNCHERS[launcher]
    _, sizes, runs = read(
        "".join(f"{prefix.format(n=n)}{line}\n" for each in lines for n, line in enumerate(each, 1))
    )
    assert sizes == [SIZES, SIZES, SIZES]
    assert [round(run.results[1].reported.time_ns / 1e6, 2) for run in runs] == [1.19, 2.38, 1.19]
    writers = [run.labels["writer"] for run in runs]
    assert len(set(writers)) == 3
    if launcher in ("pdsh", "kubectl", "compose"):
        assert [run.header["environment"]["host"] for run in runs] == writers


def test_one_writer_of_a_job_is_its_host(read):
    """Rank 0 prints the table, the other ranks print messages only."""
    lines = f"{START}{HEADING}{rows()}".splitlines()
    text = "".join(f"node1: {line}\nnode2: ready\n" for line in lines)
    _, sizes, (run,) = read(text)
    assert sizes == [SIZES]
    assert (run.header["environment"]["host"], run.labels.get("writer")) == ("node1", None)
