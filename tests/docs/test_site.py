"""docs/ as a site: it builds without a warning, and a page asks for nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import NoBrowser, browser, violations

from torchcoll.cli import GROUPS

pytest.importorskip("material")
ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']([^"']+)|<link\b[^>]*\bhref=["']([^"']+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Checks links and anchors too: --strict makes a warning an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # about the end of mkdocs
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def test_every_page_is_there(site):
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 20
    for page in pages:
        name = page.with_suffix(".html") if page.stem == "index" else page.with_suffix("")
        assert (site / name).exists()
    assert not [*site.rglob("*.py")]
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


@pytest.mark.browser
def test_axe_finds_nothing_on_pages(site, tmp_path):
    """Contrast, names, order of headings, and what a keyboard can reach."""
    pages = [site / name / "index.html" for name in ("", "compare", "reference/commands")]
    try:
        with browser(tmp_path) as driver:
            assert violations(driver, pages) == []
    except NoBrowser as error:
        pytest.skip(str(error))


def test_sentences_wrap_and_a_command_can_be_copied(site):
    page = (site / "index.html").read_text()
    assert '<span class="sentence">WARN 369.1 GB/s' in page
    assert 'data-clipboard-text="torchcoll check results/h200-8gpu-kernels/generic.jsonl' in page


def test_side_bar_index_and_help_have_one_order():
    """The groups are the groups of ``torchcoll --help``, and each has its pages in one order."""
    index = (ROOT / "docs/index.md").read_text()
    nav = re.findall(
        r"^  - ([\w ]+):\n((?:      - .*\n)+)", (ROOT / "mkdocs.yml").read_text(), re.M
    )
    pages_of_nav = {title: re.findall(r": (\S+\.md)$", pages, re.M) for title, pages in nav}
    for group in GROUPS:
        if group != "other":
            title = group.capitalize()
            section = index.split(f"\n## {title}\n")[1].split("\n## ")[0]
            rows = [line for line in section.splitlines() if line.startswith("| ")]
            links = [re.search(r"\]\((\S+?\.md)[)#]", line) for line in rows]
            pages = list(dict.fromkeys(link[1] for link in links if link))
            of_group = [page for page in pages if page in pages_of_nav[title]]
            assert of_group == pages_of_nav[title], title
    assert [title for title in pages_of_nav if title.lower() in GROUPS] == [
        group.capitalize() for group in GROUPS if group != "other"
    ]


def test_one_page_says_what_has_run_where():
    claim = re.compile(
        r"\b(never|not yet|not) (been )?(run|tried) (on|yet)|\bnever (run|tried|built)\b"
    )
    for path in [ROOT / "README.md", ROOT / "launch/README.md", *(ROOT / "docs").glob("*.md")]:
        if path.name != "what-has-run.md":
            assert claim.findall(path.read_text()) == [], path.name
