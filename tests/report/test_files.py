"""No command overwrites a file or follows a link without --force."""

import pytest
from error_form import expecting
from handmade import case, run
from handmade import result as a_result

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.report.destination import write_file


def test_a_new_file(tmp_path):
    path = tmp_path / "a"
    write_file(path, "é", "output")
    assert path.read_text() == "é"
    with pytest.raises(
        UsageError, match=expecting(r"a file that does not exist\. Name another file, or")
    ):
        write_file(path, "b", "output")
    write_file(path, "b", "output", force=True)
    assert path.read_text() == "b"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_followed(tmp_path, there):
    target, link = tmp_path / "target", tmp_path / "link"
    if there:
        target.write_text("precious")
    link.symlink_to(target)
    with pytest.raises(UsageError, match="a file that does not exist"):
        write_file(link, "x", "output")
    write_file(link, "x", "output", force=True)
    assert link.read_text() == "x" and not link.is_symlink()
    assert target.exists() == there
    assert not there or target.read_text() == "precious"


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="Is a directory"):
        write_file(tmp_path, "x", "output", force=True)
    with pytest.raises(UsageError, match="a file that can be written"):
        write_file(tmp_path / "none" / "a", "x", "output", force=True)


@pytest.fixture
def result(tmp_path):
    save(
        run(*(a_result(case=case(size_bytes=1 << n)) for n in range(10, 16))),
        tmp_path / "run.jsonl",
    )
    return str(tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--junit"],
        ["check", "--health"],
        ["convert", "-o"],
        ["plot", "-o"],
        ["curve", "--plot"],
    ],
)
def test_commands(tmp_path, capsys, result, words):
    if words[0] in ("plot", "curve"):
        pytest.importorskip("matplotlib")
    target, path = tmp_path / "target", tmp_path / f"a.{'csv' if words[0] == 'convert' else 'svg'}"
    target.write_text("precious")
    path.symlink_to(target)
    command = [words[0], result, *words[1:], str(path)]
    assert main(command) == 2
    stated = capsys.readouterr()
    assert (
        expecting("a file that does not exist. Name another file, or replace it with") in stated.err
    )
    assert stated.out == ""  # before any work
    assert main([*command, "--force"]) == 0
    assert target.read_text() == "precious" and path.read_text() != "precious"
    assert main(command) == 2 and main([*command, "--force"]) == 0


def test_a_picture_without_a_name_gets_a_number(in_tmp_path, capsys, result):
    pytest.importorskip("matplotlib")
    for name in ("torchcoll.png", "torchcoll-2.png", "torchcoll-3.png"):
        assert main(["plot", result]) == 0
        assert capsys.readouterr().out.endswith(f"\npicture: {name}\n")
    assert main(["plot", result, "--force"]) == 0
    assert capsys.readouterr().out.endswith("\npicture: torchcoll.png\n")
