"""docs/ as a site: it builds without a warning, and a page asks for nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']([^"']+)|<link\b[^>]*\bhref=["']([^"']+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Checks links and anchors too: --strict makes a warning an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def test_every_page_is_there(site):
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 20
    for page in pages:
        name = page.with_suffix(".html") if page.stem == "index" else page.with_suffix("")
        assert (site / name).exists()
    assert not (site / "generate.py").exists()
    assert (site / "reference/torchcoll-2.schema.json").exists()


def test_nothing_is_fetched_from_elsewhere(site):
    fetched = [
        "".join(match)
        for path in site.rglob("*.html")
        for match in FETCHED.findall(path.read_text())
    ]
    assert len(fetched) > 50
    # The address of the site itself is not known, so that none of these is one of ours.
    assert [each for each in fetched if re.match(r"(\w+:)?//", each)] == []
    for path in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()) == []
