"""Every form of the report, and what it concludes; the matrix: test_pair_matrix.py."""

import csv
import io
import json

import pytest
from error_form import error_text
from made_pairs import pairs_run, shown

from torchcoll.core.errors import UsageError
from torchcoll.core.result import Run
from torchcoll.questions.pairs.show import show_pairs
from torchcoll.reading.inputs import load_one


@pytest.fixture(scope="module")
def small():
    return pairs_run(5, slow=3)


def test_the_conclusion(small):
    text = shown(small)
    half = "50 % of the others' speed both ways (not measured alone, 4 of 4 pairs slow)"
    assert f"SUSPECT rank 3 (n3): {half}" in text
    assert text.startswith(
        "rank 3 (n3) is slow: it has 50 % of the speed of the other ranks (both ways, not measured"
    )
    assert "check the devices and cables of n3, or go on with ranks 0-2,4" in text
    assert text.count("of the others' speed") == 1


def test_calls_that_scatter_too_much_for_the_threshold():
    """100, 150 and 200 us: the lower quartile is 125, ln(150 / 125) / 0.6745 = 27.0 %. A link is an
    outlier from 3.5 x 0.270 on, and is found in all passes with 2 x 0.270 more: 1 - exp(-1.487).
    The median of the 4 pairs of a rank has sqrt(pi / 8) = 0.627 of the scale:
    1 - exp(-0.593 - 0.541) = 67.8 %.
    """
    run = pairs_run(5, slow=None)
    for result in run.results:
        if result.case.size_bytes > 8:
            result.time_ns = {"host": [[100_000, 150_000, 200_000]] * 2}
    out = io.StringIO()
    assert show_pairs(run, file=out) is False
    text = " ".join(out.getvalue().split())
    assert text.startswith(
        "Cannot tell whether a rank is slow (only a loss of 68 % or more of speed would have been "
        "found); a link only from a loss of 77 % on Next: repeat with --sizes 8M -n 10 while "
        "nothing else runs on the machine"
    )
    out = io.StringIO()
    show_pairs(run, "json", file=out)
    document = json.loads(out.getvalue())
    assert document["answer"]["certainty"] == "cannot tell"
    assert document["answer"]["detectable"] == pytest.approx(0.678, abs=0.001)


def test_what_would_have_been_found_of_equal_pairs():
    """No scatter: a loss is found from the threshold on."""
    out = io.StringIO()
    assert show_pairs(pairs_run(5, slow=None), file=out) is False
    assert out.getvalue().startswith(
        "no rank or link is slow (a loss of 20 % of speed would have been found)\n"
    )
    out = io.StringIO()
    show_pairs(pairs_run(5, slow=None), threshold=0.5, file=out)
    text = out.getvalue()
    assert text.startswith("Cannot tell whether a rank is slow (only a loss of 50 % or more")
    assert "Next: lower --threshold" in text


def test_markdown_csv_and_json(small):
    text = shown(small, "markdown")
    assert "| 3 | n3 | 5.000 us | 5.243 | 5.243 | 5.243 |" in text
    rows = list(csv.DictReader(io.StringIO(shown(small, "csv"))))
    assert len(rows) == 10 * 4
    (row,) = [r for r in rows if (r["kind"], r["first"], r["second"]) == ("one way", "3", "1")]
    assert (row["median_ns"], row["gbps"], row["first_host"]) == ("200000.0", "5.24288", "n3")
    data = json.loads(shown(small, "json"))
    (one,) = data["suspects"]
    assert (one["what"], one["units"], one["hosts"], one["stands"]) == ("rank", [3], ["n3"], True)
    assert {e["kind"] for e in one["evidence"]} == {"both ways", "sending", "receiving"}
    assert data["largest_group"] == [0, 1, 2, 4]


def test_what_two_and_three_can_say():
    out = io.StringIO()
    assert show_pairs(pairs_run(2, slow=0), file=out) is False
    assert "no rank can be judged; one pair has nothing to be compared with" in out.getvalue()
    out = io.StringIO()
    assert show_pairs(pairs_run(3, slow=None), file=out) is False
    assert "with three there are two other pairs to compare each with" in out.getvalue()


def test_what_is_missing_is_said(small):
    cut = Run(header=small.header, members=small.members, results=small.results[:8])
    out = io.StringIO()
    show_pairs(cut, file=out)
    assert "not complete: 2 of 10 pairs" in out.getvalue()
    assert "?" in out.getvalue()


def test_slow_links_are_shown_in_a_unit_in_which_they_differ():
    """8 MiB in 0.35 s are 23.967 MB/s, and half of it 11.984."""
    run = pairs_run(4, slow=2, size=8 << 20)
    for result in run.results:
        if result.case.size_bytes > 8:
            result.time_ns = {
                "host": [[3500 * ns for ns in calls] for calls in result.time_ns["host"]]
            }
    text = shown(run)
    assert "8M both ways at once, MB/s sent by each rank" in text
    assert "   2  n2    5.000 us       12.0       12.0       12.0" in text


def test_an_unknown_format(small):
    with pytest.raises(UsageError, match=error_text("format", "html", "one of table, markdown")):
        show_pairs(small, "html")


def test_nothing_measured_is_no_healthy_network(small):
    run = pairs_run(3, slow=None)
    for result in run.results:
        result.time_ns, result.status, result.reason = {}, "failed", "lost"
    out = io.StringIO()
    assert show_pairs(run, file=out) is True
    assert "failed, the first: pair 0-1" in out.getvalue()
    assert "is slow (" not in out.getvalue()


def test_what_is_not_judged_is_said():
    run = pairs_run(4, slow=1, per_host=3)
    for member in run.members:
        member["affinity"] = "0-1"
    out = io.StringIO()
    assert show_pairs(run, file=out) is False
    assert "on n0 ranks wait for a core: those pairs accuse nobody" in out.getvalue()
    assert out.getvalue().startswith("no rank can be judged; ranks wait for a core on every host")


def test_how_a_file_ends_is_said(small):
    cut = Run(header=small.header, members=small.members, results=small.results)
    cut.problems, cut.end = ["truncated: no end record"], {"status": "failed", "reason": "lost 3"}
    text = shown(cut)
    assert "truncated: no end record" in text and "failed: lost 3" in text


def test_a_file_of_which_no_pair_can_be_read():
    run = Run(path="p.jsonl", problems=["p.jsonl:5: unusable record: time_ns"])
    text = error_text("pairs", "p.jsonl", "a result file of torchcoll.pairs")
    with pytest.raises(UsageError, match=text):
        show_pairs(run)


def test_the_share_of_the_first_sentence_is_in_the_table_of_ranks():
    """An emulated network of six hosts, of which h4 has 120 of 200 Mbit/s."""
    out = io.StringIO()
    show_pairs(load_one("results/pairs-6hosts/slow-link.jsonl"), file=out)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("rank 4 (h4) is slow: it has 56 % of the speed")
    ends = {line.split()[0]: line[-4:] for line in lines if line.split()[1:2] in (["h4"], ["h5"])}
    assert ends == {"4": "56 %", "5": "   -"}
