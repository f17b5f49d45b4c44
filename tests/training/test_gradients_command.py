"""``torchcoll gradients`` for a model of the current folder."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest
from error_form import error_line, error_text, expecting

from torchcoll.cli import main

MODULE = """
import torch
from torch import nn
print("noise of a training script")

def make_model():
    assert torch.empty(0).device.type == "meta"
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512, bias=False))

def frozen(): return nn.Linear(2, 2).requires_grad_(False)
def with_argument(size): return nn.Linear(size, 2)
def leaves(): raise SystemExit(3)
def a_number(): return 7
number = 7
instance = nn.Linear(3, 1)
"""

# ruff: noqa: E501


@pytest.fixture
def gradients(in_tmp_path, monkeypatch, capsys):
    """``gradients("train:make_model --option")``: exit code, stdout, stderr."""
    (in_tmp_path / "made_here").mkdir()
    (in_tmp_path / "made_here" / "train.py").write_text(MODULE)
    (in_tmp_path / "made_here" / "broken.py").write_text("import missing_here")

    def run(arguments):
        before, path = set(sys.modules), list(sys.path)
        # As for a script of the environment's bin: the current folder is not on the path.
        assert not {"", str(in_tmp_path)} & set(path)
        code = main(["gradients", *arguments.split()])
        for name in set(sys.modules) - before:
            if name.startswith("made_here"):
                del sys.modules[name]
        assert sys.path == path
        return (code, *capsys.readouterr())

    return run


def test_the_buckets_of_one_cap(gradients):
    code, out, err = gradients("made_here.train:make_model --bucket-cap-mb 1")
    assert (code, err) == (0, "noise of a training script\n")
    # 512 x 1024 floats; then 1024 of a bias and 1024 x 1024.
    assert (
        out
        == """\
made_here.train:make_model has 6 MiB of gradients in 3 tensors (float32); bucket_cap_mb 1 makes 2 buckets of 2 MiB to 4 MiB

order of the gradients assumed: the reverse of registration (gradient_buckets with a step learns it)

first step: 1 bucket of 6 MiB
sent: place among the buckets of a steady step, from 0

sent   size  dtype    buckets  bytes   share  gradients  such as
   0     2M  float32        1  2 MiB  33.3 %          1  2.weight
   1  4100K  float32        1  4 MiB  66.7 %          2  0.bias, 0.weight

made_here.train:make_model has 6 MiB of gradients in 3 tensors (float32)
"""
    )


def test_many_caps_are_one_table(gradients):
    """The bias and 1024 x 1024 close a bucket of 4.5 MiB too late."""
    code, out, _ = gradients("made_here.train:make_model --bucket-cap-mb 1,2,4.5")
    assert (code, out.split("\n\n")[2]) == (
        0,
        """\
