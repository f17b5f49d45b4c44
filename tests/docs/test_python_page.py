"""The page of the Python interface: its sessions are run, and print what they show."""

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/python.md"


def test_the_sessions_of_the_page(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    # doctest would take the end of a fence for output.
    sessions = re.findall(r"^```pycon\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(sessions) >= 8
    test = doctest.DocTestParser().get_doctest("\n".join(sessions), {}, PAGE.name, str(PAGE), 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted >= 15
    assert result.failed == 0, capsys.readouterr().out
