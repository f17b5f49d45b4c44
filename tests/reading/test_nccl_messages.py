"""NCCL's own messages in the output of nccl-tests: variables, version and choices of a run."""

import json

from torchcoll.cli import main

HEAD = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 8388608 step: 8(factor) warmup iters: 1 iters: 20 \
agg iters: 1 validation: 1 graph: 0
#
# Using devices
"""
RANKS = """\
#  Rank  0 Group  0 Pid 2000 on node0 device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid 2001 on node0 device  1 [0000:17:00] NVIDIA A100-SXM4-80GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   \
algbw   busbw #wrong
"""
_ROW = "{:12}{:14}     float     sum      -1" + "{:8.2f}{:8.2f}{:8.2f}      0" * 2 + "\n"


def summary_rows(us, gbps):
    """1 MiB, and 8 MiB in 100 us: 83.89 GB/s; two ranks have the factor 1."""
    small = _ROW.format(1 << 20, 1 << 18, *[us, gbps, gbps] * 2)
    large = _ROW.format(8 << 20, 2 << 20, *[100, 83.89, 83.89] * 2)
    return small + large + "# Out of bounds values : 0 OK\n#\n"


# 1048576 bytes in 50 us are 20.97 GB/s, in 80 us 13.11.
FAST, SLOW = summary_rows(50, 20.97), summary_rows(80, 13.11)


def message(text, rank=0):
    return f"node0:{2000 + rank}:{2100 + rank} [{rank}] NCCL INFO {text}\n"


def sets(name, value, rank=0):
    return message(f"{name} set by environment to {value}", rank)


def output(*messages, rows=FAST):
    return "# Collective test starting: all_reduce_perf\n" + HEAD + "".join(messages) + RANKS + rows


def variables(run):
    return run.environment.get("variables")


def test_variables_and_the_version_are_those_of_the_run(imported):
    result = imported(
        output(
            message("NCCL version 2.24.3+cuda12.8"),
            *(sets("NCCL_ALGO", "Tree", rank) for rank in (0, 1)),
            sets("NCCL_NTHREADS", "256."),
            message("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read"),
        )
    )
    (run,) = result.runs
    assert (result.rows, result.refused, result.warnings) == (2, [], [])
    assert variables(run) == {"NCCL_ALGO": "Tree", "NCCL_NTHREADS": "256"}
    assert run.environment["libraries"] == {"nccl": "NCCL 2.24.3+cuda12.8"}


def test_what_differs_between_processes_is_all_kept(imported):
    (run,) = imported(output(sets("NCCL_ALGO", "Ring"), sets("NCCL_ALGO", "Tree", 1))).runs
    assert variables(run) == {"NCCL_ALGO": "Ring | Tree"}


def test_other_variables_and_secrets_stay_private(imported):
    text = output(sets("NCCL_API_TOKEN", "hush"), sets("MY_OWN", "thing"), sets("HOME", "/h"))
    (run,) = imported(text).runs
    assert variables(run) == {"NCCL_API_TOKEN": "***"}
    assert "hush" not in json.dumps(run.header)


def test_choices_are_those_of_the_size(imported):
    line = "AllReduce: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}"
    small, large = line.format(1 << 20, "TREE", "LL128", 11), line.format(8 << 20, "RING", "LL", 23)
    gather = "AllGather: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"
    (run,) = imported(output(*[message(t) for t in (small, large, gather, small) * 3])).runs
    # Two placements a size; channels are counted from 0.
    assert [[(c.algorithm, c.protocol, c.channels) for c in r.choices] for r in run.results] == [
        [("TREE", "LL128", 12)],
        [("TREE", "LL128", 12)],
        [("RING", "LL", 24)],
        [("RING", "LL", 24)],
    ]


def test_each_run_of_a_file_has_its_own(imported):
    late = sets("NCCL_ALGO", "Tree", 1)  # before the heading of rank 0, which is buffered
    text = output(sets("NCCL_ALGO", "Ring")) + late + output() + output()
    assert [variables(run) for run in imported(text).runs] == [
        {"NCCL_ALGO": "Ring"},
        {"NCCL_ALGO": "Tree"},
        None,
    ]


def test_a_message_inside_a_row(imported):
    row, _, following = FAST.partition("\n")
    cut = row[:52] + sets("NCCL_PROTO", "LL") + row[52:] + "\n"
    (run,) = imported(output(rows=cut + following)).runs
    assert variables(run) == {"NCCL_PROTO": "LL"}
    assert [r.reported.time_ns for r in run.results] == [50_000, 50_000, 100_000, 100_000]


def test_the_version_in_rccls_log(imported):
    (run,) = imported(output(message("RCCL version 2.20.5+hip6.2"))).runs
    assert run.source["tool"] == "rccl-tests"
    assert run.environment["libraries"] == {"nccl": "RCCL 2.20.5+hip6.2"}


def files(folder):
    (folder / "auto.out").write_text(output(rows=SLOW))
    (folder / "ring.out").write_text(output(sets("NCCL_ALGO", "Ring"), rows=SLOW))
    (folder / "tree.out").write_text(output(sets("NCCL_ALGO", "Tree"), rows=FAST))


def test_algorithms_are_judged_from_nccl_tests(in_tmp_path, capsys):
    files(in_tmp_path)
    assert main(["algorithms", "."]) == 0
    # nccl-tests prints means, and of the ranks their mean.
    assert "\ntimes: mean over calls, mean over ranks, " in capsys.readouterr().out
    assert main(["algorithms", ".", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first = document["tables"][0]["rows"][0]
    assert (first["size_bytes"], first["best"]) == (1 << 20, "tree")
    # One run a cell has no interval, and a regret is not shown without.
    assert (first["auto_ns"], first["best_ns"], first["regret"]) == (80_000, 50_000, None)
    assert [n for n in document["notes"] if n.startswith("taken for AUTO")] == [
        "taken for AUTO, though no variable of the library is known: auto.out (NCCL_DEBUG=INFO "
        "shows it, import --label NCCL_ALGO=auto states it)"
    ]


def test_a_label_named_like_the_variable_counts_as_it(in_tmp_path, capsys):
    for name, rows in (("auto", SLOW), ("Ring", SLOW), ("Tree", FAST)):
        (in_tmp_path / f"{name}.out").write_text(output(rows=rows))
        arguments = ["--label", f"NCCL_ALGO={name}", "-o", f"{name}.jsonl"]
        assert main(["convert", f"{name}.out", *arguments]) == 0
    capsys.readouterr()
    assert main(["algorithms", "auto.jsonl", "Ring.jsonl", "Tree.jsonl", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first = document["tables"][0]["rows"][0]
    assert (first["best"], first["auto_ns"], first["best_ns"]) == ("tree", 80_000, 50_000)
    assert not [n for n in document["notes"] if "taken for AUTO" in n or "hidden" in n]


def test_compare_and_transitions_name_the_variable(in_tmp_path, capsys):
    files(in_tmp_path)
    assert main(["compare", "ring.out", "tree.out"]) == 0
    out = capsys.readouterr().out
    assert "differences:\n  NCCL_ALGO: Ring -> Tree\n" in out
    assert main(["compare", "auto.out", "tree.out"]) == 0
    out = capsys.readouterr().out
    assert "base does not tell NCCL_ALGO: it may differ" in out
    # A log that names any variable of NCCL would name these.
    (in_tmp_path / "ll.out").write_text(output(sets("NCCL_PROTO", "LL")))
    assert main(["compare", "ll.out", "tree.out"]) == 0
    out = capsys.readouterr().out
    assert "  NCCL_ALGO: unset -> Tree\n  NCCL_PROTO: LL -> unset\n" in out
    assert main(["scaling", "ring.out", "tree.out", "auto.out", "--format", "json"]) == 0
    out = capsys.readouterr().out
    for value in ("Ring", "Tree", "not known"):
        assert f'"NCCL_ALGO": "{value}"' in out
