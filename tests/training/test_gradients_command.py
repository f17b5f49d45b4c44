"""``torchcoll gradients`` for a model of the current folder."""

import csv
import io
import json
import re
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


def rows_of(out):
    return {(r["collective"], r["size_bytes"]): r["calls"] for r in json.loads(out)["rows"]}


def test_the_buckets_of_a_cap(gradients):
    code, out, err = gradients("made_here.train:make_model --parallel dp@1 --format json")
    assert (code, err) == (0, "noise of a training script\n")
    # 512 x 1024 floats; then 1024 of a bias and 1024 x 1024.
    assert rows_of(out) == {("all_reduce", 2 << 20): 1, ("all_reduce", (4 << 20) + 4096): 1}
    _, out, _ = gradients("made_here.train:make_model --parallel dp --format json")
    assert rows_of(out) == {("all_reduce", 2 << 20): 1, ("all_reduce", (4 << 20) + 4096): 1}
    _, out, _ = gradients("made_here.train:make_model --parallel dp@25 --format json")
    assert rows_of(out) == {("all_reduce", (6 << 20) + 4096): 1}


def test_it_begins_with_the_answer_of_plan(gradients, capsys):
    _, out, _ = gradients("gpt2 --ranks 8")
    assert out.startswith("gpt2 with FSDP2 on 8 ranks (fsdp=8) sends ")
    assert main(["plan", "gpt2", "--ranks", "8"]) == 0
    assert capsys.readouterr().out == out
    _, out, _ = gradients("gpt2 --parallel fsdp=8")
    assert out.startswith("gpt2 with FSDP2 on 8 ranks (fsdp=8) sends ")
    _, out, _ = gradients("gpt2 --compare fsdp=8,dp=8")
    assert out.startswith("of 2 layouts on 8 ranks ")
    _, out, _ = gradients("llama-3-70b --parallel dp")
    assert "of memory, more than any GPU that torchcoll knows has (206 GB)" in " ".join(out.split())


def test_what_it_prints_by_itself_is_not_in_the_csv(gradients):
    _, out, _ = gradients("made_here.train:make_model --parallel dp --format csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(r["table"], r["size_bytes"]) for r in rows] == [
        ("calls", str(2 << 20)),
        ("calls", str((4 << 20) + 4096)),
    ]


def test_a_model_in_place_of_a_factory(gradients):
    _, out, _ = gradients("made_here.train:instance --parallel dp --format json")
    assert rows_of(out) == {("all_reduce", 16): 1}


@pytest.mark.parametrize("options", ["", "--parallel dp@1", "--parallel fsdp"])
def test_what_it_costs_on_a_machine(gradients, options):
    code, out, _ = gradients(f"made_here.train:make_model --machine 8xH100 --ranks 8 {options}")
    assert code == 0
    first = " ".join(out.split("\n\n")[0].split())
    assert re.search(r" takes \S+ [um]s \(.*\) on 8xH100", first)
    # The GPUs of one host have no network between them.
    assert "of network" not in out
    _, out, _ = gradients(f"made_here.train:make_model --machine 8xH100 --ranks 16 {options}")
    assert "of network per host" in out


M = "made_here.train"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "",
            error_text("model", "none", "a config.json, a name such as llama-3-8b, MODULE:FACTORY"),
        ),
        ("train", error_text("config", "train", "a config.json, MODULE:FACTORY, or one of")),
        (
            "made_here/train.py:make_model",
            error_text(
                "model",
                "made_here/train.py:make_model",
                "package.module:factory, such as train:make_model. Name the module as",
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
    ],
)
def test_bad_input(gradients, arguments, line):
    code, out, err = gradients(arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"torchcoll: error: {line}")
    assert err.count("torchcoll: error") == 1 and "Traceback" not in err


@pytest.mark.parametrize("options", ["", "--parallel fsdp"])
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
