"""Writing follows no link, whatever waits under the name; and what is written stays whole."""

import os
import socket

import pytest

from torchcoll.bench.watchdog import write_error_file
from torchcoll.core import opening
from torchcoll.core.errors import UsageError
from torchcoll.core.file import Writer, append_end
from torchcoll.core.metrics import Metric, write_metrics


@pytest.fixture
def victim(in_tmp_path):
    path = in_tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


@pytest.mark.parametrize("mode", ["ab", "a+", "r+b", "wb"])
def test_a_link_is_not_opened_to_write(in_tmp_path, victim, mode):
    link = in_tmp_path / "link"
    link.symlink_to(victim)
    with pytest.raises(opening.NotRegularError) as refused:
        opening.open_to_write(link, mode)
    assert refused.value.strerror == "link is a symbolic link"


def test_links_on_the_way_to_the_folder_are_followed_and_below_it_not(in_tmp_path):
    (in_tmp_path / "real/inner").mkdir(parents=True)
    (in_tmp_path / "named").symlink_to("real")
    (in_tmp_path / "real/linked").symlink_to("inner")
    named = in_tmp_path / "named"
    with opening.open_to_write(named / "inner/a", "xb", folder=named) as file:
        file.write(b"1")
    assert (in_tmp_path / "real/inner/a").read_bytes() == b"1"
    with pytest.raises(opening.NotRegularError, match="linked is a symbolic link"):
        opening.open_to_write(named / "linked/b", "xb", folder=named)
    (in_tmp_path / "real/c").write_bytes(b"2")
    with pytest.raises(opening.NotRegularError, match="linked is a symbolic link"):
        opening.move(named / "c", named / "linked/c", named)
    opening.move(named / "c", named / "inner/c", named)
    assert sorted(os.listdir("real/inner")) == ["a", "c"]


def test_a_new_file_has_the_rights_that_open_gives(in_tmp_path):
    before = os.umask(0o027)
    try:
        opening.open_to_write("new", "ab").close()
    finally:
        os.umask(before)
    assert os.stat("new").st_mode & 0o777 == 0o640


def test_what_is_no_regular_file(in_tmp_path):
    os.mkfifo("fifo")
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket")
    for path, kind in (("fifo", "a FIFO"), ("socket", "a socket"), ("/dev/zero", "a device")):
        for opened in (opening.open_to_read, lambda name: opening.open_to_write(name, "ab")):
            with pytest.raises(
                opening.NotRegularError, match=f"{os.path.basename(path)} is {kind}"
            ):
                opened(path)
    server.close()
    with pytest.raises(opening.NotRegularError, match="is a directory"):
        opening.open_to_write(in_tmp_path, "ab")
    with pytest.raises(FileNotFoundError):
        opening.open_to_read("none")


def test_what_is_read_may_be_a_link(in_tmp_path, victim):
    (in_tmp_path / "link").symlink_to(victim)
    with opening.open_to_read("link") as file:
        assert file.read() == b"precious"


def test_a_folder_that_is_a_link(in_tmp_path):
    opening.make_folder(in_tmp_path / "a")
    opening.make_folder(in_tmp_path / "a")
    (in_tmp_path / "b").symlink_to("a")
    (in_tmp_path / "c").write_text("")
    with pytest.raises(opening.NotRegularError, match="b is a symbolic link"):
        opening.make_folder(in_tmp_path / "b")
    with pytest.raises(opening.NotRegularError, match="c is no directory"):
        opening.make_folder(in_tmp_path / "c")


def test_a_file_is_replaced_whole_and_not_through_a_link(in_tmp_path, victim):
    path = in_tmp_path / "a"
    path.symlink_to(victim)
    os.symlink(victim, f".a.{os.getpid()}")  # the name that is written first is known, too
    opening.replace_file(path, b"new")
    assert path.read_bytes() == b"new" and not path.is_symlink()
    with pytest.raises(FileExistsError):
        opening.replace_file(path, b"newer", only_new=True)
    assert sorted(os.listdir()) == ["a", "victim"]


def test_metrics_do_not_follow_a_link(in_tmp_path, victim):
    os.symlink(victim, f".a.prom.{os.getpid()}")
    write_metrics(in_tmp_path / "a.prom", [Metric("up", "Whether.", [({}, 1.0)])])
    assert "torchcoll_up 1\n" in (in_tmp_path / "a.prom").read_text()


def test_the_end_of_a_result_file_is_not_written_through_a_link(in_tmp_path, victim):
    victim.write_text(text := '{"record":"header","run_id":"1"}\n')
    (in_tmp_path / "a.jsonl").symlink_to(victim)
    assert not append_end(in_tmp_path / "a.jsonl", "1", {}, {})
    with pytest.raises(UsageError, match=r"a\.jsonl is a symbolic link"):
        Writer(in_tmp_path / "a.jsonl", further=True)
    assert victim.read_text() == text
    victim.write_text("precious")


def test_the_error_file_is_not_written_through_a_link(in_tmp_path, monkeypatch):
    os.symlink("victim", "error.json")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "error.json")
    write_error_file("torchcoll: error: x", 0)
    assert not os.path.exists("victim")
