"""Python does what the command line does: sides by name, folders, plots without a name."""

import pytest
from error_form import error_tail, error_text, expecting, got
from handmade import case, result, run

import torchcoll
from torchcoll.core.errors import TorchcollError, UnreadableError, UsageError
from torchcoll.core.traffic import Group, Traffic, TrafficCall


@pytest.fixture
def folder(tmp_path):
    """Two runs of gloo and mpi, whose sizes are both 1K; mpi takes 2 ms in place of 1."""
    for number in (1, 2):
        header = {"start_utc": f"2026-01-0{number}T00:00:00Z", "run_id": f"run{number}"}
        slower = [[2_000_000 + i for i in range(20)]] * 8
        both = [
            result(size_bytes=1024, case=case(size_bytes=1024)),
            result(
                size_bytes=1024,
                case=case(size_bytes=1024, backend="mpi"),
                time_ns={"host": slower},
            ),
        ]
        (tmp_path / "runs").mkdir(exist_ok=True)
        torchcoll.save(run(*both, header=header), tmp_path / f"runs/{number}.jsonl")
    return tmp_path / "runs"


def test_compare_names_sides_and_takes_some_of_the_cases(folder):
    found = torchcoll.compare(f"backend:gloo={folder}", f"backend:mpi={folder}")
    assert (found.base.name, found.new.name) == ("backend:gloo", "backend:mpi")
    (row,) = found.rows
    assert row.ratio == pytest.approx(2, rel=0.01)
    # Several of one side, and a glob whose name holds "=".
    several = [f"before={folder}/1.jsonl", f"before={folder}/2.jsonl"]
    with pytest.raises(UsageError, match=expecting("a run that is not in before")):
        torchcoll.compare(several, str(folder))
    (folder / "1.jsonl").rename(folder / "a=1.jsonl")
    assert torchcoll.compare(f"{folder}/a=*.jsonl", f"{folder}/2.jsonl").base.name == "base"


def test_sides_of_two_names_are_no_side(folder):
    with pytest.raises(
        UsageError, match=error_text("^base", error_tail("sides named a and b", "runs of one"))
    ):
        torchcoll.compare([f"a={folder}/1.jsonl", f"b={folder}/2.jsonl"], str(folder))
    with pytest.raises(
        UsageError, match=error_text("^file", error_tail("a=", "a path, or label=PATH"))
    ):
        torchcoll.compare("a=", str(folder))


def test_load_takes_a_folder_and_a_glob(folder):
    for runs in (torchcoll.load(folder), torchcoll.load(f"{folder}/*.jsonl")):
        assert [one.header["run_id"] for one in runs] == ["run1", "run2"]
    assert len(torchcoll.table(torchcoll.load(folder))) == 4
    assert torchcoll.load(folder / "1.jsonl").header["run_id"] == "run1"
    with pytest.raises(UnreadableError, match=expecting("a pattern that some file matches")):
        torchcoll.load(f"{folder}/*.log")


def sent():
    call = TrafficCall("all_reduce", 8, 8, "float32", "sum", group="0", sequence=0, step=0)
    return Traffic("capture", 1, {0: [call]}, {"0": Group("0", (0,), "gloo")})


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: torchcoll.plot(sent(), folder / "a.png"),
        lambda folder: torchcoll.compare([str(folder), sent()], str(folder)),
    ],
)
def test_traffic_is_no_side(folder, make):
    with pytest.raises(TorchcollError) as error:
        make(folder)
    assert got(error_tail("Traffic", "a Run, a file, a folder")) in str(error.value)


@pytest.mark.parametrize("others", [(), (".",)])
def test_a_traffic_is_compared_with_another(others):
    with pytest.raises(
        UsageError, match=error_text("base", "a Traffic", "a Traffic on both sides")
    ):
        torchcoll.compare(sent(), *others)


def test_one_side_is_no_comparison(folder):
    with pytest.raises(
        UsageError, match=error_text("^compare", error_tail("one side", "two: base and new"))
    ):
        torchcoll.compare(str(folder))
    with pytest.raises(
        UsageError, match=error_text("^base", error_tail("NoneType", "a Run.* on rank 0 alone"))
    ):
        torchcoll.compare(None, str(folder))
    with pytest.raises(UsageError, match=error_text("^side", error_tail("int", "a Run"))):
        torchcoll.plot(5)
