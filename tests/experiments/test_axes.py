"""Cells, their names, and the order of runs."""

import sys

import pytest
from error_form import error_text

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.variables import command_line
from torchcoll.parts.experiments.axes import (
    axis_dimension,
    combined,
    split_values,
    variable_dimension,
)
from torchcoll.parts.experiments.blocks import make_plan
from torchcoll.parts.experiments.launch_command import check_program, command_of

MODULE = [sys.executable, "-m", "torchcoll.allreduce"]


def names(variables=(), axes=()):
    dimensions = [variable_dimension(text) for text in variables]
    return [c.name for c in combined([*dimensions, *(axis_dimension(text) for text in axes)])]


def test_every_combination():
    cells = combined(
        [
            variable_dimension("NCCL_ALGO=Ring,Tree"),
            variable_dimension("NCCL_PROTO=LL"),
            axis_dimension("nproc=2,4"),
        ]
    )
    assert [(c.name, dict(c.axes), dict(c.variables)) for c in cells] == [
        ("Ring-nproc2", {"nproc": "2"}, {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}),
        ("Ring-nproc4", {"nproc": "4"}, {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}),
        ("Tree-nproc2", {"nproc": "2"}, {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}),
        ("Tree-nproc4", {"nproc": "4"}, {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}),
    ]


@pytest.mark.parametrize(
    ("variables", "axes", "expected"),
    [
        ([], [], ["auto"]),
        (["NCCL_ALGO=Ring"], [], ["Ring"]),  # a name rather than none
        (["NCCL_ALGO=,Ring"], [], ["auto", "Ring"]),
        (["NCCL_ALGO=,Ring", "NCCL_PROTO=,LL"], [], ["auto", "LL", "Ring", "Ring-LL"]),
        (["NCCL_ALGO=,Ring"], ["nproc=2"], ["auto", "Ring"]),
        (["X=,1"], ["n=2,4"], ["auto-n2", "auto-n4", "X1-n2", "X1-n4"]),
        # Something is forced in both, so none is auto.
        (["NCCL_MAX_CTAS=,4", "NCCL_ALGO=Ring"], [], ["unset", "MAX_CTAS4"]),
        (["NCCL_BUFFSIZE=1,2"], [], ["BUFFSIZE1", "BUFFSIZE2"]),
        (["MODE=fast,slow"], [], ["MODE_fast", "MODE_slow"]),
        # What is fit for no file name; what became equal is numbered.
        (["CCL_ALLREDUCE=ring:0-8;direct:9-max,ring"], [], ["ring-0-8-direct-9-max", "ring"]),
        ([], ["host=a:b,a;b"], ["host_a-b", "host_a-b_2"]),
        ([r"DEVICES=0\,1,2\,3"], [], ["DEVICES0+1", "DEVICES2+3"]),
    ],
)  # fmt: skip
def test_names(variables, axes, expected):
    assert names(variables, axes) == expected


def test_a_comma_in_a_value():
    assert split_values(r"0\,1,2") == ["0,1", "2"]
    assert variable_dimension(r"CUDA_VISIBLE_DEVICES=0\,1")[0].variables == {
        "CUDA_VISIBLE_DEVICES": "0,1"
    }


