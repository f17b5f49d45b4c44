"""Every public function refuses objects of a wrong type with an error that says what to do."""

import functools
import inspect

import pytest
from error_form import error_text
from test_repr import forced, launch, sent

import torchcoll
from torchcoll.core.errors import TorchcollError, UsageError

run = functools.cache(functools.partial(launch, samples=30))
# Arguments with which each function works; of others only the first argument is tried.
WORKING = {
    "algorithms": lambda: {"sources": [forced("Ring"), forced("Tree")]},
    "check": lambda: {"source": run()},
    "compare": lambda: {"base": run(), "new": run(slower=1.5)},
    "fit_model": lambda: {"sources": [run()]},
    "compare_plans": lambda: {"model": "gpt2", "layouts": "dp,fsdp", "ranks": 8},
    "plan": lambda: {"model": "gpt2", "parallel": "dp=8"},
    "plot": lambda: {"what": run(), "path": "picture.svg"},
    "predict": lambda: {"machine": "8xH100", "collective": "all_reduce", "size": "1M", "ranks": 8},
    "save": lambda: {"run": run(), "path": "run.jsonl"},
    "scaling": lambda: {"sources": [run(2), run(4)]},
    "show": lambda: {},
    "table": lambda: {"source": run()},
}
FUNCTIONS = [name for name in torchcoll.__all__ if inspect.isfunction(getattr(torchcoll, name))]
# They need a process group before they look at an argument.
IN_A_GROUP = ("capture", "try_buckets")


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in IN_A_GROUP])
def test_a_wrong_first_argument(name):
    further = {"save": ["run.jsonl"]}
    further |= {"predict": ["all_reduce", "1M", 8]}
    further |= {"compare_plans": ["dp,fsdp"]}
    with pytest.raises(TorchcollError, match=r"got object, expected \w"):
        getattr(torchcoll, name)(object(), *further.get(name, []))


@pytest.mark.parametrize("name", WORKING)
def test_a_wrong_type_of_each_argument(name, tmp_path, monkeypatch, capsys):
    """The error of torchcoll, or none where the type does not matter, such as a truth value."""
    monkeypatch.chdir(tmp_path)
    function, arguments = getattr(torchcoll, name), WORKING[name]()
    positional = [run()] if name == "show" else []
    for parameter in inspect.signature(function).parameters:
        if parameter == "sources" and name == "show":
            continue
        for wrong in (object(), [object()], sent(10), b"x", 5):
            for path in tmp_path.iterdir():
                path.unlink()
            try:
                function(*positional, **(arguments | {parameter: wrong}))
            except TorchcollError as error:
                assert "expected" in str(error), (parameter, wrong)


def test_the_error_says_what_to_do():
    traffic = sent(10)
    with pytest.raises(UsageError, match=error_text("run", "Traffic", "a Run. traffic.save")):
        torchcoll.save(traffic, "x.jsonl")
    with pytest.raises(
        UsageError, match=error_text("spec", "Traffic", "a torchcoll.Spec. traffic")
    ):
        torchcoll.run(traffic)
    for function in (torchcoll.plot, torchcoll.scaling):
        with pytest.raises(UsageError, match="got Traffic, expected a Run, a file, a folder"):
            function(traffic)
    with pytest.raises(UsageError, match=error_text("file", "Traffic", "a path")):
        torchcoll.load(traffic)