bucket_cap_mb  buckets  smallest  largest  sent first  sent last  first step
                                                                     buckets
            1        2     2 MiB    4 MiB       2 MiB      4 MiB           1
            2        2     2 MiB    4 MiB       2 MiB      4 MiB           1  as 1
          4.5        1     6 MiB    6 MiB       6 MiB      6 MiB           1""",
    )


def test_what_it_prints_by_itself_is_not_in_the_csv(gradients):
    _, out, _ = gradients("made_here.train:make_model --format csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(r["step"], r["size_bytes"]) for r in rows if r["step"] == "steady"] == [
        ("steady", str(2 << 20)),
        ("steady", str((4 << 20) + 4096)),
    ]


def test_a_model_in_place_of_a_factory(gradients):
    _, out, _ = gradients("made_here.train:instance --format json")
    assert json.loads(out)["plans"][0]["size_bytes"] == 16


def test_fsdp(gradients):
    code, out, _ = gradients("made_here.train:make_model --fsdp Linear --ranks 8 --format json")
    rows = json.loads(out)["rows"]
    assert code == 0
    collected = {
        (r["collective"], r["bytes_in"], r["bytes_out"], r["calls_per_step"]) for r in rows
    }
    # 1024 x 1025 floats and 512 x 1024, on 8 ranks; gathered for forward and backward.
    assert collected == {
        ("all_gather", 524800, 4198400, 2),
        ("all_gather", 262144, 2097152, 2),
        ("reduce_scatter", 4198400, 524800, 1),
        ("reduce_scatter", 2097152, 262144, 1),
    }


@pytest.mark.parametrize("options", ["", "--bucket-cap-mb 1", "--fsdp Linear"])
def test_what_it_costs_on_a_machine(gradients, options):
    code, out, _ = gradients(f"made_here.train:make_model --machine 8xH100 --ranks 8 {options}")
    assert code == 0
    assert ("6" in out.splitlines()[0] and " ms" in out) or " us" in out.splitlines()[0]


def test_the_machines_are_listed_without_a_model(gradients):
    code, out, _ = gradients("--machine list")
    assert code == 0 and "8xH100" in out


M = "made_here.train"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("", error_text("model", "none", "package.module:factory, or what a capture wrote")),
        ("train", error_text("model", "train", "package.module:factory, such as train:make_model")),
        (
            "llama-3-8b",
            error_text(
                "model",
                "llama-3-8b",
                "package.module:factory, such as train:make_model. For a config: torchcoll plan "
                "--config llama-3-8b --parallel dp=8.",
            ),
        ),
        (
            "train:",
            error_text("model", "train:", "package.module:factory, such as train:make_model"),
        ),
        (
            "made_here/train.py:make_model",
            error_text(
                "model",
                "made_here/train.py:make_model",
                "package.module:factory, such as train:make_model. Write "
                "made_here.train:make_model.",
            ),
        ),
        (
            "made_here.nowhere:make",
            error_text(
                "model",
                "made_here.nowhere:make",
                "a module that can be imported from here (No module named 'made_here.nowhere')",
            ),
        ),
        (
            "made_here.broken:make",
            error_text(
                "model",
                "ModuleNotFoundError from the import of made_here.broken: No module named "
                "'missing_here'",
                "a model on meta",
            ),
        ),
        (
            f"{M}:make",
            error_text(
                "model", "made_here.train:make", "a function of module made_here.train, which"
            ),
        ),
        (
            f"{M}:number",
            error_text(
                "model",
                "made_here.train:number of type int",
                "a function without arguments that makes the model",
            ),
        ),
        (
            f"{M}:a_number",
            error_text("model", "type int from made_here.train:a_number", "a torch.nn"),
        ),
        (
            f"{M}:with_argument",
            error_text(
                "model",
                "TypeError from made_here.train:with_argument: with_argument() missing 1 "
                "required positional argument: 'size'",
                "a model on meta",
            ),
        ),
        (
            f"{M}:leaves",
            error_text("model", "SystemExit from made_here.train:leaves: 3", "a model on"),
        ),
        (f"{M}:frozen", error_text("model", "no parameter with a gradient", "one or more")),
        (
            f"{M}:make_model --bucket-cap-mb 1,x",
            error_text("bucket-cap-mb", "1,x", "numbers of MiB, such as 10,25,100"),
        ),
        (
            f"{M}:make_model --fsdp Linear --bucket-cap-mb 1",
            error_text("fsdp", "Linear and --bucket-cap-mb", "one of them: buckets are DDP's"),
        ),
        (
            f"{M}:make_model --fsdp Block",
            error_text("fsdp", "Block", "classes of the model: Linear, ReLU, Sequential"),
        ),
        (f"{M}:make_model --ranks 0", error_text("ranks", 0, "a whole number from 1 on")),
        (
            f"{M}:make_model --format text",
            error_text("format", "text", "one of table, markdown, csv, json"),
        ),
    ],
)
def test_bad_input(gradients, arguments, line):
    code, out, err = gradients(arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"torchcoll: error: {line}")
    assert err.count("torchcoll: error") == 1 and "Traceback" not in err


def test_a_file_of_another_folder(gradients, in_tmp_path, monkeypatch):
    (in_tmp_path / "here").mkdir()
    monkeypatch.chdir(in_tmp_path / "here")
    code, out, err = gradients("../made_here/train.py:make")
    assert (code, out) == (2, "")
    folder = in_tmp_path / "made_here"
    expected = f"package.module:factory, such as train:make_model. Write in {folder} train:make."
    assert error_text("model", "../made_here/train.py:make", expected) in err


@pytest.mark.parametrize("name", ["nope.py", "no/where.py", "/nowhere/train.py"])
def test_a_file_that_does_not_exist(gradients, name):
    code, out, err = gradients(f"{name}:make")
    assert (code, out) == (3, "")
    expected = f"the name of an existing module: there is no file {name}"
    text = error_text("model", f"{name}:make", expected)
    assert err.splitlines()[-1] == f"torchcoll: error: {text}"


@pytest.mark.parametrize("options", ["", "--fsdp Linear"])
def test_without_torch(in_tmp_path, monkeypatch, capsys, options):
    # None in sys.modules makes an import fail as if there were no such package.
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["gradients", "train:make_model", *options.split()]) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(error_line("torch", ""))
    assert err.endswith(expecting("torch 2.6 or newer in this Python. pip install torch\n"))