def test_libraries_and_environments(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/old.so")
    for folder in ("a", "b"):
        (tmp_path / folder / "bin").mkdir(parents=True)
        (tmp_path / folder / "libnccl.so").touch()
        (tmp_path / folder / "bin" / "python").touch()
    a, b = axis_dimension(f"library={tmp_path}/a/libnccl.so,{tmp_path}/b/libnccl.so")
    assert (a.name, b.name) == ("a-libnccl.so", "b-libnccl.so")
    assert a.variables == {"LD_PRELOAD": f"{tmp_path}/a/libnccl.so /old.so"}
    a, b = axis_dimension(f"venv={tmp_path}/a,{tmp_path}/b", {"PATH": "/bin"})
    assert a.name == "a" and b.axes == {"venv": f"{tmp_path}/b"}
    assert b.variables == {
        "VIRTUAL_ENV": f"{tmp_path}/b",
        "PATH": f"{tmp_path}/b/bin:/bin",
        "PYTHONHOME": None,
    }


def test_names_fit_for_files():
    values = [letter * 100 for letter in "ab"]
    axes = [f"{name}={','.join(values)}" for name in "xyzw"]
    found = names(axes=axes)
    assert len(set(found)) == 16
    assert max(map(len, found)) < 160


def test_blocks_are_shuffled_and_may_be_added():
    def order(launches):
        plan, _ = make_plan([*MODULE, "{n}"], axes=["n=1,2,3,4,5,6"], runs=launches)
        return [job.key for job in plan.jobs()]

    three = order(3)
    assert len(three) == len(set(three)) == 18
    blocks = [three[n : n + 6] for n in (0, 6, 12)]
    assert [{launch for _, launch in block} for block in blocks] == [{1}, {2}, {3}]
    assert len({tuple(cell for cell, _ in block) for block in blocks}) > 1
    assert order(2) == three[:12]


def test_the_command_of_a_launch(tmp_path):
    words = [*MODULE, "--sizes", "{size}", "-n{n}"]
    plan, _ = make_plan(words, ["NCCL_ALGO=,Ring"], ["size=8,1K", "n=1"])
    job = next(job for job in plan.jobs() if job.cell.name == "Ring-size1K")
    words = plan.argv(job, tmp_path / "x.jsonl", {"size": "1K", "n": "1"})
    assert words == [
        *MODULE, "--sizes", "1K", "-n1", "--output", f"{tmp_path}/x.jsonl",
        "--label", "cell=Ring-size1K", "--label", "run=1", "--label", "size=1K",
        "--label", "n=1",
    ]  # fmt: skip
    env = {"NCCL_ALGO": "Tree", "HOME": "/h"}
    # TORCHCOLL_SET: a run does not warn of a variable that the matrix varies.
    assert plan.environment(job.cell, env) == {
        "NCCL_ALGO": "Ring",
        "HOME": "/h",
        "TORCHCOLL_SET": "NCCL_ALGO",
    }
    auto = next(job for job in plan.jobs() if job.cell.name == "auto-size8")
    assert plan.environment(auto.cell, env) == {"HOME": "/h", "TORCHCOLL_SET": "NCCL_ALGO"}


def test_a_line_that_can_be_typed():
    assert command_line(["a b", "c"], {"X": "1;2", "Y": None}) == "env -u Y X='1;2' 'a b' c"
    assert command_line(["a"], {}) == "a"


def test_dry_run(in_tmp_path, capsys):
    options = ["--env", "NCCL_ALGO=,Ring", "--runs", "1", "-o", "D", "--dry-run"]
    words = ["--", "python", "-m", "torchcoll.allreduce"]
    count = "2 runs: 2 cells (NCCL_ALGO unset, Ring) x 1\n"
    assert main(["matrix", *options, *words]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err == f"{count}the first of 2 commands; --verbose prints all of them\n"
    assert main(["matrix", *options, "--verbose", *words]) == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == [
        "NCCL_ALGO=Ring python -m torchcoll.allreduce --output D/Ring-1.jsonl "
        "--label cell=Ring --label run=1",
        "env -u NCCL_ALGO python -m torchcoll.allreduce --output D/auto-1.jsonl "
        "--label cell=auto --label run=1",
    ]
    assert err == count
    assert list(in_tmp_path.iterdir()) == []


def test_dry_run_needs_no_launcher(in_tmp_path, capsys):
    """The commands of a cluster can be printed on a laptop without Slurm."""
    words = ["nosuchrun", "python", "-m", "torchcoll.allreduce", "--sizes", "8"]
    assert main(["matrix", "--runs", "1", "-o", "D", "--dry-run", "--", *words]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("nosuchrun python -m torchcoll.allreduce --sizes 8")
    assert err.endswith("\ntorchcoll: note: this machine does not have nosuchrun\n")


def test_a_dry_run_names_the_ends_of_many_numbers(in_tmp_path, capsys):
    line = (
        "matrix --axis ranks=1,2,4,8,16,32,64 -o D --dry-run -- torchrun --nproc-per-node {ranks}"
    )
    assert main([*line.split(), "-m", "torchcoll.allreduce", "-n", "20"]) == 0
    # 1, 2, 4, 8, 16, 32 and 64 ranks, 6 runs each.
    assert capsys.readouterr().err.startswith("42 runs: 7 cells (ranks 1..64) x 6\n")


def test_paths_of_an_axis_may_be_relative(in_tmp_path):
    """The ranks may have another working directory, so that they are given absolute ones."""
    for folder in ("a", "b"):
        (in_tmp_path / folder / "bin").mkdir(parents=True)
        (in_tmp_path / folder / "bin" / "python").touch()
    a, b = axis_dimension(f"venv={in_tmp_path}/a,./b", {})
    assert (a.name, b.name) == ("a", "b")
    assert b.variables["VIRTUAL_ENV"] == f"{in_tmp_path}/b"
    with pytest.raises(UsageError, match="a twice"):
        axis_dimension(f"venv={in_tmp_path}/a,a", {})


def test_what_is_told_beforehand(monkeypatch, in_tmp_path, capsys):
    monkeypatch.setenv("NCCL_PROTO", "LL")
    options = ["--env", "NCCL_BUFSIZE=1,2", "--env", "FOO=1", "-o", "D", "--dry-run", "--verbose"]
    assert main(["matrix", *options, "--runs", "1", "--", *MODULE]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[:3] == [
        "torchcoll: note: NCCL_PROTO=LL is in the environment: it is forced in every cell",
        "torchcoll: note: no library reads NCCL_BUFSIZE: is NCCL_BUFFSIZE meant?",
        "torchcoll: note: FOO: result files do not keep it, so whether it reaches the ranks is "
        "not checked",
    ]
    # Its file would not tell it otherwise.
    assert out.count("--label FOO=1") == 2


ON_RANKS = "-m torchcoll.allreduce"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            f"-o D -- python {ON_RANKS} {{nproc}}",
            error_text("command", "{nproc}", "placeholders that have an axis. --axis nproc=V1,V2"),
        ),
        (
            f"-o D --axis nproc=1 -- python {ON_RANKS}",
            error_text("axis nproc", "no {nproc} in the command",
                "a placeholder for it. Without one all its cells would measure the same."),
        ),
        (
            f"-o D --axis n=1,1 -- python {ON_RANKS} {{n}}",
            error_text("axis n", "1 twice", "each value once: cells would be equal"),
        ),
        (
            f"-o D --env A=,,1 -- python {ON_RANKS}",
            error_text("env A", "unset twice", "each value once: cells would be equal"),
        ),
        (
            f"-o D --env A=1 --env A=2 -- python {ON_RANKS}",
            error_text("matrix", "A twice", "each variable and each axis once"),
        ),
        (
            f"-o D --env NCCL_ALGO=ring --preset nccl-algorithms --nccl-version 2.27 "
            f"-- python {ON_RANKS}",
            error_text("matrix", "NCCL_ALGO twice", "each variable and each axis once"),
        ),
        (
            f"-o D --env A -- python {ON_RANKS}",
            error_text("env", "A",
                "NAME=V1,V2. NAME=,V1 leaves it unset first; \\, is a comma in a value."),
        ),
        (
            f"-o D --axis 2=A -- python {ON_RANKS}",
            error_text("axis", "2=A", "name=V1,V2. \\, is a comma in a value."),
        ),
        (
            f"-o D --axis n= -- python {ON_RANKS} {{n}}",
            error_text("axis n", "an empty text", "values that are not empty"),
        ),
        (
            f"-o D --axis cell=1 -- python {ON_RANKS} {{cell}}",
            error_text("axis", "cell", "another name than cell and run"),
        ),
        (
            f"-o D --axis library=/nowhere/x.so -- python {ON_RANKS}",
            error_text("axis library", "/nowhere/x.so", "the path of a shared library"),
        ),
        (
            f"-o D --axis venv=/nowhere -- python {ON_RANKS}",
            error_text("axis venv", "/nowhere", "the path of a folder with bin/python"),
        ),
        (
            f"-o D --env NCCL_ALGO=Ring,Teer -- python {ON_RANKS}",
            error_text("env NCCL_ALGO", "Teer", "words that NCCL knows. It does not know 'teer'."),
        ),
        (
            f"-o D --env NCCL_PROTO=allreduce:LL;x:LL -- python {ON_RANKS}",
            error_text("env NCCL_PROTO", "allreduce:LL;x:LL",
                "words that NCCL knows. It does not know 'x'."),
        ),
        (
            f"-o D --env NCCL_ALGO=,Ring -- python {ON_RANKS} -c 0",
            error_text("command", "-c 0",
                "verification, where NCCL_ALGO is forced. A forced algorithm may be wrong "
                "where the library would not have chosen it."),
        ),
        (
            f"-o D --env CCL_ALLREDUCE=ring -- python {ON_RANKS} --check=0",
            error_text("command", "-c 0",
                "verification, where CCL_ALLREDUCE is forced. A forced algorithm may be wrong "
                "where the library would not have chosen it."),
        ),
        (f"-o D -- nosuchrun {ON_RANKS}", error_text("command", "nosuchrun", "a program in PATH")),
        (
            f"-o D -- ./absent/run {ON_RANKS}",
            error_text("command", "./absent/run", "a program that exists and can be run"),
        ),
        (
            "-o D -- ./no-such-bench 1",
            error_text("command", "./no-such-bench, which does not exist", "an existing script"),
        ),
        (
            "-o D -- bash no-such-bench.sh 1",
            error_text("command", "no-such-bench.sh, which does not exist", "an existing script"),
        ),
        (
            "-o D -- sleep 1",
            error_text("command", "sleep 1",
                "a module of torchcoll in it, or the path of a script that starts one. "
                "Such as: torchrun --nproc-per-node 2 -m torchcoll.allreduce"),
        ),
        (
            "-o D",
            error_text("command", "none",
                "a run of torchcoll behind --. Such as: -- torchrun --nproc-per-node 2 -m "
                "torchcoll.allreduce"),
        ),
        (
            f"-- python {ON_RANKS}",
            error_text("output", "none", "a folder for the results. Name one with -o DIR."),
        ),
        (
            f"-o D -- python {ON_RANKS} -J x",
            error_text("command", "--output x", "no --output: a matrix sets it"),
        ),
        (
            f"-o D -- python {ON_RANKS} --no-output",
            error_text("command", "--no-output", "no --no-output: a matrix sets it"),
        ),
        (
            f"-o D -- python {ON_RANKS} --label run=3",
            error_text("command", "--label run=3", "other labels: a matrix sets these"),
        ),
        (
            f"-o D --runs 0 -- python {ON_RANKS}",
            error_text("runs", "0", "a whole number from 1 on"),
        ),
        (
            f"-o D --cell-timeout 0 -- python {ON_RANKS}",
            error_text("cell-timeout", "0", "a number from 0.1 on"),
        ),
        (
            f"-o /dev/null/D -- python {ON_RANKS}",
            error_text("output", "/dev/null/D", "a folder that can be written (Not a directory)"),
        ),
    ],
)  # fmt: skip
def test_bad_input(words, line, in_tmp_path, capsys):
    assert main(["matrix", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"torchcoll: error: {line}\n")
    assert list(in_tmp_path.iterdir()) == []


def test_any_script_that_exists_may_start_torchcoll(in_tmp_path):
    """arguments: what follows the script, or the program if no script follows it."""
    for name in ("bench.sh", "sizes.txt"):
        (in_tmp_path / name).write_text("#!/bin/sh\n")
    for words, arguments in (
        ("./bench.sh -n 3", ("-n", "3")),
        ("srun -J name ./bench.sh -n 3", ("-n", "3")),  # -J of srun is not --output
        ("/bin/sh -e bench.sh sizes.txt", ("sizes.txt",)),
        ("./bench.sh new.py", ("new.py",)),
        ("{v}/bench 1", ("1",)),
        ("bash {v}.sh 1", ("1",)),
        ("/bin/sh -e", ("-e",)),
    ):
        command = command_of(words.split())
        assert (command.module, command.arguments) == ("", arguments), words
    with pytest.raises(UsageError) as caught:
        command_of(["bash", "bensh.sh"])
    assert str(caught.value) == error_text(
        "command",
        "bensh.sh, which does not exist",
        "an existing script. Did you mean bench.sh?",
    )


def test_a_program_of_this_environment_is_named(tmp_path, monkeypatch):
    for name in ("python", "torchrun"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UsageError) as caught:
        check_program(["torchrun"], "/nowhere")
    local = tmp_path / "torchrun"
    action = f"a program in PATH. There is one at {local}: activate its environment."
    assert str(caught.value) == error_text("command", "torchrun", action)
