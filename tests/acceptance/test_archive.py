"""Archives of the acceptance kit that are read elsewhere: whole, damaged, hostile, of others."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from torchcoll import cli
from torchcoll.acceptance.archive import clean_file, read_archive, write_archive
from torchcoll.acceptance.kit import MachineUnderTest
from torchcoll.acceptance.part_result import (
    FAILED,
    NOT_RUN,
    NOT_SHOWN,
    PROVEN,
    Figure,
    PartResult,
)
from torchcoll.acceptance.running import Report
from torchcoll.core.checksums import LineWriter

MACHINE = MachineUnderTest(
    "nccl", "cuda", 8, False, "nccl", "NCCL 2.27.5", facts={"names": ["H100"] * 8}
)
PARTS = [
    PartResult("doctor", PROVEN, "nccl can be used", (Figure("errors", 0, most=0),), 3.0),
    PartResult(
        "clock",
        FAILED,
        "torchcoll / bare (host 4K) is 1.1 (1.08 to 1.12)",
        (Figure("host 4K", 1.1, "", 1.08, 1.12, 0.97, 1.03, "chosen"),),
        20.0,
        ("clock.json",),
    ),
    PartResult("limits", NOT_SHOWN, "gloo writes no topology"),
    PartResult("capture", NOT_RUN, "the kit was interrupted"),
]
REPORT = Report(MACHINE, PARTS, "interrupted", "2026-11-27T20:00:00+00:00", 83.0)


@pytest.fixture
def archive(tmp_path) -> Path:
    folder = tmp_path / "parts"
    (folder / "clock").mkdir(parents=True)
    (folder / "clock" / "clock.json").write_text("{}")
    path = tmp_path / "torchcoll-acceptance-1.tar.gz"
    write_archive(path, REPORT, folder, "the table")
    return path


def test_what_was_written_is_read(archive, capsys):
    accepted = read_archive(archive)
    assert accepted.report == replace(REPORT, machine=accepted.report.machine)
    assert accepted.report.machine.described == MACHINE.described == "8 ranks on H100, NCCL 2.27.5"
    assert accepted.files == ("table.txt", "clock/clock.json")
    assert cli.main(["acceptance", str(archive)]) == 1
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == (
        "1 of 4 parts proven on 8 ranks on H100, NCCL 2.27.5; failed: clock; cannot be shown here: "
        "limits; not run: capture"
    )
    assert "1.1 (1.08 to 1.12)" in shown
    assert "0.97 to 1.03" in shown
    assert cli.main(["acceptance", str(archive), "--format", "markdown"]) == 1
    assert "| clock" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_longer_than_the_page(archive, columns, monkeypatch, capsys):
    monkeypatch.setattr("torchcoll.report.destination.PIPE_COLUMNS", columns)
    cli.main(["acceptance", str(archive)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= columns


def refused(path: Path, capsys) -> str:
    """The one line with which a file is refused."""
    assert cli.main(["acceptance", str(path)]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line


def packed(path: Path, *members: tuple[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, "/etc/passwd"
    return info


INDEX = ("kit/acceptance.json", b'{"schema": "torchcoll-acceptance/1"}')


@pytest.mark.parametrize(
    "member",
    [
        ("/etc/passwd", b"x"),
        ("kit/../../x", b"x"),
        ("../x", b"x"),
        ("kit/link", link(tarfile.SYMTYPE)),
        ("kit/link", link(tarfile.LNKTYPE)),
        ("kit/device", link(tarfile.CHRTYPE)),
        ("kit/pipe", link(tarfile.FIFOTYPE)),
    ],
)
def test_members_that_would_be_written_elsewhere(tmp_path, member, capsys):
    line = refused(packed(tmp_path / "a.tar.gz", member, INDEX), capsys)
    assert f"got {member[0]}, expected a plain file below one folder" in line
    assert line.endswith("Do not unpack this archive.")


def test_an_archive_of_something_else(tmp_path, capsys):
    line = refused(packed(tmp_path / "a.tar.gz", ("alone", b"x")), capsys)
    assert line.endswith("a.tar.gz, expected an archive of launch/acceptance.sh")


def test_what_is_no_archive(tmp_path, archive, capsys):
    text = tmp_path / "text"
    text.write_text("no tar\n" * 100)
    zipped = tmp_path / "text.gz"
    zipped.write_bytes(gzip.compress(b"no tar\n" * 1000))
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    for path in (text, zipped, empty):
        assert "expected a gzipped tar" in refused(path, capsys)
    assert "expected a file that exists" in refused(tmp_path / "none", capsys)
    assert "expected a file, not a folder" in refused(tmp_path, capsys)
    without = packed(tmp_path / "other.tar.gz", ("kit/x", b"x"))
    assert "expected a member acceptance.json" in refused(without, capsys)


def test_an_archive_that_is_cut_off(archive, tmp_path, capsys):
    content = archive.read_bytes()
    for share in (0.2, 0.5, 0.9):
        cut = tmp_path / "cut.tar.gz"
        cut.write_bytes(content[: int(share * len(content))])
        assert "copy it again" in refused(cut, capsys)


def index(**changed) -> bytes:
    data = {
        "schema": "torchcoll-acceptance/1",
        "torchcoll": "0.1.0",
        "status": "complete",
        "start_utc": "",
        "wall_s": 1,
        "machine": {
            **{name: "" for name in ("backend", "device", "family", "library", "why_one")},
            **{"ranks": 2, "shared": False, "facts": {}},
        },
        "parts": [],
    }
    return json.dumps(data | changed).encode()


def test_another_version_is_named(tmp_path, capsys):
    content = index(schema="torchcoll-acceptance/2", torchcoll="9.9")
    line = refused(packed(tmp_path / "a.tar.gz", ("kit/acceptance.json", content)), capsys)
    assert "got torchcoll-acceptance/2, expected torchcoll-acceptance/1" in line
    assert line.endswith("Install the torchcoll version that wrote it (9.9).")
    minor = packed(
        tmp_path / "b.tar.gz", ("kit/acceptance.json", index(schema="torchcoll-acceptance/1.4"))
    )
    assert read_archive(minor).report.parts == []


PART = {
    "name": "clock",
    "status": PROVEN,
    "reason": "",
    "figures": [{"name": "a", "value": 1}],
    "seconds": 1,
    "files": [],
}


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        index(schema="other/1"),
        index(schema=1),
        index(parts=[{}]),
        index(parts=[{**PART, "status": "great"}]),
        index(parts=[{**PART, "figures": [{"name": "a", "value": "1"}]}]),
        index(parts=[{**PART, "seconds": None}]),
        index(machine={}),
        index(machine={**json.loads(index())["machine"], "facts": {"names": [1]}}),
        index(wall_s="x"),
        index()[:-2] + b', "wall_s": NaN}',
    ],
)
def test_an_index_that_the_kit_did_not_write(tmp_path, content, capsys):
    line = refused(packed(tmp_path / "a.tar.gz", ("kit/acceptance.json", content)), capsys)
    assert "acceptance.json of" in line
    assert "that launch/acceptance.sh wrote" in line


def test_what_a_terminal_would_obey_is_not_printed(tmp_path, capsys):
    part = {**PART, "name": "clock\x1b[31m", "reason": "a\u202eb\nc"}
    path = packed(tmp_path / "a.tar.gz", ("kit/acceptance.json", index(parts=[part])))
    assert cli.main(["acceptance", str(path)]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\u202e" not in output


def test_content_beyond_the_limit_is_not_unpacked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchcoll.acceptance.archive._MOST_UNPACKED", 1 << 20)
    path = packed(tmp_path / "a.tar.gz", ("kit/zeros", bytes(8 << 20)), INDEX)
    assert path.stat().st_size < 10_000
    assert "expected at most 1 GiB of content" in refused(path, capsys)


PEM = (
    "-----BEGIN PRIVATE KEY-----\nMIIEvgIBADANBgkqhkiG9w0BAQEFAASC\nletters\n"
    "-----END PRIVATE KEY-----\n"
)


def test_secrets_in_logs_are_masked(tmp_path):
    folder = tmp_path / "parts"
    (folder / "machine").mkdir(parents=True)
    secrets = ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "hunter2hunter2", "indented", "letters")
    (folder / "machine" / "log.txt").write_text(
        f"token {secrets[0]}\npassword={secrets[1]}\npassword:\n  {secrets[2]}\n{PEM}"
    )
    path = tmp_path / "a.tar.gz"
    write_archive(path, REPORT, folder, f"token {secrets[0]}")
    content = gzip.decompress(path.read_bytes()).decode()
    assert [secret for secret in secrets if secret in content] == []
    assert "***" in content


def test_texts_of_cases_are_masked_and_their_numbers_stay(tmp_path):
    case = {"record": "case", "reason": "http://joe:hunter2@proxy on n1", "time_ns": [[1, 2]]}
    writer = LineWriter()
    (tmp_path / "run.jsonl").write_bytes(writer.line(case) + writer.line({"record": "end"}))
    cleaned = [json.loads(line) for line in clean_file(tmp_path / "run.jsonl").splitlines()]
    assert cleaned[0]["reason"] == "http://***@proxy on n1"
    assert cleaned[0]["time_ns"] == [[1, 2]]
